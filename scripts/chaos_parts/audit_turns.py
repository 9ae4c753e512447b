"""Rules about single messages and turns: nothing lost, doubled, out of order or ended for nothing.

What a driver knows for certain must stand in the rows. What it does not know (no answer came) may
stand there or not, but at most once. A turn that did not finish needs somebody who asked for that.
A message that steers joins the turn that is open, if it comes in time: then both are one turn, and
the answer is to the last message that joined.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from rejoinder.core.limits import MAX_CRASHES
from scripts.chaos_parts.evidence import Evidence, Finding
from scripts.chaos_parts.journal import Asked, Journal, Outcome, Stop
from scripts.chaos_parts.picture import Message, Turn
from scripts.chaos_parts.recovery import DEATHS
from scripts.chaos_parts.schedule import Kind

CRASHING = {*DEATHS, Kind.DATABASE_RESTART}
"""Faults after which an owner can be taken for dead."""


def accepted_messages_stand_once_and_in_order(evidence: Evidence) -> Iterator[Finding]:
    """Every accepted message is in history exactly once, behind those accepted before it.

    Only a message that joined a turn may overtake others, which wait for turns of their own.
    """
    said = _by_plan(evidence)
    turns = {turn.id: turn for turn in evidence.picture.turns}
    last: dict[tuple[str, bool], int] = defaultdict(int)
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
    asked: Asked, turn: Turn, message: Message, last: dict[tuple[str, bool], int], where: str
) -> Iterator[Finding]:
    joined = turn.joined_id is not None
    if message.id != turn.message_id or message.chat_id != asked.chat_id:
        yield Finding("message of another turn", where, asked.chat_id)
    if joined and asked.mode != "steer":
        yield Finding("joined unasked", where, asked.chat_id)
    behind = last[message.chat_id, True]
    if not joined:
        behind = max(behind, last[message.chat_id, False])
    if message.id < behind:
        yield Finding("message out of order", where, asked.chat_id)
    last[message.chat_id, joined] = max(last[message.chat_id, joined], message.id)


def nobody_spoke_but_the_drivers(evidence: Evidence) -> Iterator[Finding]:
    """Every message of a user is one that was sent; one that is deleted was edited away.

    What a chat below another is told stands in the plan of the one above.
    """
    plans = [asked.plan for asked in evidence.journal.asked]
    plans += [command.plan for command in evidence.journal.commands if command.plan]
    sent = {plan.id for each in plans for plan in (each, *each.children)}
    for message in evidence.picture.messages:
        if message.role != "user" or message.compressed:
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
    parents = {chat.id: chat.parent_id for chat in evidence.picture.chats}
    for chat_id, turns in by_chat.items():
        above = _asked_above(evidence.journal, parents.get(chat_id), parents)
        yield from _explained(evidence.journal, chat_id, turns, above)


def _asked_above(
    journal: Journal, chat_id: str | None, parents: Mapping[str, str | None]
) -> list[float]:
    """When somebody asked for the end of a chat above: those below end with it."""
    found: list[float] = []
    while chat_id is not None:
        found += [stop.at for stop in journal.stops if stop.chat_id == chat_id]
        found += [edit.asked_at for edit in _edits(journal, chat_id)]
        chat_id = parents.get(chat_id)
    return found


def _explained(
    journal: Journal, chat_id: str, turns: Sequence[Turn], above: Sequence[float]
) -> Iterator[Finding]:
    stops = [stop for stop in journal.stops if stop.chat_id == chat_id]
    edits = _edits(journal, chat_id)
    hits = sum(chat_id in fault.hit for fault in journal.faults if fault.kind in CRASHING)
    joined = _joined(turns)
    for turn in sorted(turns, key=lambda each: each.ended_at or 0.0):
        ended = turn.ended_at
        if turn.joined_id is not None:
            continue  # it ends as the one that it joined
        if ended is None:
            yield Finding("turn without an end", f"turn {turn.id} is {turn.state}", chat_id)
        elif turn.state == "failed":
            kind = (turn.error or {}).get("kind")
            if kind != "worker_lost" or hits < MAX_CRASHES:
                yield Finding("turn failed", f"turn {turn.id}: {turn.error}", chat_id)
        elif turn.state == "interrupted":
            names = {turn.id, *(each.id for each in joined[turn.id])}
            stop = _stop_of(names, ended, stops)
            if stop is not None:
                stops.remove(stop)
            elif not any(at <= ended for at in above):
                yield Finding("turn interrupted by nobody", f"turn {turn.id}", chat_id)
        elif turn.state == "cancelled" and not any(e.asked_at <= ended for e in edits):
            yield Finding("turn cancelled by nobody", f"turn {turn.id}", chat_id)


def _stop_of(names: Collection[str], ended: float, stops: Sequence[Stop]) -> Stop | None:
    """The stop that ended a turn: one that named it, else one that named none. Each ends one."""
    named = [stop for stop in stops if stop.turn_id in names and stop.at <= ended]
    others = [stop for stop in stops if stop.turn_id is None and stop.at <= ended]
    return next(iter([*named, *others]), None)


def joined_turns_end_together(evidence: Evidence) -> Iterator[Finding]:
    """A message that joined a turn shares its end and its answer; it was there before that."""
    turns = {turn.id: turn for turn in evidence.picture.turns}
    for turn in evidence.picture.turns:
        if turn.joined_id is None:
            continue
        where = f"turn {turn.id} joined {turn.joined_id}"
        other = turns.get(turn.joined_id)
        if other is None or other.chat_id != turn.chat_id or other.joined_id is not None:
            yield Finding("joined nothing", where, turn.chat_id)
        elif _end(turn) != _end(other):
            yield Finding("joined turns part", f"{where}: {_end(other)}", turn.chat_id)
        elif turn.answer_id is not None and (turn.message_id or 0) > turn.answer_id:
            late = turn.state == "finished"  # what a stopped turn had said may be older
            yield from [Finding("joined after the answer", where, turn.chat_id)] * late


def _end(turn: Turn) -> tuple[object, ...]:
    return turn.state, turn.ended_at, turn.answer_id, turn.error


def answers_are_right_and_single(evidence: Evidence) -> Iterator[Finding]:
    """A finished turn has one answer: that to the last message before it, which is the turn's."""
    picture = evidence.picture
    answers: dict[str, list[Message]] = defaultdict(list)
    for message in picture.messages:
        if message.role == "assistant" and message.turn_id and not message.call_ids:
            answers[message.turn_id].append(message)
    joined = _joined(picture.turns)
    by_chat = picture.by_chat()
    for turn in picture.turns:
        if turn.joined_id is not None or turn.kind == "compaction":
            continue
        given = [m for m in answers[turn.id] if not m.compressed]
        if turn.state == "finished":
            owners = [turn, *joined[turn.id]]
            yield from _answered(turn, owners, given, by_chat[turn.chat_id])
        elif any(count > 1 for count in Counter(_whole(given)).values()):
            words = f"turn {turn.id}: messages {[m.id for m in given]}"
            yield Finding("answered twice", words, turn.chat_id)


