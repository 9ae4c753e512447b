"""Rules about chats below others: made once, told what the plan says, reported as they ended.

Their messages are in no driver's journal: they follow from the plans of the chats above them. A
stop, an edit or an interrupting message above ends what is below; nobody waits for ever.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scripts.chaos_parts.evidence import Evidence, Finding
from scripts.chaos_parts.picture import CallRow, Move, Turn
from scripts.chaos_parts.plan import SPAWN, WAIT, found_in

GRACE_SECONDS = 2.0
"""How long those below may take to hear of a stop: it is one transaction, but locks take time."""


def children_are_those_that_were_asked_for(evidence: Evidence) -> Iterator[Finding]:
    """Each spawn that succeeded has one child, with its plan; no child has another reason."""
    asked: dict[tuple[str, str], CallRow] = {}
    for call in evidence.picture.calls:
        if call.name == SPAWN and (plan := found_in(str(call.arguments.get("prompt")))):
            asked[call.chat_id, plan.id] = call
    made: dict[tuple[str, str], list[str]] = defaultdict(list)
    by_chat = evidence.picture.by_chat()
    for chat in evidence.picture.chats:
        if chat.parent_id is None:
            continue
        first = next((m.plan.id for m in by_chat[chat.id] if m.plan), "")
        made[chat.parent_id, first].append(chat.id)
        if (chat.parent_id, first) not in asked:
            yield Finding("child that nobody asked for", f"{first!r}", chat.id)
    for key, call in asked.items():
        chat_ids = made[key]
        if len(chat_ids) > 1:
            yield Finding("child made twice", f"{key[1]}: {chat_ids}", call.chat_id)
        told = _said(call).get("chat_id") if not call.failed else None
        if told is not None and told not in chat_ids:
            yield Finding("child lost", f"{key[1]}: {told} is not in {chat_ids}", call.chat_id)


def nobody_else_speaks_below(evidence: Evidence) -> Iterator[Finding]:
    """A child's user is the chat above: one message, the one that it was made with."""
    below = {chat.id for chat in evidence.picture.chats if chat.parent_id is not None}
    for chat_id, messages in evidence.picture.by_chat().items():
        said = [m for m in messages if m.role == "user" and not m.compressed]
        if chat_id in below and len(said) != 1:
            yield Finding("child told twice", f"messages {[m.id for m in said]}", chat_id)


def parents_get_reports(evidence: Evidence) -> Iterator[Finding]:
    """Who waits gets, for each child, its report as it is, or the reason why there is none."""
    turns = _turns(evidence)
    by_chat = evidence.picture.by_chat()
    for call in evidence.picture.calls:
        if call.name != WAIT or call.failed or call.result is None:
            continue
        agents = {str(a["chat_id"]): a for a in _said(call).get("agents", [])}
        if list(agents) != (call.waits_for or []):
            words = f"{call.waits_for} were waited for, {list(agents)} were told"
            yield Finding("reports do not fit", words, call.chat_id)
        for chat_id, told in agents.items():
            spoken = [m.words for m in by_chat.get(chat_id, []) if m.role == "assistant"]
            if problem := _wrong(told, call, turns[chat_id], spoken):
                yield Finding("wrong report", f"{chat_id}: {problem}: {told}", call.chat_id)


def _wrong(
    told: Mapping[str, Any], call: CallRow, turns: list[Turn], words: list[str]
) -> str | None:
    """What is not right about one report."""
    moment = call.ended_at or 0.0
    if told.get("timed_out"):
        early = moment < call.created_at + float(call.arguments["timeout_seconds"])
        return "too early" if early else None
    ended = [t for t in turns if t.ended_at is not None and t.ended_at <= moment]
    if not ended:
        return "it has not ended"
    last = max(ended, key=lambda turn: turn.ended_at or 0.0)
    if last.state == "finished":
        right = [w for w in words if w.startswith("answer to ")]
        return None if told.get("report") in right else "not its answer"
    says = {"failed": "error", "interrupted": "interrupted"}.get(last.state, "")
    return None if told.get(says) else f"it is {last.state}"


def those_below_stop_with_those_above(evidence: Evidence) -> Iterator[Finding]:
    """When a turn is stopped, nobody below it goes on."""
    moves = evidence.picture.moves()
    turns = _turns(evidence)
    for chat in evidence.picture.chats:
        if chat.parent_id is None:
            continue
        for stopped in turns[chat.parent_id]:
            if stopped.state != "interrupted":
                continue
            at = _stopped_at(stopped, moves[chat.parent_id])
            for turn in turns[chat.id]:
                was_open = turn.created_at < at < (turn.ended_at or at + 1)
                ran = any(
                    m.turn_id == turn.id and m.new_status == "running" and m.at > at + GRACE_SECONDS
                    for m in moves[chat.id]
                    if m.old_status == "pending"
                )
                if was_open and ran:
                    words = f"turn {turn.id} went on after turn {stopped.id} was stopped"
                    yield Finding("child went on", words, chat.id)


def _stopped_at(turn: Turn, moves: Sequence[Move]) -> float:
    """When the stop was heard: an owner may take a while to end the turn."""
    heard = (m.at for m in moves if m.turn_id == turn.id and m.new_status == "interrupting")
    return next(heard, turn.ended_at or 0.0)


def _said(call: CallRow) -> dict[str, Any]:
    """A result that is an object, however it is stored."""
    content = (call.result or {}).get("content")
    if isinstance(content, str):
        try:
            content = json.loads(content)
        except ValueError:
            content = {}
    return content if isinstance(content, dict) else {}


def _turns(evidence: Evidence) -> dict[str, list[Turn]]:
    found: dict[str, list[Turn]] = defaultdict(list)
    for turn in evidence.picture.turns:
        found[turn.chat_id].append(turn)
    return found
