"""What the front-door tasks take, as values that check themselves.

Shared by the client (which checks before it sends) and the tasks (which trust nobody). A request
that does not fit becomes a `Rejected` that names the field.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from rejoinder.core.errors import Rejected
from rejoinder.core.messages import WhenBusy
from rejoinder.core.state import Status

Content = Annotated[
    list[dict[str, Any]],
    BeforeValidator(lambda v: [{"type": "text", "text": v}] if isinstance(v, str) else v),
    Field(min_length=1, description="a text, or a list of parts"),
]
Key = Annotated[str, Field(min_length=1, max_length=255)] | None


class Request(BaseModel):
    """The arguments of one front-door task."""

    model_config = ConfigDict(extra="forbid")


class OptionsIn(Request):
    """How to ask the model; what is left out is the provider's default."""

    max_tokens: Annotated[int, Field(gt=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    thinking: bool | int | str | dict[str, Any] | None = None
    effort: str | None = None
    tools: list[str] | None = None
    """The tools this chat may use; all that the workers know, if it does not say."""
    extra: dict[str, Any] = {}


class CreateChat(Request):
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
    key: Key = None


class OneChat(Request):
    """interrupt, retry, archive, unarchive, get_chat."""

    chat_id: UUID


class Interrupt(OneChat):
    """interrupt."""

    turn_id: UUID | None = None
    children: bool = True


class SendMessage(OneChat):
    """send_message."""

    content: Content
    when_busy: WhenBusy = WhenBusy.QUEUE
    model: str | None = None
    key: Key = None


class EditMessage(OneChat):
    """edit_message."""

    message_id: int
    content: Content
    model: str | None = None


class QueuedMessage(OneChat):
    """promote_queued, delete_queued."""

    queued_id: int


class ToolResultIn(Request):
    """One result from outside."""

    call_id: str
    content: Any
    is_error: bool = False


class SubmitToolResults(OneChat):
    """submit_tool_results."""

    results: Annotated[list[ToolResultIn], Field(min_length=1)]
    turn_id: UUID | None = None


class ListChats(Request):
    """list_chats."""

    owner: str
    status: Status | None = None
    labels: dict[str, str] = {}
    archived: bool = False
    before: UUID | None = None
    limit: Annotated[int, Field(gt=0, le=200)] = 50


class GetMessages(OneChat):
    """get_messages."""

    after: int = 0
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
