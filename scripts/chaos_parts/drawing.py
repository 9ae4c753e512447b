"""Plans, made up from a seed: mostly the workers' own tools, now and then one of another kind.

`Mix` says which other kinds there are, so that a finding can be looked for with fewer of them.
"""

import random
from collections.abc import Collection
from enum import StrEnum

from scripts.chaos_parts.plan import SPAWN, WAIT, Call, Plan

MOST_SECONDS = 1.5
OWN_TOOLS = ("ledger_once", "ledger_again", "quick")
OTHERS = 0.3
"""The share of calls that somebody other than a worker has to do with."""
FAMILIES, FULL = 0.12, 0.12
"""The shares of plans with chats below, and of those that fill the model's context."""
LONG_WAIT, SHORT_WAIT = 120.0, 1.0


class Mix(StrEnum):
    """What chats are about, besides the workers' own tools, the queue, edits and stops."""

    STEERING = "steering"
    APPROVALS = "approvals"
    CLIENT_TOOLS = "client_tools"
    TASKS = "tasks"
    AGENTS = "agents"
    COMPACTION = "compaction"
    BUDGETS = "budgets"
    COMMANDS = "commands"


ALL = frozenset(Mix)
WISHES: dict[Mix, tuple[tuple[str, str, int], ...]] = {
    Mix.APPROVALS: (
        ("ledger_asked", "approve", 4),
        ("ledger_asked", "deny", 2),
        ("ledger_asked", "both", 2),
        ("ledger_asked", "leave", 1),
        ("ledger_agreed", "approve", 1),
        ("ledger_agreed", "leave", 1),
    ),
    Mix.CLIENT_TOOLS: (
        ("ask_office", "answer", 4),
        ("ask_office", "twice", 3),
        ("ask_briefly", "answer", 1),
        ("ask_briefly", "leave", 2),
    ),
    Mix.TASKS: (("task_once", "", 1), ("task_again", "", 1)),
}
"""Tools, what the office is to do about their calls, and how often."""


def draw(plan_id: str, dice: random.Random, mix: Collection[Mix] = ALL) -> Plan:
    """A plan of one to four model calls (and two for chats below), some with several tools."""
    steps = _steps(dice, mix)
    family = dice.random() < FAMILIES
    children = [_child(f"{plan_id}.{n}", dice, mix) for n in range(dice.choice((1, 2, 2, 3)))]
    at, patient = dice.randint(0, len(steps)), dice.random() < 0.8  # noqa: PLR2004  # mostly
    if family and Mix.AGENTS in mix:
        spawn = tuple(Call(SPAWN, child=child) for child in children)
        wait = (Call(WAIT, LONG_WAIT if patient else SHORT_WAIT),)
        steps = (*steps[:at], spawn, wait, *steps[at:])
    full, when = dice.random() < FULL, dice.random()
    return Plan(plan_id, steps, _when(when, steps) if full and Mix.COMPACTION in mix else None)


def _child(plan_id: str, dice: random.Random, mix: Collection[Mix]) -> Plan:
    steps = _steps(dice, mix)
    full, when = dice.random() < FULL, dice.random()
    return Plan(plan_id, steps, _when(when, steps) if full and Mix.COMPACTION in mix else None)


def _when(share: float, steps: tuple[tuple[Call, ...], ...]) -> int:
    return int(share * (len(steps) + 1))


def _steps(dice: random.Random, mix: Collection[Mix]) -> tuple[tuple[Call, ...], ...]:
    return tuple(
        tuple(_call(dice, mix) for _ in range(dice.choice((1, 1, 2, 3))))
        for _ in range(dice.choice((0, 1, 1, 2, 2, 3)))
    )


def _call(dice: random.Random, mix: Collection[Mix]) -> Call:
    """One call. The dice fall the same number of times, whatever is in the mix."""
    (tool,) = dice.choices(OWN_TOOLS, weights=(3, 3, 1))
    seconds = round(dice.uniform(0, MOST_SECONDS), 2)
    other = dice.choice(tuple(WISHES))
    wished, drawn = dice.random(), dice.random()
    if drawn < OTHERS and other in mix:
        tool, wish = _pick(WISHES[other], wished)
        return Call(tool, seconds, wish)
    return Call(tool, 0.0 if tool == "quick" else seconds)


def _pick(among: tuple[tuple[str, str, int], ...], share: float) -> tuple[str, str]:
    left = share * sum(weight for *_, weight in among)
    for tool, wish, weight in among:
        left -= weight
        if left < 0:
            return tool, wish
    tool, wish, _ = among[-1]
    return tool, wish
