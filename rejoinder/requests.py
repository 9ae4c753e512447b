"""What the front-door tasks take, as values that check themselves.

Shared by the client (which checks before it sends) and the tasks (which trust nobody). A request
that does not fit becomes a `Rejected` that names the field.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, TypeVar
from uuid import UUID

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from rejoinder.core.errors import Rejected
from rejoinder.core.limits import MOST_BUDGET, MOST_CLIENT_TOOLS, MOST_KEY, MOST_TITLE
from rejoinder.core.messages import Budget, WhenBusy
from rejoinder.core.money import MICROS
from rejoinder.core.options import ApprovalPolicy
from rejoinder.core.state import Status

Content = Annotated[
    list[dict[str, Any]],
    BeforeValidator(lambda v: [{"type": "text", "text": v}] if isinstance(v, str) else v),
    Field(min_length=1, description="a text, or a list of parts"),
]
Key = Annotated[str, Field(min_length=1, max_length=MOST_KEY)] | None
Title = Annotated[str, Field(min_length=1, max_length=MOST_TITLE)]


class Request(BaseModel):
    """The arguments of one front-door task."""

    model_config = ConfigDict(extra="forbid")


class Command(Request):
    """What changes something, once for each key: the task's own id, if it does not say."""

    key: Key = None


class ClientToolIn(Request):
    """A tool that the app answers itself."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str = ""
    schema_: Annotated[dict[str, Any], Field(alias="schema")] = {"type": "object"}
    seconds: Annotated[float, Field(gt=0)] | None = None
    """How long to wait for its result."""
    default: Any = None
    """The result if none comes in time; without it, the model is told that none came."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, serialize_by_alias=True)


class BudgetIn(Request):
    """What a chat and its children may use together; what is left out has no limit."""

    tokens: Annotated[int, Field(ge=0, le=MOST_BUDGET)] | None = None
    cost: Annotated[Decimal, Field(ge=0, le=MOST_BUDGET // MICROS)] | None = None
    """In dollars."""

    def value(self) -> Budget:
        """As it is stored."""
        micros = None if self.cost is None else int(self.cost * MICROS)
        return Budget(self.tokens, micros)


class OptionsIn(Request):
    """How to ask the model; what is left out is the provider's default."""

    max_tokens: Annotated[int, Field(gt=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    thinking: bool | int | str | dict[str, Any] | None = None
    effort: str | None = None
    tools: list[str] | None = None
    """The tools this chat may use; all that the workers know, if it does not say."""
    client_tools: Annotated[list[ClientToolIn], Field(max_length=MOST_CLIENT_TOOLS)] = []
    """Tools that the app answers itself, with submit_tool_results."""
    approval: ApprovalPolicy = ApprovalPolicy.DECLARED
    """Which calls a person has to allow: those of tools that say so, all, or none."""
    approve: list[str] = []
    """Tools whose calls a person has to allow in this chat, whatever they say."""
    agents: bool = False
    """Whether it may have child chats work for it."""
    compact_at: Annotated[int, Field(ge=1, le=100)] | None = None
    """Percent of the model's context at which the chat is summarised; 100: never."""
    compaction_model: str | None = None
    """Who writes its summaries, as `provider:model`."""
    park_seconds: Annotated[float, Field(gt=0)] | None = None
    """How long it waits for answers from outside."""
    extra: dict[str, Any] = {}

    @field_validator("client_tools")
    @classmethod
    def _each_name_once(cls, tools: list[ClientToolIn]) -> list[ClientToolIn]:
        names = [tool.name for tool in tools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"declared twice: {', '.join(twice)}")
        return tools


class CreateChat(Command):
    """create_chat."""

    content: Content
    owner: Annotated[str, Field(min_length=1, max_length=255)]
    system: Annotated[
        list[dict[str, Any]] | None,
        BeforeValidator(lambda v: [{"type": "text", "text": v}] if isinstance(v, str) else v),
    ] = None
    model: str = ""
    options: OptionsIn = OptionsIn()
    labels: dict[str, str] = {}
    parent_id: UUID | None = None
    title: Title | None = None
    budget: BudgetIn = BudgetIn()


class OneChat(Request):
    """get_chat."""

    chat_id: UUID


class ChatCommand(OneChat, Command):
    """compact, retry, archive, unarchive."""


class Interrupt(ChatCommand):
    """interrupt."""

    turn_id: UUID | None = None
    children: bool = True


class SendMessage(ChatCommand):
    """send_message."""

    content: Content
    when_busy: WhenBusy = WhenBusy.QUEUE
    model: str | None = None


class EditMessage(ChatCommand):
    """edit_message."""

    message_id: int
    content: Content
    model: str | None = None


class QueuedMessage(ChatCommand):
    """promote_queued, delete_queued."""

    queued_id: int


class ToolResultIn(Request):
    """One result from outside."""

    call_id: str
    content: Any
    is_error: bool = False


class SubmitToolResults(ChatCommand):
    """submit_tool_results."""

    results: Annotated[list[ToolResultIn], Field(min_length=1)]
    turn_id: UUID | None = None


class Approve(ChatCommand):
    """approve, deny."""

    call_ids: Annotated[list[str], Field(min_length=1)] | None = None
    """Those calls; all that wait for approval, if it does not say."""
    reason: Annotated[str, Field(max_length=10_000)] | None = None
    """The model reads it."""
    turn_id: UUID | None = None


class SetTitle(ChatCommand):
    """set_title."""

    title: Title


class SetLabels(ChatCommand):
    """set_labels."""

    labels: Annotated[dict[str, str | None], Field(min_length=1)]
    """Those to set; None removes one."""


class SetBudget(ChatCommand):
    """set_budget."""

    budget: BudgetIn


class GetUsage(Request):
    """get_usage."""

    owner: str
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None


class ListChats(Request):
    """list_chats."""

    owner: str
    status: Status | None = None
    labels: dict[str, str] = {}
    archived: bool | None = False
    """None: archived ones and others."""
    parent_id: UUID | None = None
    """Only the children of this chat."""
    root_id: UUID | None = None
    """Only this chat and all below it."""
    roots: bool = False
    """Only chats that are nobody's children."""
    title: Annotated[str, Field(max_length=MOST_TITLE)] | None = None
    """Only those with this in their title, whether written large or small."""
    before: UUID | None = None
    limit: Annotated[int, Field(gt=0, le=200)] = 50


class GetSteps(OneChat):
    """get_steps."""

    before: int | None = None
    limit: Annotated[int, Field(gt=0, le=200)] = 100


class GetMessages(OneChat):
    """get_messages."""

    after: int = 0
    before: int | None = None
    newest_first: bool | None = None
    """If it does not say: with `before`, newest first, otherwise oldest first."""
    limit: Annotated[int, Field(gt=0, le=200)] = 100


R = TypeVar("R", bound=Request)


def check(kind: type[R], arguments: Mapping[str, Any]) -> R:
    """Build a request, or say which field is wrong."""
    try:
        return kind.model_validate(dict(arguments))
    except ValidationError as error:
        raise Rejected("The request does not fit", _say(error.errors())) from None


def _say(errors: Sequence[Any]) -> str:
    def one(error: Any) -> str:
        where = ".".join(str(step) for step in error["loc"]) or "the request"
        return f"{where}: {error['msg']}"

    return "; ".join(one(error) for error in errors[:5])
