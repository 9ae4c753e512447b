"""What a chat was told about itself when it was made: how to ask, and which tools, and how far.

Stored as one JSON object (checked by `rejoinder/requests.py`, never trusted blindly here: another
release may have written it). What is missing is the default.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum

from rejoinder.core.messages import Default
from rejoinder.core.model import Options, ToolSpec
from rejoinder.core.parts import Json


class ApprovalPolicy(StrEnum):
    """Which calls of a chat a person has to allow."""

    DECLARED = "declared"  # of those tools that say so
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True)
class ClientTool:
    """A tool that the app answers itself."""

    spec: ToolSpec
    seconds: float | None = None
    default: Default | None = None


@dataclass(frozen=True)
class ChatOptions:
    """Everything that a chat can be told."""

    model: Options = field(default_factory=Options)
    tools: frozenset[str] | None = None
    """The workers' tools that it may use; None: all."""
    client_tools: tuple[ClientTool, ...] = ()
    approval: ApprovalPolicy = ApprovalPolicy.DECLARED
    approve: frozenset[str] = frozenset()
    """Tools that need approval here, whatever they say."""
    agents: bool = False
    """Whether it may have child chats work for it."""
    compact_at: int | None = None
    """Percent of the model's context; 100: never."""
    compaction_model: str | None = None
    """Who writes summaries, as `provider:model`; None: the workers' setting."""
    park_seconds: float | None = None

    @classmethod
    def load(cls, stored: Mapping[str, Json]) -> "ChatOptions":
        """Read the stored form; what this release does not know is left alone."""
        known = {each.name for each in fields(Options)}
        asked = {name: value for name, value in stored.items() if name in known}
        return cls(
            model=Options(**asked),  # type: ignore[arg-type]  # checked when it was stored
            tools=_names(stored.get("tools")),
            client_tools=tuple(_client_tools(stored.get("client_tools"))),
            approval=ApprovalPolicy(str(stored.get("approval", ApprovalPolicy.DECLARED))),
            approve=_names(stored.get("approve")) or frozenset(),
            agents=stored.get("agents") is True,
            compact_at=_number(stored.get("compact_at")),
            compaction_model=_name(stored.get("compaction_model")),
            park_seconds=_number(stored.get("park_seconds")),
        )


def _names(value: Json) -> frozenset[str] | None:
    return frozenset(map(str, value)) if isinstance(value, list) else None


def _name(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Json) -> int | None:
    return value if isinstance(value, int | float) else None  # type: ignore[return-value]


def _client_tools(value: Json) -> list[ClientTool]:
    found = []
    for each in value if isinstance(value, list) else ():
        if not isinstance(each, Mapping):
            continue
        schema = each.get("schema")
        spec = ToolSpec(
            str(each.get("name")),
            str(each.get("description", "")),
            schema if isinstance(schema, Mapping) else {"type": "object"},
        )
        default = Default(content=each["default"]) if "default" in each else None
        found.append(ClientTool(spec, _number(each.get("seconds")), default))
    return found
