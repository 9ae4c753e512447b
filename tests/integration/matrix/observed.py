"""Holds the rows after a transition, and its Effects, against the outcome that was expected.

The first half says what changed in words; the second half checks what follows from those words for
every column, by rules that hold for all transitions alike (versions, leases, clocks, turns).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from rejoinder.core import parts
from rejoinder.core.effects import Dispatch, Effects, EventKind, Fence, Hint, TurnEnd
from rejoinder.core.messages import TurnState
from rejoinder.core.parts import ToolCall, ToolResult
from rejoinder.core.state import AT_REST, BUSY, LEASED, PARKED, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.chats import World
    from tests.integration.matrix.expected import Outcome

REASONS = {
    "The user stopped the turn": "interrupted",
    "The user went on": "superseded",
    "No answer came": "timed out",
    "The worker stopped": "unknown",
    "The user did not allow": "denied",
}
GAP = timedelta(seconds=10)
DUE_GAP = timedelta(seconds=2)
SLACK = timedelta(seconds=5)
UNTOUCHED = ("owner", "parent_id", "root_id", "model", "options", "created_at")

Row = dict[str, Any]


@dataclass
class Rows:
    """Everything the tables say about the one chat of this test."""

    chat: Row
    turns: dict[UUID, Row]
    messages: dict[int, Row]
    queue: list[Row]
    calls: list[Row]
    all: dict[str, list[Row]]

    @classmethod
    def of(cls, world: World) -> Rows:
        every = world.dump()
        (chat,) = every["chats"]
        return cls(
            chat,
            {row["id"]: row for row in every["turns"]},
            {row["id"]: row for row in every["messages"]},
            sorted(every["queued_messages"], key=lambda row: row["position"]),
            every["tool_calls"],
            every,
        )

    @property
    def queue_words(self) -> tuple[str, ...]:
        return tuple(parts.text_of(parts.load(row["parts"])) for row in self.queue)

    @property
    def call_words(self) -> tuple[str, ...]:
        return tuple(f"{c['state']}{' settled' if c['settled'] else ''}" for c in self.calls)


def in_words(message: Row) -> str:
    """One message, as the expectations write it."""
    said = []
    for part in parts.load(message["parts"]):
        match part:
            case ToolCall():
                said.append(f"[{part.call_id}]")
            case ToolResult(is_error=False):
                said.append(f"{part.call_id}={part.content}")
            case ToolResult(content=str(content)):
                (reason,) = [word for start, word in REASONS.items() if content.startswith(start)]
                started = ", started" if "It had started" in content else ""
                said.append(f"{part.call_id}!{reason}{started}")
            case _:
                said.append(parts.text_of([part]))
    return f"{message['role']}: {' '.join(said)}"


def check(before: Rows, after: Rows, effects: Effects | None, expected: Outcome) -> None:
    """Assert every effect of a transition that changed something (a claim has no Effects)."""
    _check_status(before, after, expected)
    _check_versions(before, after, expected)
    _check_history(before, after, expected)
    _check_turns(before, after, expected)
    if effects is not None:
        _check_effects(before, after, effects, expected)


def _check_status(before: Rows, after: Rows, expected: Outcome) -> None:
    was, chat = before.chat, after.chat
    status = Status(chat["status"])
    assert status is expected.status
    assert chat["archived"] is expected.archived
    assert chat["woken"] is expected.woken
    assert (chat["attempt"], chat["crashes"]) == (expected.attempt, expected.crashes)
    assert (chat["retry_state"] is not None) == (expected.attempt > 0)
    assert [chat[column] for column in UNTOUCHED] == [was[column] for column in UNTOUCHED]
    assert (chat["labels"] != was["labels"]) is (EventKind.LABELS in expected.also)
    assert (chat["lease_id"] is not None) == (chat["worker_id"] is not None) == (status in LEASED)
    if status in LEASED and was["status"] in LEASED:
        assert (chat["lease_id"], chat["worker_id"]) == (was["lease_id"], was["worker_id"])
    assert (chat["last_error"] is not None) == (status is Status.ERROR)
    assert (chat["deadline"] is not None) == (status in PARKED)
    if status is was["status"]:
        assert chat["last_error"] == was["last_error"]
        assert chat["deadline"] == was["deadline"]
    elif status in PARKED:
        assert _near(chat["deadline"] - chat["updated_at"], 300)
    elif status is Status.ERROR:
        assert chat["last_error"]["kind"] == "generic"
    _check_clocks(was, chat, expected)


def _check_clocks(was: Row, chat: Row, expected: Outcome) -> None:
    assert chat["updated_at"] > was["updated_at"]
    if expected.dispatched:
        assert chat["dispatches"] == 1
        assert (chat["run_after"] is not None) == (expected.delay > 0)
        assert _near((chat["run_after"] or chat["updated_at"]) - chat["updated_at"], expected.delay)
        due = chat["run_after"]
        assert chat["redispatch_at"] == (due + DUE_GAP if due else chat["updated_at"] + GAP)
    elif expected.status is Status.PENDING:
        for column in ("run_after", "dispatches", "redispatch_at"):
            assert chat[column] == was[column], "its message is on the way already"
    else:
        assert (chat["run_after"], chat["dispatches"], chat["redispatch_at"]) == (None, 0, None)


def _check_versions(before: Rows, after: Rows, expected: Outcome) -> None:
    version = before.chat["snapshot_version"] + 1
    assert after.chat["snapshot_version"] == version
    for column, changed in (
        ("history_version", before.messages != after.messages),
        ("queue_version", _queue_moved(before, after, expected)),
    ):
        assert after.chat[column] == (version if changed else before.chat[column]), column
    assert after.chat["queue_length"] == len(after.queue)


def _queue_moved(before: Rows, after: Rows, expected: Outcome) -> bool:
    return before.queue != after.queue or expected.through_queue


def _check_history(before: Rows, after: Rows, expected: Outcome) -> None:
    version = after.chat["snapshot_version"]
    for message_id, row in before.messages.items():
        gone = {"deleted": True, "revision": version} if expected.deleted else {}
        assert after.messages[message_id] == {**row, **gone}
    new = [row for message_id, row in after.messages.items() if message_id not in before.messages]
    assert tuple(map(in_words, new)) == expected.history
    assert all(row["id"] > max(before.messages) for row in new), "the id is the order"
    assert all(row["revision"] == version and not row["deleted"] for row in new)
    for row in new:
        own = row["role"] == "user" and not row["compressed"]
        assert row["turn_id"] == (after if own else before).chat["turn_id"]
    assert after.queue_words == expected.queue
    assert after.call_words == expected.calls
    for call in after.calls:
        assert (call["result"] is not None) == (call["state"] in ("finished", "unknown"))


def _check_turns(before: Rows, after: Rows, expected: Outcome) -> None:
    opened = [row["id"] for row in after.turns.values() if row["state"] == "open"]
    assert opened == ([after.chat["turn_id"]] if expected.status in BUSY else [])
    was_open = before.chat["turn_id"]
    if was_open is not None:
        turn = after.turns[was_open]
        assert turn["state"] == (expected.ended or "open")
        assert turn["steps"] == before.turns[was_open]["steps"] + expected.steps
        assert (turn["ended_at"] is None) == (expected.ended is None)
        assert turn["answer_id"] == _answer(after, was_open, expected.ended)
        assert turn["error"] == (after.chat["last_error"] if expected.ended == "failed" else None)
    if expected.opened is None:
        assert after.chat["turn_id"] in (was_open, None)
    else:
        turn = after.turns[after.chat["turn_id"]]
        assert turn["id"] != was_open
        assert turn["kind"] == expected.opened
        says = turn["message_id"]
        assert (says is None) == (expected.opened != "message")
        assert says is None or says == max(after.messages)
        assert before.queue == [] or says is None or expected.deleted or turn["id"] in before.turns
    assert {row["turn_id"] for row in after.queue} == {
        row["id"] for row in after.turns.values() if row["state"] == "queued"
    }
    left = {row["turn_id"] for row in before.queue} - {row["turn_id"] for row in after.queue}
    states = sorted(after.turns[turn_id]["state"] for turn_id in left)
    promoted = ["open"] if after.chat["turn_id"] in left else []
    assert states == ["cancelled"] * expected.cancelled + promoted


def _answer(after: Rows, turn_id: UUID, ended: str | None) -> int | None:
    said = [
        row["id"]
        for row in after.messages.values()
        if row["turn_id"] == turn_id and row["role"] == "assistant" and not row["deleted"]
    ]
    return max(said) if said and ended in ("finished", "interrupted") else None


def _check_effects(before: Rows, after: Rows, effects: Effects, expected: Outcome) -> None:
    was, chat = before.chat, after.chat
    new = [message_id for message_id in after.messages if message_id not in before.messages]
    assert effects.changed
    assert (effects.chat_id, effects.status) == (chat["id"], chat["status"])
    assert (effects.snapshot_version, effects.history_version, effects.queue_version) == (
        chat["snapshot_version"],
        chat["history_version"],
        chat["queue_version"],
    )
    assert effects.message_ids == tuple(new)
    lease = chat["lease_id"]
    assert effects.fence == (Fence(chat["id"], lease, chat["history_version"]) if lease else None)
    wait = chat["run_after"] - chat["updated_at"] if chat["run_after"] else timedelta(0)
    doorbell = Dispatch(chat["id"], chat["turn_id"], chat["step_id"], wait.total_seconds())
    assert effects.dispatch == (doorbell if expected.dispatched else None)
    assert effects.abandoned == expected.abandoned
    assert effects.wake is None
    assert effects.hints == (
        (Hint(was["worker_id"], chat["id"], was["lease_id"], expected.hint),)
        if expected.hint
        else ()
    )
    _check_caller(after, effects, expected)
    _check_events(before, after, effects, expected)
    _check_ends(before, after, effects)


def _check_caller(after: Rows, effects: Effects, expected: Outcome) -> None:
    """The caller learns where its own message is: in the queue, or in an open turn."""
    mine = [
        row for row in after.queue if parts.text_of(parts.load(row["parts"])) == expected.answers
    ]
    if mine:
        assert effects.turn_id == mine[0]["turn_id"]
        assert effects.queued_id == (mine[0]["id"] if expected.answers == "new" else None)
    else:
        assert effects.turn_id == after.chat["turn_id"]
        assert effects.queued_id is None


SEEN = [
    "status",
    "turn_id",
    "archived",
    "model",
    "action",
    "deadline",
    "run_after",
    "attempt",
    "retry_state",
    "last_error",
]


def _status_told(was: Row, chat: Row) -> bool:
    return any(was[column] != chat[column] for column in SEEN)


def _check_events(  # noqa: C901  # one case per kind
    before: Rows, after: Rows, effects: Effects, expected: Outcome
) -> None:
    entered_error = expected.status is Status.ERROR and before.chat["status"] != "error"
    kinds = [
        *expected.also,
        *(EventKind.MESSAGE for _ in expected.history),
        *([EventKind.QUEUE] if _queue_moved(before, after, expected) else []),
        *([EventKind.STATUS] if _status_told(before.chat, after.chat) else []),
        *([EventKind.ERROR] if entered_error else []),
    ]
    assert sorted(event.kind for event in effects.events) == sorted(kinds)
    told = [event.data["id"] for event in effects.events if event.kind is EventKind.MESSAGE]
    assert tuple(told) == effects.message_ids, "messages are told in the order of history"
    for event in effects.events:
        match event.kind:
            case EventKind.MESSAGE:
                assert event.data["parts"] == after.messages[event.data["id"]]["parts"]  # type: ignore[index]
            case EventKind.QUEUE:
                assert event.data["ids"] == [row["id"] for row in after.queue]
                assert event.data["length"] == len(after.queue)
            case EventKind.STATUS:
                _check_told(event.data, before.chat, after.chat)
            case EventKind.ERROR:
                assert event.data == after.chat["last_error"]
            case EventKind.HISTORY_RESET:
                assert event is effects.events[0], "readers drop history before they add to it"
                assert event.data == {"from": min(after.messages)}
            case EventKind.RETRY:
                assert event.data["attempt"] == expected.attempt
            case EventKind.ACTION_REQUIRED:
                assert event.data["kind"] == after.chat["action"]
                _check_asked(event.data)
            case EventKind.COMPACTION:
                assert event.data == {"state": "finished", "source": "automatic"}
            case EventKind.TITLE:
                assert event.data["title"] == after.chat["title"] == "A name"
            case EventKind.BUDGET:
                assert event.data["tokens"] == after.chat["budget_tokens"] == 1000
            case EventKind.LABELS:
                assert event.data["labels"] == after.chat["labels"] == {"team": "blue"}


def _check_told(data: Mapping[str, Any], was: Row, chat: Row) -> None:
    """The status and its turn, always, and whatever else of it has changed."""
    changed = {column for column in SEEN if was[column] != chat[column]}
    assert set(data) == {"status", "turn_id", *changed}
    for column, value in data.items():
        now = chat[column]
        told = now.isoformat() if isinstance(now, datetime) else now
        assert value == (str(told) if isinstance(told, UUID) else told)


def _check_asked(data: Mapping[str, Any]) -> None:
    if data["kind"] == "budget":
        assert data["tokens"] == 1000
        return
    (asked,) = data["calls"]
    assert (asked["call_id"], asked["name"], asked["approval"]) == ("call-2", "look_up", False)
    assert asked["arguments"] == {"q": "call-2"}
    assert asked["deadline"]


def _check_ends(before: Rows, after: Rows, effects: Effects) -> None:
    """Whoever waits for a turn's result is told, once, and exactly what the row says."""
    ends = {}
    for turn_id, row in after.turns.items():
        if row["ended_at"] is not None and before.turns[turn_id]["ended_at"] is None:
            answer = after.messages.get(row["answer_id"])
            text = parts.text_of(parts.load(answer["parts"])) if answer else None
            state = TurnState(row["state"])
            ends[turn_id] = TurnEnd(turn_id, state, row["answer_id"], text, row["error"])
    assert {end.turn_id: end for end in effects.ended} == ends
    assert len(effects.ended) == len(ends)


def check_unchanged(before: Rows, after: Rows, effects: Effects) -> None:
    """Assert that a polite no-op wrote nothing and has nothing to tell."""
    assert after.all == before.all
    chat = before.chat
    lease = chat["lease_id"]
    assert effects == Effects(
        chat_id=chat["id"],
        status=Status(chat["status"]),
        snapshot_version=chat["snapshot_version"],
        history_version=chat["history_version"],
        queue_version=chat["queue_version"],
        changed=False,
        turn_id=chat["turn_id"],
        fence=Fence(chat["id"], lease, chat["history_version"]) if lease else None,
    )
    assert (effects.status in AT_REST) == (effects.turn_id is None)


def _near(gap: timedelta, seconds: float) -> bool:
    return abs(gap - timedelta(seconds=seconds)) < SLACK
