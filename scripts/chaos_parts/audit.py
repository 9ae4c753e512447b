"""Whether it was right: what was asked and done, against what stands in the database.

Pure: a picture of the rows, the journal and the ledger go in, findings come out. Each rule is one
function, named by what it demands; `audit_turns.py` has those about single messages and turns,
`audit_calls.py` those about tool calls, and so on. `audit_processes.py` judges what no row shows. A
rule never makes allowances for what it does not know the cause of.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator

from rejoinder.core.state import AT_REST, TABLE, Transition
from scripts.chaos_parts import (
    audit_agents,
    audit_calls,
    audit_commands,
    audit_compaction,
    audit_turns,
)
from scripts.chaos_parts.evidence import Evidence, Finding
from scripts.chaos_parts.picture import Message, Move

# `reconcile` mends what must not happen: its moves are no excuse here.
ALLOWED = frozenset(
    (source, target)
    for transition, rule in TABLE.items()
    if transition is not Transition.RECONCILE
    for source, move in rule.moves.items()
    for target in (*move.empty, *move.filled)
)


def chats_are_at_rest(evidence: Evidence) -> Iterator[Finding]:
    """No chat is stuck, no lease is left, no message waits in a queue."""
    for chat in evidence.picture.chats:
        if chat.status not in AT_REST:
            yield Finding("stuck chat", f"still {chat.status}", chat.id)
        if chat.lease_id is not None:
            yield Finding("lease left", f"{chat.lease_id}", chat.id)
        if chat.queue_length and chat.status == "waiting":
            yield Finding("stranded queue", f"{chat.queue_length} messages", chat.id)


def ended_turns_are_announced(evidence: Evidence) -> Iterator[Finding]:
    """Whoever waits for a turn was told of its end."""
    for turn in evidence.picture.turns:
        if turn.ended_at is not None and not turn.announced:
            yield Finding("unannounced turn", f"turn {turn.id} ({turn.state})", turn.chat_id)


def histories_are_well_formed(evidence: Evidence) -> Iterator[Finding]:
    """Results follow their calls at once, in call order, each exactly once."""
    for chat_id, messages in evidence.picture.by_chat().items():
        said = [m for m in messages if not m.deleted and m.role != "system"]
        for message, following in zip(said, [*said[1:], None], strict=True):
            yield from _calls_answered(chat_id, message, following)
        for previous, message in zip([None, *said[:-1]], said, strict=True):
            if message.role == "tool" and (previous is None or not previous.call_ids):
                yield Finding("result without a call", f"message {message.id}", chat_id)
            if previous is not None and message.revision < previous.revision:
                yield Finding("order of history", f"message {message.id} is older", chat_id)


def _calls_answered(chat_id: str, message: Message, following: Message | None) -> Iterator[Finding]:
    if not message.call_ids:
        return
    if following is None or following.role != "tool":
        what = following.role if following else "nothing"
        yield Finding("call without a result", f"{what} follows message {message.id}", chat_id)
    elif following.result_ids != message.call_ids:
        words = f"{message.call_ids} were asked, {following.result_ids} were answered"
        yield Finding("results do not fit", words, chat_id)


def every_move_is_in_the_table(evidence: Evidence) -> Iterator[Finding]:
    """Each change of status is one of the state machine's, and versions only grow."""
    for chat_id, moves in evidence.picture.moves().items():
        last = 0
        before: Move | None = None
        for move in moves:
            step = f"{move.old_status} → {move.new_status} (trail {move.n})"
            if (move.old_status, move.new_status) not in ALLOWED:
                yield Finding("illegal move", step, chat_id)
            if move.new_version <= last:
                yield Finding("version went back", f"{last}, then {move.new_version}", chat_id)
            if before is not None and before.new_status != move.old_status:
                yield Finding("move from elsewhere", f"{before.new_status}, then {step}", chat_id)
            if _taken(move) and not (before and before.worker == move.worker):
                yield Finding("lease changed hands", f"without a claim: {step}", chat_id)
            last, before = move.new_version, move


def _taken(move: Move) -> bool:
    """Whether one lease took another's place: only its own worker may, for its next step."""
    return None not in (move.old_lease, move.new_lease) and move.old_lease != move.new_lease


def budgets_hold(evidence: Evidence) -> Iterator[Finding]:
    """No tree used more than it may, but for one call of each chat: each is looked at before."""
    dearest: dict[str, int] = defaultdict(int)
    for message in evidence.picture.messages:
        dearest[message.chat_id] = max(dearest[message.chat_id], message.tokens)
    for root in evidence.picture.chats:
        if root.budget is None:
            continue
        tree = [chat for chat in evidence.picture.chats if chat.root_id == root.id]
        used = sum(chat.used for chat in tree)
        if used > root.budget + sum(dearest[chat.id] for chat in tree):
            yield Finding("overspent", f"{used} tokens of {root.budget}", root.id)


RULES: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    chats_are_at_rest,
    ended_turns_are_announced,
    histories_are_well_formed,
    every_move_is_in_the_table,
    budgets_hold,
    audit_calls.calls_are_answered_once,
    audit_calls.results_say_what_was_said,
    audit_calls.errors_are_known_and_due,
    audit_calls.deeds_are_done_once,
    audit_calls.nothing_is_done_without_leave,
    audit_calls.each_call_is_decided_once,
    audit_agents.children_are_those_that_were_asked_for,
    audit_agents.nobody_else_speaks_below,
    audit_agents.parents_get_reports,
    audit_agents.those_below_stop_with_those_above,
    audit_compaction.boundaries_are_whole,
    audit_compaction.each_has_a_reason,
    audit_compaction.requests_are_done_once,
    audit_compaction.full_contexts_are_summarised,
    audit_commands.commands_are_done_once,
    audit_commands.interrupts_are_done,
    audit_turns.accepted_messages_stand_once_and_in_order,
    audit_turns.nobody_spoke_but_the_drivers,
    audit_turns.turns_ended_as_they_should,
    audit_turns.joined_turns_end_together,
    audit_turns.answers_are_right_and_single,
)


def audit(evidence: Evidence) -> list[Finding]:
    """Every finding of every rule."""
    return [finding for rule in RULES for finding in rule(evidence)]
