"""Rules about commands that nobody waited for: each is done, and once.

What the broker took and then lost with all of its own memory (`FLUSHALL`, a restart without a
disk) is its loss, not ours: only the messages that were still in it at that moment are excused, by
their ids. So is what a killed worker had taken from Redis without having begun: kombu notes that in
a second command. Both are counted in the report.
"""

from collections import defaultdict
from collections.abc import Iterator

from scripts.chaos_parts.evidence import Evidence, Finding
from scripts.chaos_parts.journal import Command, Journal, Outcome


def commands_are_done_once(evidence: Evidence) -> Iterator[Finding]:
    """Each message stands once, however often its command came; a command is never lost."""
    stands: dict[str, list[str]] = defaultdict(list)
    for message in evidence.picture.messages:
        if message.plan is not None:
            stands[message.plan.id].append(message.chat_id)
    given: dict[str, list[Command]] = defaultdict(list)
    for command in evidence.journal.commands:
        if command.plan is not None:
            given[command.plan.id].append(command)
    for plan_id, commands in given.items():
        where = f"{commands[0].verb} {plan_id}, task {', '.join(c.task_id for c in commands)}"
        there = stands[plan_id]
        if len(there) > 1:
            yield Finding("command doubled", f"{where}: stands {len(there)} times", there[0])
        if not there and any(_is_due(evidence.journal, each) for each in commands):
            yield Finding("command lost", where, commands[0].chat_id)


def interrupts_are_done(evidence: Evidence) -> Iterator[Finding]:
    """A turn that waits for nobody is over, if its end was commanded."""
    turns = {turn.id: turn for turn in evidence.picture.turns}
    for command in evidence.journal.commands:
        turn = turns.get(command.turn_id or "")
        if turn is not None and turn.ended_at is None and _is_due(evidence.journal, command):
            yield Finding("command lost", f"interrupt, task {command.task_id}", turn.chat_id)


def _is_due(journal: Journal, command: Command) -> bool:
    """Whether it must have been done."""
    accepted = command.outcome is Outcome.ACCEPTED
    return accepted and not journal.may_be_lost(command.task_id)
