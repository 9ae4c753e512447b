"""Rules about summaries: each is whole, has a reason, stands once, and comes when it must.

A boundary is a summary that the model reads and a marker that people see. What was said before it
stays where it was (`audit_processes.readers_see_history`).
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from scripts.chaos_parts.evidence import Evidence, Finding
from scripts.chaos_parts.journal import Outcome
from scripts.chaos_parts.model_server import PLENTY
from scripts.chaos_parts.picture import Message

SUMMARY, MARKER = ("user", "model"), ("assistant", "user")
"""Who says it, and who sees it."""


def boundaries_are_whole(evidence: Evidence) -> Iterator[Finding]:
    """A summary for the model is followed at once by a marker for people, and is never alone."""
    for chat_id, messages in evidence.picture.by_chat().items():
        made = [m for m in messages if m.compressed]
        pairs = list(zip(made[::2], made[1::2], strict=False))
        whole = [_kind(a) == SUMMARY and _kind(b) == MARKER for a, b in pairs]
        apart = [messages.index(b) - messages.index(a) != 1 for a, b in pairs]
        if len(made) % 2 or not all(whole) or any(apart):
            yield Finding("boundary torn", f"messages {[m.id for m in made]}", chat_id)


def _kind(message: Message) -> tuple[str, str]:
    return message.role, message.visibility


def each_has_a_reason(evidence: Evidence) -> Iterator[Finding]:
    """A summary was asked for, or the context had been nearly full since the one before.

    An edit takes summaries away with what it deletes: then the one before is another.
    """
    asked = {turn.id for turn in evidence.picture.turns if turn.kind == "compaction"}
    edits = {each.plan.id: each.edits for each in evidence.journal.asked if each.edits is not None}
    for chat_id, messages in evidence.picture.by_chat().items():
        there: list[Message] = []
        for message in messages:
            if message.plan and message.plan.id in edits:
                there = [m for m in there if m.id < edits[message.plan.id]]
            if message.compressed and _kind(message) == SUMMARY:
                since = there[_behind_the_last_summary(there) :]
                if message.turn_id not in asked and not any(map(_is_full, since)):
                    yield Finding("summary for nothing", f"message {message.id}", chat_id)
            there.append(message)


def _behind_the_last_summary(messages: Sequence[Message]) -> int:
    return max((place + 1 for place, m in enumerate(messages) if m.compressed), default=0)


def requests_are_done_once(evidence: Evidence) -> Iterator[Finding]:
    """A turn that only summarises was asked for; it left one boundary, or none if stopped."""
    summaries = [m for m in evidence.picture.messages if m.compressed and _kind(m) == SUMMARY]
    made = Counter(message.turn_id for message in summaries)
    asked = evidence.journal.compactions
    certain = {each.turn_id for each in asked if each.outcome is Outcome.ACCEPTED}
    maybe = Counter(each.chat_id for each in asked if each.outcome is Outcome.UNKNOWN)
    for turn in evidence.picture.turns:
        if turn.kind != "compaction":
            continue
        if made[turn.id] != (turn.state == "finished"):
            words = f"turn {turn.id} is {turn.state} and left {made[turn.id]} summaries"
            yield Finding("summarised twice or never", words, turn.chat_id)
        if turn.id not in certain:
            maybe[turn.chat_id] -= 1
            if maybe[turn.chat_id] < 0:
                yield Finding("summary that nobody asked for", f"turn {turn.id}", turn.chat_id)
    known = {turn.id for turn in evidence.picture.turns}
    for each in asked:
        if each.outcome is Outcome.ACCEPTED and each.turn_id not in known:
            yield Finding("turn lost", f"compaction {each.turn_id}", each.chat_id)


def full_contexts_are_summarised(evidence: Evidence) -> Iterator[Finding]:
    """Once the context was nearly full, the model is not asked again before it is summarised."""
    for chat_id, messages in evidence.picture.by_chat().items():
        yield from _in_time(chat_id, [m for m in messages if not m.deleted])


def _in_time(chat_id: str, messages: Sequence[Message]) -> Iterator[Finding]:
    full = False
    for message in messages:
        if message.compressed:
            full = False
        elif message.role == "assistant":
            if full:
                yield Finding("no summary in time", f"message {message.id}", chat_id)
            full = _is_full(message)


def _is_full(message: Message) -> bool:
    return message.role == "assistant" and (message.input_tokens or 0) >= PLENTY
