"""Rules about tool calls: each has one result, which is what was really said; nothing done twice.

What the tools did stands in the ledger, what people outside said in the journal. A decision without
an answer may have taken effect or not, but of all decisions about a call only one can have.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from models.machine.calls import DENIED, INTERRUPTED, SUPERSEDED, TIMED_OUT, UNKNOWN
from scripts.chaos_parts.evidence import Evidence, Finding
from scripts.chaos_parts.journal import Decision, Outage, Outcome
from scripts.chaos_parts.ledger import (
    AGREED_SECONDS,
    ASKED_SECONDS,
    BRIEF_SECONDS,
    NOBODY,
    OFFICE_SECONDS,
    TASK_SECONDS,
    done,
)
from scripts.chaos_parts.office import TO_ALLOW, TO_ANSWER
from scripts.chaos_parts.picture import CallRow
from scripts.chaos_parts.plan import SPAWN, WAIT

ONCE = frozenset({"ledger_once", "ledger_asked", "task_once"})
"""What must not begin twice."""
ON_THE_LEDGER = ONCE | {"ledger_again", "ledger_agreed", "task_again"}
KNOWN_ERRORS = (INTERRUPTED, SUPERSEDED, TIMED_OUT, DENIED, UNKNOWN)
_NOT_SENT = "The task could not be sent for certain"
MORE_ERRORS = {
    "task_once": _NOT_SENT,
    "task_again": _NOT_SENT,
    SPAWN: "The turn that asks for this is to stop",
}
"""Of another app's task while the broker is away; of a child for which it is too late."""
UNSURE = "the task itself may have done its work"
PATIENCE = {
    "ledger_asked": ASKED_SECONDS,
    "ledger_agreed": AGREED_SECONDS,
    "ask_office": OFFICE_SECONDS,
    "ask_briefly": BRIEF_SECONDS,
    "task_once": TASK_SECONDS,
    "task_again": TASK_SECONDS,
}
"""How long somebody outside has, at least."""


def calls_are_answered_once(evidence: Evidence) -> Iterator[Finding]:
    """Each call has one row and one result, and history has it once."""
    answered = Counter(i for m in evidence.picture.messages for i in m.result_ids)
    rows = Counter(call.call_id for call in evidence.picture.calls)
    for call in evidence.picture.calls:
        where = _where(call)
        if rows[call.call_id] > 1:
            yield Finding("call recorded twice", where, call.chat_id)
        if call.result is None or not call.settled:
            yield Finding("call left open", f"{where} is {call.state}", call.chat_id)
        elif answered[call.call_id] > 1:
            yield Finding("result doubled", where, call.chat_id)


def results_say_what_was_said(evidence: Evidence) -> Iterator[Finding]:
    """A good result is what its tool said, or what somebody outside answered."""
    ended = {call_of(evidence, line) for line in evidence.ledger if line["what"] == "end"}
    decisions = _by_call(evidence)
    for call in evidence.picture.calls:
        if call.result is None or call.failed or call.name in (SPAWN, WAIT):
            continue
        said = call.result["content"]
        right = _answers(call, decisions[call.call_id]) if call.name in TO_ANSWER else _done(call)
        if said not in right:
            yield Finding("wrong result", f"{_where(call)}: {said!r}", call.chat_id)
        if call.name in ON_THE_LEDGER and call.call_id not in ended:
            yield Finding("result out of thin air", _where(call), call.chat_id)


def _done(call: CallRow) -> list[str]:
    said = done(call.nonce)
    return [f"{said}\n\n[It was allowed with the words: {call.note}]" if call.note else said]


def _answers(call: CallRow, decisions: Sequence[Decision]) -> list[str]:
    """What may stand there: what was accepted; else what may have been, or the default."""
    if accepted := [d.words for d in decisions if d.outcome is Outcome.ACCEPTED]:
        return accepted
    default = [NOBODY] if call.name == "ask_briefly" and _waited(call) else []
    return [*default, *(d.words for d in decisions if d.outcome is Outcome.UNKNOWN)]


def errors_are_known_and_due(evidence: Evidence) -> Iterator[Finding]:
    """A call came to nothing for a reason that is known; nobody's time was cut short."""
    for call in evidence.picture.calls:
        if call.result is None or not call.failed:
            continue
        words = str(call.result["content"])
        known = words.startswith((*KNOWN_ERRORS, MORE_ERRORS.get(call.name, UNKNOWN)))
        if not known and not _lost_sight(call, words, evidence.journal.outages):
            yield Finding("call failed", f"{_where(call)}: {words[:200]}", call.chat_id)
        if TIMED_OUT in words and not _waited(call):
            yield Finding("timeout too early", _where(call), call.chat_id)


