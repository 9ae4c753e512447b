"""A chat as a reader sees it, rebuilt from its events alone: for web pages and other frontends.

`ChatView.apply` takes the events of `Client.follow` (or of `Client.stream`, after `load` with what
stands in the rows) one by one; afterwards the view says what `get_chat` and `get_messages` say.
Events of one chat come from several processes and may overtake each other: every change carries the
chat's version, so that a late one never undoes a newer one, and one that comes twice does nothing.
It asks nobody and keeps no connection.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rejoinder.core.effects import EventKind
from rejoinder.core.messages import Visibility
from rejoinder.core.state import BUSY, Status

PART, GAP, PREVIEW_RESET = "part", "gap", "preview_reset"
WRITING = frozenset({Status.RUNNING, Status.INTERRUPTING})
"""Live parts from before a change to one of these still count."""
FIELDS: Mapping[str, Any] = {
    "status": None,
    "turn_id": None,
    "archived": False,
    "model": "",
    "title": None,
    "labels": {},
    "action": None,
    "deadline": None,
    "run_after": None,
    "attempt": 0,
    "retry_state": None,
    "last_error": None,
}
"""What a `status` event may tell, as `get_chat` names it, and what holds until it does."""
_NOT_SHOWN = ("version", "visibility")


class Told(Protocol):
    """An event: of `Client.follow`, or anything with a kind and data."""

    @property
    def kind(self) -> str:
        """Its kind."""

    @property
    def data(self) -> Mapping[str, Any]:
        """What it says."""


@dataclass
class LivePart:
    """A part of the answer that is being written."""

    of: str
    """text, reasoning or tool_call."""
    text: str = ""
    """What has come so far; the arguments of a tool call as JSON, perhaps incomplete."""
    call_id: str | None = None
    name: str | None = None
    done: bool = False


@dataclass
class _Draft:
    """One attempt at an answer, as far as it came without a hole."""

    key: tuple[int, int] = (0, 0)
    seq: int = 0
    parts: dict[int, LivePart] = field(default_factory=dict)


class ChatView:
    """One chat, as of the events so far."""

    def __init__(self) -> None:
        """Begin with nothing: apply all events, or `load` first."""
        self.version = 0
        """The newest version of the chat that was heard of."""
        self._floor = 0  # everything up to this version was loaded
        self._values: dict[str, tuple[int, Any]] = {}
        self._messages: dict[int, tuple[int, Mapping[str, Any]]] = {}
        self._resets: list[tuple[int, int]] = []
        self._queued: dict[int, Mapping[str, Any]] = {}
        self._draft = _Draft()

    def load(self, chat: Mapping[str, Any], messages: Iterable[Mapping[str, Any]]) -> None:
        """Begin again with what `get_chat` and then all pages of `get_messages` gave.

        Take the cursor before you read them, then apply the events after it.
        """
        self.__init__()  # type: ignore[misc]  # all of it is new
        self.version = self._floor = version = chat["version"]
        for name in FIELDS:
            self._set(name, chat.get(name), version)
        self._set_queue([entry["id"] for entry in chat["queue"]], chat["queue"], version)
        self._set("asked", chat.get("asked"), version)
        self._messages = {message["id"]: (version, message) for message in messages}

    def apply(self, event: Told) -> None:
        """Take one event in."""
        data = event.data
        version = data.get("version", self.version)
        self.version = max(self.version, version)
        match event.kind:
            case EventKind.MESSAGE:
                self._add(data, version)
            case EventKind.HISTORY_RESET:
                self._reset(data["from"], version)
            case EventKind.STATUS:
                self._change(data, version)
            case EventKind.QUEUE if "ids" in data:
                self._set_queue(data["ids"], data["added"], version)
            case EventKind.ACTION_REQUIRED:
                asked = {name: value for name, value in data.items() if name != "version"}
                self._set("asked", asked, version)
            case EventKind.TITLE:
                self._set("title", data["title"], version)
            case EventKind.LABELS:
                self._set("labels", data["labels"], version)
            case "part":
                self._write(data)
            case "preview_reset" | "gap":
                self._draft = _Draft()
            case _:
                pass  # told in other ways too (retry, error), or not a part of the view

    # -- what it shows ------------------------------------------------------------------------

    @property
    def status(self) -> str | None:
        """The chat's status; None before the first event."""
        status: str | None = self._value("status")
        return status

    @property
    def busy(self) -> bool:
        """Whether a turn is open."""
        return self.status in BUSY

    @property
    def state(self) -> dict[str, Any]:
        """Status, turn, model, title, error and so on: as `get_chat` names them."""
        return {name: self._value(name) for name in FIELDS}

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages, exactly as `get_messages` gives them, oldest first."""
        return [
            {name: value for name, value in said.items() if name not in _NOT_SHOWN}
            for _, (_, said) in sorted(self._messages.items())
            if said.get("visibility") != Visibility.MODEL
        ]

    @property
    def queue(self) -> list[Mapping[str, Any]]:
        """The messages that wait, as `get_chat` gives them, the next one first."""
        order: list[int] = self._value("queue") or []
        return [self._queued[queued_id] for queued_id in order if queued_id in self._queued]

    @property
    def asked(self) -> Mapping[str, Any] | None:
        """What somebody outside has to do, if the chat waits for that."""
        since, _ = self._values.get("status", (0, None))
        version, asked = self._values.get("asked", (0, None))
        return asked if self.status == Status.REQUIRES_ACTION and version >= since else None

    @property
    def live(self) -> list[LivePart]:
        """The parts of the answer that is being written; empty once it is stored."""
        return [part for _, part in sorted(self._draft.parts.items())]

    @property
    def live_text(self) -> str:
        """The words of the answer that is being written."""
        return "".join(part.text for part in self.live if part.of == "text")

    # -- how it gets there --------------------------------------------------------------------

    def _value(self, name: str) -> Any:
        return self._values.get(name, (0, FIELDS.get(name)))[1]

    def _set(self, name: str, value: Any, version: int) -> bool:
        """Take a newer value in; say whether it was newer."""
        if version < self._values.get(name, (0, None))[0]:
            return False
        self._values[name] = (version, value)
        return True

    def _add(self, message: Mapping[str, Any], version: int) -> None:
        if version > self._draft.key[0]:
            self._draft = _Draft()  # it is stored now, or void
        message_id = message["id"]
        known = self._messages.get(message_id)
        if known is None and version <= self._floor:
            return  # it was gone when the rows were read
        if any(message_id >= first and version < at for at, first in self._resets):
            return
        if known is None or version >= known[0]:
            self._messages[message_id] = (version, message)

    def _reset(self, first: int, version: int) -> None:
        if version <= self._floor:
            return
        self._draft = _Draft()
        self._resets.append((version, first))
        self._messages = {
            message_id: (at, said)
            for message_id, (at, said) in self._messages.items()
            if message_id < first or at >= version
        }

    def _change(self, data: Mapping[str, Any], version: int) -> None:
        for name in FIELDS:
            if name in data:
                newer = self._set(name, data[name], version)
                if newer and name == "status" and data[name] not in WRITING:
                    self._draft = _Draft()

    def _set_queue(
        self, ids: Iterable[int], added: Iterable[Mapping[str, Any]], version: int
    ) -> None:
        self._set("queue", list(ids), version)
        known = {**self._queued, **{entry["id"]: entry for entry in added}}
        self._queued = {each: known[each] for each in self._value("queue") if each in known}

    def _write(self, part: Mapping[str, Any]) -> None:
        key = (part["history_version"], part["attempt"])
        draft = self._draft
        if part["seq"] == part["n"] and key >= draft.key:
            draft = self._draft = _Draft(key)  # also of the same attempt: another worker has it
        elif key != draft.key or part["seq"] - part["n"] != draft.seq:
            return  # a hole, or the words of a worker that has lost the chat
        draft.seq = part["seq"]
        if part["of"] == "end":
            if part["index"] in draft.parts:
                draft.parts[part["index"]].done = True
            return
        live = draft.parts.setdefault(
            part["index"], LivePart(part["of"], "", part.get("call_id"), part.get("name"))
        )
        live.text += part["text"]