def _answered(
    turn: Turn, owners: Sequence[Turn], given: Sequence[Message], history: Sequence[Message]
) -> Iterator[Finding]:
    if len(given) > 1:
        words = f"turn {turn.id}: messages {[m.id for m in given]}"
        yield Finding("answered twice", words, turn.chat_id)
    asked = [m for m in history if m.plan is not None and m.id < (turn.answer_id or 0)]
    plan = asked[-1].plan if asked else None
    if turn.kind == "message" and asked and asked[-1].turn_id not in {each.id for each in owners}:
        yield Finding("answer to another", f"turn {turn.id}: {plan and plan.id}", turn.chat_id)
    said = next((m.words for m in given if m.id == turn.answer_id), None)
    if plan is None or said != plan.answer:
        yield Finding("wrong answer", f"{plan and plan.id}: {said!r}", turn.chat_id)


def _whole(given: Sequence[Message]) -> list[str]:
    """Answers that were spoken to their end."""
    return [m.words for m in given if m.words.startswith("answer to ") and m.words.endswith("end.")]


def _joined(turns: Sequence[Turn]) -> dict[str, list[Turn]]:
    """Who joined which turn."""
    found: dict[str, list[Turn]] = defaultdict(list)
    for turn in turns:
        if turn.joined_id is not None:
            found[turn.joined_id].append(turn)
    return found


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
