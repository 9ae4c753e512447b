"""A chat's events, told to a person: `Teller` turns them into words on a `Screen`.

It remembers what it has shown of the answer that is being written, so that a stored message is not
shown twice, an attempt that failed or whose worker died is marked as void, and whatever was not
shown live is shown when it is stored.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rejoinder.cli.asked import asked
from rejoinder.cli.calls import Call, one_line, progress_of, short
from rejoinder.cli.screen import SPIN, Screen, Style, width
from rejoinder.core.state import BUSY, Status
from rejoinder.streams import StreamEvent

SAYS: Mapping[str, str] = {
    Status.PENDING: "waiting for a worker",
    Status.RUNNING: "thinking",
    Status.INTERRUPTING: "stopping",
    Status.REQUIRES_ACTION: "waiting for an answer from outside",
    Status.SLEEPING: "asleep, until another task is done",
}
MARK_USER, MARK_THINKING, MARK_NOTE = "›", "✻", "·"  # noqa: RUF001  # a prompt's arrow
DIM = Style.DIM
VOID = "the attempt above broke off; what follows replaces it"


@dataclass
class _Draft:
    """What was shown of an answer that is not stored yet."""

    key: tuple[Any, ...] = ()
    seq: int = 0
    of: tuple[str, int] | None = None
    text: str = ""
    shown: bool = False
    calls: dict[str, Call] = field(default_factory=dict)


class Teller:
    """Tells one chat's events."""

    def __init__(
        self, screen: Screen, *, progress: bool = False, answer_with: str = "rejoinder {} CHAT"
    ) -> None:
        """Tell on this screen; `progress` gives every step of a tool a line of its own.

        `answer_with` is how a person says approve, deny or answer there.
        """
        self.status: str = ""
        self.queued = 0
        self.error: Mapping[str, Any] | None = None
        self.asked = False
        """It was told what the chat asks for."""
        self._screen = screen
        self._progress = progress
        self._answer_with = answer_with
        self._draft = _Draft()
        self._calls: dict[str, Call] = {}
        self._retry = ""
        self._summary: int | None = None
        self._begun = False

    @property
    def busy(self) -> bool:
        """Whether a turn is open."""
        return self.status in BUSY

    def tell(self, event: StreamEvent) -> None:
        """Tell one event."""
        told = getattr(self, f"_on_{event.kind}", None)
        if told is not None:
            told(event.data)
        self._screen.live(self._live())

    # -- one method per kind of event ---------------------------------------------------------

    def _on_part(self, part: Mapping[str, Any]) -> None:
        self._retry = ""
        key = (part["history_version"], part["attempt"])
        first = part["seq"] - part["n"]
        if key != self._draft.key or first < self._draft.seq:
            if self._draft.shown and key == self._draft.key:
                self._void()
            self._draft = _Draft(key)
        draft = self._draft
        draft.seq = part["seq"]
        of: tuple[str, int] | None = (part["of"], part["index"])
        match part["of"]:
            case "text" | "reasoning":
                thinking = part["of"] == "reasoning"
                if draft.of != of:
                    self._screen.fresh()
                    text = part["text"].lstrip("\n")
                    text = f"{MARK_THINKING} {text}" if thinking else text
                else:
                    text = part["text"]
                self._screen.write(text, Style.THINKING if thinking else Style.PLAIN)
                draft.shown = True
                draft.text += "" if thinking else part["text"]
            case "tool_call":
                self._screen.fresh()
                call = draft.calls.setdefault(part["call_id"], Call(part["name"]))
                call.arguments += part["text"]
            case "end":
                self._screen.fresh()
                of = None
        draft.of = of

    def _on_message(self, message: Mapping[str, Any]) -> None:
        match message["role"]:
            case "user":
                self._note_stop()
                self._screen.fresh()
                if self._begun:
                    self._screen.line("")
                text = "".join(p.get("text", "") for p in message["parts"])
                self._screen.line(f"{MARK_USER} {text}", Style.USER)
            case "assistant" if any(p.get("type") == "compaction" for p in message["parts"]):
                self._summarised(message["parts"])
            case "assistant":
                self._answer(message["parts"])
            case "tool":
                for part in message["parts"]:
                    if part.get("type") == "tool_result":
                        self._result(part)
            case _:
                return  # a system prompt is for the model
        self._begun = True

    def _on_tool(self, data: Mapping[str, Any]) -> None:
        call = self._calls.setdefault(data["call_id"], Call(data.get("name", "tool")))
        call.state = data["state"]
        if call.state == "started" and self._progress and not call.shown:
            self._screen.line(f"  → {call}", Style.DIM)
            call.shown = True
        elif call.state == "progress":
            call.progress = progress_of(data.get("data"))
            if self._progress:
                self._screen.line(f"    {call.name}: {call.progress}", Style.DIM)

    def _on_status(self, data: Mapping[str, Any]) -> None:
        if data["status"] != Status.INTERRUPTING:
            self._note_stop()
        self.status = data["status"]
        if self.status != Status.ERROR:
            self.error = None
        self.asked = False
        if self.status not in (Status.PENDING, Status.RUNNING):
            self._retry = ""
        if self.status != Status.RUNNING:
            self._summary = None
        if not self.busy:
            self._calls.clear()

    def _on_queue(self, data: Mapping[str, Any]) -> None:
        self.queued = data["length"]

    def _on_retry(self, data: Mapping[str, Any]) -> None:
        seconds = data.get("delay_ms", 0) / 1000
        many = f"{data.get('attempt', 1) + 1} of {data.get('max_attempts', '?')}"
        self._retry = f"Attempt {many} in {seconds:.1f} s"
        self._screen.line(f"↻ {data.get('message', 'It failed.')} {self._retry}", Style.WARN)

    def _on_error(self, error: Mapping[str, Any]) -> None:
        self.error = error
        self._screen.line(f"✗ {error.get('message', 'It failed.')}", Style.BAD)
        more = [
            f"{name.replace('_', ' ')}: {one_line(error[name])}"
            for name in ("kind", "detail", "status_code", "request_id")
            if error.get(name)
        ]
        self._screen.line(f"  {short('; '.join(more), 400)}", Style.DIM)

    def _on_preview_reset(self, _: Mapping[str, Any]) -> None:
        if self._draft.shown:
            self._void()
        self._draft = _Draft()

    def _on_history_reset(self, data: Mapping[str, Any]) -> None:
        self._draft = _Draft()
        if data["from"]:  # 0: all of it comes again, as was said already
            self._screen.line(f"{MARK_NOTE} an earlier message was edited:", Style.WARN)

    def _on_gap(self, _: Mapping[str, Any]) -> None:
        self._draft = _Draft()
        self._screen.line(f"{MARK_NOTE} events were missed; from the stored messages:", Style.WARN)

    def _on_action_required(self, data: Mapping[str, Any]) -> None:
        for line in asked(data, self._answer_with):
            self._screen.line(line, Style.WARN)
        self.asked = True

    def _on_compaction(self, data: Mapping[str, Any]) -> None:
        match data["state"]:
            case "started":
                self._summary = 0
                size = f", about {data['tokens_before']:,} tokens" if data["tokens_before"] else ""
                words = f"{MARK_NOTE} summarising the conversation{size}, to go on with less"
                self._screen.line(words, Style.WARN)
            case "part":
                self._summary = (self._summary or 0) + len(data["text"])
            case "failed":
                self._summary = None
                words = f"{MARK_NOTE} no summary was written: {data['message']}"
                self._screen.line(words, Style.WARN)
            case _:
                self._summary = None  # the stored message says that it is done

    # -- parts of the above -------------------------------------------------------------------

    def _note_stop(self) -> None:
        """Say once that a stop has been heeded: before the next message, or at rest."""
        if self.status == Status.INTERRUPTING:
            self.status = Status.PENDING
            self._calls.clear()
            self._screen.line(f"{MARK_NOTE} stopped; what was written stays", Style.WARN)

    def _void(self) -> None:
        self._screen.line(f"{MARK_NOTE} {VOID}", Style.WARN)

    def _answer(self, parts: list[Mapping[str, Any]]) -> None:
        text = "".join(p["text"] for p in parts if p.get("type") == "text")
        shown, self._draft = self._draft, _Draft()
        self._screen.fresh()
        if not shown.shown or not text.startswith(shown.text):
            if shown.shown:
                self._void()
            for part in parts:
                if part.get("type") == "reasoning" and part["text"].strip():
                    self._screen.line(f"{MARK_THINKING} {part['text'].strip()}", Style.THINKING)
            if text.strip():
                self._screen.line(text.strip("\n"))
        elif rest := text[len(shown.text) :]:
            self._screen.line(rest.strip("\n"))
        for part in parts:
            if part.get("type") == "tool_call":
                arguments = json.dumps(part["arguments"], ensure_ascii=False)
                self._calls[part["call_id"]] = Call(part["name"], arguments)

    def _summarised(self, parts: list[Mapping[str, Any]]) -> None:
        self._summary = None
        text = "".join(p["text"] for p in parts if p.get("type") == "text")
        self._screen.fresh()
        self._screen.line(f"{MARK_NOTE} {text}", Style.WARN)

    def _result(self, part: Mapping[str, Any]) -> None:
        call = self._calls.pop(part["call_id"], Call("tool"))
        failed = part.get("is_error", False)
        line = f"  {'✗' if failed else '✓'} {call} → {one_line(part['content'])}"
        self._screen.line(short(line, width()), Style.BAD if failed else Style.GOOD)

    def _live(self) -> list[tuple[str, Style]]:
        if not self.busy:
            return []
        calls = {**self._draft.calls, **self._calls}.values()
        lines = [
            (f"  {'✓' if call.state == 'finished' else SPIN} {call} {call.progress}".rstrip(), DIM)
            for call in calls
        ]
        says = self._retry or SAYS.get(self.status, self.status)
        if self.status == Status.RUNNING and (calls or self._draft.text):
            says = "using tools" if self._calls else "writing"
        if self._summary is not None:
            says = f"summarising, {self._summary:,} characters so far"
        queued = f", {self.queued} queued" if self.queued else ""
        return [*lines, (f"{SPIN} {says}{queued}", DIM)]