def _lost_sight(call: CallRow, words: str, outages: Sequence[Outage]) -> bool:
    """Whether Celery took a task of another app for failed, as it does when the broker is away.

    The task may have been done, and the model must be told so.
    """
    failed = call.kind == "external" and words.startswith("The task failed with ")
    began, ended = call.created_at, call.ended_at or 0.0
    away = any(each.began <= ended and each.ended >= began for each in outages)
    return failed and away and UNSURE in words


def deeds_are_done_once(evidence: Evidence) -> Iterator[Finding]:
    """What must not be done twice was begun at most once, and only by calls in history."""
    calls = {call.call_id: call for call in evidence.picture.calls}
    begun = [
        (str(line["tool"]), {"call": call_of(evidence, line), "nonce": line["nonce"]}, line)
        for line in evidence.ledger
        if line["what"] == "begin"
    ]
    for name in ("call", "nonce"):
        counts = Counter(names[name] for tool, names, _ in begun if tool in ONCE)
        for tool, names, line in begun:
            if tool in ONCE and counts[names[name]] > 1:
                words = f"{name} {names[name]} ({tool}) by process {line['pid']}"
                yield Finding("tool run twice", words, line.get("chat_id"))
    for tool, names, line in begun:
        if names["call"] not in calls:
            words = f"{tool}, {names['nonce']}, by process {line['pid']}"
            yield Finding("tool run unasked", words, line.get("chat_id"))


def nothing_is_done_without_leave(evidence: Evidence) -> Iterator[Finding]:
    """A call that needs leave began only after somebody gave it; a denied one never."""
    calls = {call.call_id: call for call in evidence.picture.calls}
    decisions = _by_call(evidence)
    for line in evidence.ledger:
        call = calls.get(call_of(evidence, line) or "")
        if line["what"] != "begin" or call is None or call.name not in TO_ALLOW:
            continue
        allowed = any(
            d.what == "approve" and d.outcome is not Outcome.REFUSED and d.asked_at <= line["at"]
            for d in decisions[call.call_id]
        )
        by_default = call.name == "ledger_agreed" and call.note is not None
        if call.approval != "granted" or not (allowed or by_default):
            yield Finding("run without leave", _where(call), call.chat_id)
        elif not allowed and line["at"] < call.created_at + PATIENCE[call.name]:
            yield Finding("timeout too early", _where(call), call.chat_id)


def each_call_is_decided_once(evidence: Evidence) -> Iterator[Finding]:
    """Of all who spoke about a call, one was heard; and it happened as they were told."""
    decisions = _by_call(evidence)
    for call in evidence.picture.calls:
        heard = [d for d in decisions[call.call_id] if d.outcome is Outcome.ACCEPTED]
        if len(heard) > 1:
            said = ", ".join(decision.what for decision in heard)
            yield Finding("decided twice", f"{_where(call)}: {said}", call.chat_id)
        for decision in heard[:1]:
            if not _obeyed(call, decision):
                words = f"{_where(call)}: {decision.what}, and it is {call.result}"
                yield Finding("decision lost", words, call.chat_id)
        if DENIED in str(call.result) and not _waited(call) and not _maybe(call, decisions, "deny"):
            yield Finding("denied by nobody", _where(call), call.chat_id)


def _obeyed(call: CallRow, decision: Decision) -> bool:
    match decision.what:
        case "approve":
            return call.approval == "granted"
        case "deny":
            return call.failed and decision.words in str(call.result)
        case _:
            return not call.failed


def _maybe(call: CallRow, decisions: dict[str, list[Decision]], what: str) -> bool:
    return any(d.what == what and d.outcome is not Outcome.REFUSED for d in decisions[call.call_id])


def call_of(evidence: Evidence, line: Mapping[str, Any]) -> str | None:
    """The call that a line of the ledger belongs to: another app knows only its task's id."""
    return evidence.tasks.get(line["task_id"]) if "task_id" in line else line["call_id"]


def _waited(call: CallRow) -> bool:
    """Whether whoever was to answer it had all the time that they were promised."""
    promised = PATIENCE.get(call.name)
    return promised is not None and (call.ended_at or 0.0) - call.created_at >= promised


def _by_call(evidence: Evidence) -> dict[str, list[Decision]]:
    found: dict[str, list[Decision]] = defaultdict(list)
    for decision in evidence.journal.decisions:
        found[decision.call_id].append(decision)
    return found


def _where(call: CallRow) -> str:
    return f"call {call.call_id} ({call.name}, {call.nonce})"
