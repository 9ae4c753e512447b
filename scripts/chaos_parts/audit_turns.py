"""Rules about single messages and turns: nothing lost, doubled, out of order or ended for nothing.

What a driver knows for certain must stand in the rows. What it does not know (no answer came) may
stand there or not, but at most once. A turn that did not finish needs somebody who asked for that.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rejoinder.core.limits import MAX_CRASHES
from scripts.chaos_parts.evidence import Evidence, Finding
from scripts.chaos_parts.journal import Asked, Journal, Outcome, Stop
from scripts.chaos_parts.picture import Message, Turn
from scripts.chaos_parts.recovery import DEATHS
from scripts.chaos_parts.schedule import Kind

CRASHING = {*DEATHS, Kind.DATABASE_RESTART}
"""Faults after which an owner can be taken for dead."""


def accepted_messages_stand_once_and_in_order(evidence: Evidence) -> Iterator[Finding]:
    """Every accepted message is in history exactly once, behind those accepted before it."""
    said = _by_plan(evidence)
    turns = {turn.id: turn for turn in evidence.picture.turns}
    last: dict[str, int] = defaultdict(int)
    for asked in sorted(evidence.journal.asked, key=lambda each: each.answered_at):
        stands = said.get(asked.plan.id, [])
        where = f"{asked.plan.id} ({asked.mode}, {asked.outcome})"
        if len(stands) > 1:
            yield Finding("message doubled", where, asked.chat_id)
        if asked.outcome is Outcome.REFUSED and stands:
            yield Finding("refused message stands", where, asked.chat_id)
        if asked.outcome is not Outcome.ACCEPTED:
            continue
        turn = turns.get(str(asked.turn_id))
        if turn is None:
            yield Finding("turn lost", f"{where}: turn {asked.turn_id}", asked.chat_id)
        elif not stands and not (turn.state == "cancelled" and turn.message_id is None):
            yield Finding("message lost", f"{where}: turn is {turn.state}", asked.chat_id)
        elif stands:
            yield from _in_place(asked, turn, stands[0], last, where)


def _in_place(
    asked: Asked, turn: Turn, message: Message, last: dict[str, int], where: str
) -> Iterator[Finding]:
    if message.id != turn.message_id or message.chat_id != asked.chat_id:
        yield Finding("message of another turn", where, asked.chat_id)
    if message.id < last[message.chat_id]:
        yield Finding("message out of order", where, asked.chat_id)
    last[message.chat_id] = max(last[message.chat_id], message.id)


def nobody_spoke_but_the_drivers(evidence: Evidence) -> Iterator[Finding]:
    """Every message of a user is one that was sent; one that is deleted was edited away."""
    sent = {asked.plan.id for asked in evidence.journal.asked}
    for message in evidence.picture.messages:
        if message.role != "user":
            continue
        if message.plan is None or message.plan.id not in sent:
            yield Finding("message that nobody sent", f"message {message.id}", message.chat_id)
        if message.deleted and not any(
            edit.edits is not None and edit.edits <= message.id
            for edit in _edits(evidence.journal, message.chat_id)
        ):
            yield Finding("message deleted for nothing", f"message {message.id}", message.chat_id)


def turns_ended_as_they_should(evidence: Evidence) -> Iterator[Finding]:
    """A turn is finished, or interrupted or cancelled by somebody who asked for it."""
    by_chat: dict[str, list[Turn]] = defaultdict(list)
    for turn in evidence.picture.turns:
        by_chat[turn.chat_id].append(turn)
    for chat_id, turns in by_chat.items():
        yield from _explained(evidence.journal, chat_id, turns)


def _explained(journal: Journal, chat_id: str, turns: Sequence[Turn]) -> Iterator[Finding]:
    stops = [stop for stop in journal.stops if stop.chat_id == chat_id]
    edits = _edits(journal, chat_id)
    hits = sum(chat_id in fault.hit for fault in journal.faults if fault.kind in CRASHING)
    for turn in sorted(turns, key=lambda each: each.ended_at or 0.0):
        ended = turn.ended_at
        if ended is None:
            yield Finding("turn without an end", f"turn {turn.id} is {turn.state}", chat_id)
        elif turn.state == "failed":
            kind = (turn.error or {}).get("kind")
            if kind != "worker_lost" or hits < MAX_CRASHES:
                yield Finding("turn failed", f"turn {turn.id}: {turn.error}", chat_id)
        elif turn.state == "interrupted":
            stop = _stop_of(turn, ended, stops)
            if stop is None:
                yield Finding("turn interrupted by nobody", f"turn {turn.id}", chat_id)
            else:
                stops.remove(stop)
        elif turn.state == "cancelled" and not any(e.asked_at <= ended for e in edits):
            yield Finding("turn cancelled by nobody", f"turn {turn.id}", chat_id)


def _stop_of(turn: Turn, ended: float, stops: Sequence[Stop]) -> Stop | None:
    """The stop that ended this turn: one that named it, else one that named none. Each ends one."""
    named = [stop for stop in stops if stop.turn_id == turn.id and stop.at <= ended]
    others = [stop for stop in stops if stop.turn_id is None and stop.at <= ended]
    return next(iter([*named, *others]), None)


def answers_are_right_and_single(evidence: Evidence) -> Iterator[Finding]:
    """A finished turn has its one right answer; no turn has two."""
    picture = evidence.picture
    messages = {(m.chat_id, m.id): m for m in picture.messages}
    answers: dict[str, list[Message]] = defaultdict(list)
    for message in picture.messages:
        if message.role == "assistant" and message.turn_id and not message.call_ids:
            answers[message.turn_id].append(message)
    for turn in picture.turns:
        asked = messages.get((turn.chat_id, turn.message_id or 0))
        plan = asked.plan if asked else None
        if plan is None:
            continue
        right = [m for m in answers[turn.id] if m.words == plan.answer]
        if len(right) > 1 or (turn.state == "finished" and len(answers[turn.id]) > 1):
            words = f"{plan.id}: messages {[m.id for m in answers[turn.id]]}"
            yield Finding("answered twice", words, turn.chat_id)
        if turn.state == "finished" and [m.id for m in right] != [turn.answer_id]:
            given = messages.get((turn.chat_id, turn.answer_id or 0))
            words = f"{plan.id}: {given.words if given else None!r}"
            yield Finding("wrong answer", words, turn.chat_id)


def _by_plan(evidence: Evidence) -> dict[str, list[Message]]:
    found: dict[str, list[Message]] = defaultdict(list)
    for message in evidence.picture.messages:
        if message.plan is not None:
            found[message.plan.id].append(message)
    return found


def _edits(journal: Journal, chat_id: str) -> list[Asked]:
    return [
        asked
        for asked in journal.asked
        if asked.edits is not None
        and asked.chat_id == chat_id
        and asked.outcome is not Outcome.REFUSED
    ]
