"""Plans, made up from a seed: mostly the workers' own tools, now and then one of another kind.

`Mix` says which other kinds there are, so that a finding can be looked for with fewer of them.
"""

import random
from collections.abc import Collection
from enum import StrEnum

from scripts.chaos_parts.plan import Call, Plan

MOST_SECONDS = 1.5
OWN_TOOLS = ("ledger_once", "ledger_again", "quick")


class Mix(StrEnum):
    """What chats are about, besides the workers' own tools, the queue, edits and stops."""

    STEERING = "steering"
    APPROVALS = "approvals"
    CLIENT_TOOLS = "client_tools"


ALL = frozenset(Mix)
OTHERS = 0.25
"""The share of calls that somebody other than a worker has to do with."""


def draw(plan_id: str, dice: random.Random, mix: Collection[Mix] = ALL) -> Plan:
    """A plan of one to four model calls, some with several tools at once."""
    steps = tuple(
        tuple(_call(dice, mix) for _ in range(dice.choice((1, 1, 2, 3))))
        for _ in range(dice.choice((0, 1, 1, 2, 2, 3)))
    )
    return Plan(plan_id, steps)


def _call(dice: random.Random, mix: Collection[Mix]) -> Call:
    """One call. The dice fall the same number of times, whatever is in the mix."""
    (tool,) = dice.choices(OWN_TOOLS, weights=(3, 3, 1))
    seconds = round(dice.uniform(0, MOST_SECONDS), 2)
    other = dice.choice((Mix.APPROVALS, Mix.CLIENT_TOOLS))
    wished, drawn = dice.random(), dice.random()
    if drawn < OTHERS and other in mix:
        return _other(other, seconds, wished)
    return Call(tool, 0.0 if tool == "quick" else seconds)


def _other(kind: Mix, seconds: float, wished: float) -> Call:
    tool, wish = _pick(WISHES[kind], wished)
    return Call(tool, seconds, wish)


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
}
"""Tools, what the office is to do about their calls, and how often."""


def _pick(among: tuple[tuple[str, str, int], ...], share: float) -> tuple[str, str]:
    left = share * sum(weight for *_, weight in among)
    for tool, wish, weight in among:
        left -= weight
        if left < 0:
            return tool, wish
    tool, wish, _ = among[-1]
    return tool, wish
