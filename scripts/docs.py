"""make docs: write the parts of the documentation that come from the code.

Each part stands between `<!-- generated: NAME -->` and `<!-- end -->`. With `--check` nothing is
written; exit 1 says that a part is stale. A test runs the check, so that they cannot go stale.
"""

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path

from rejoinder.core.settings import Settings, variable
from rejoinder.core.state import (
    AT_REST,
    LEASED,
    MEANING,
    PARKED,
    TABLE,
    Status,
    To,
    Transition,
    edges,
)

ROOT = Path(__file__).parent.parent
FILES = ("ARCHITECTURE.md", "docs/settings.md")


def statuses() -> str:
    """The statuses, as a table."""

    def owner(status: Status) -> str:
        return "a worker's lease" if status in LEASED else "none"

    def columns(status: Status) -> str:
        always = "deadline" if status in PARKED else "lease" if status in LEASED else ""
        return {Status.ERROR: "`last_error`"}.get(status, f"`{always}`" if always else "")

    rows = [
        f"| `{status}` | {MEANING[status]} | {owner(status)} | {columns(status)}"
        f" | {'yes' if status in AT_REST else 'no'} |"
        for status in Status
    ]
    head = ["| status | meaning | owner | always has | can be archived |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def transitions() -> str:
    """The table of transitions."""
    rows = [
        f"| {transition} | {', '.join(rule.by)} | {_moves(rule.moves)} | {rule.says} |"
        for transition, rule in TABLE.items()
    ]
    return "\n".join(["| transition | by | from → to | |", "|---|---|---|---|", *rows])


def diagram() -> str:
    """The diagram: one arrow between two statuses, with all transitions that take it."""
    arrows: dict[tuple[str, str], list[Transition]] = {}
    for source, transition, target in edges():
        if transition is not Transition.RECONCILE:  # from anywhere to error: it would hide the rest
            arrows.setdefault((source or "[*]", target), []).append(transition)
    lines = [
        f"    {source} --> {target}: {', '.join(taken)}"
        for (source, target), taken in arrows.items()
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def default(value: object) -> str:
    """A default as one would set it."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value or "none")


def settings() -> str:
    """The table of settings."""
    rows = [
        f"| `{variable(each.name)}` | {each.metadata['says']} | {default(each.default)} |"
        for each in fields(Settings)
    ]
    return "\n".join(["| variable | meaning | default |", "|---|---|---|", *rows])


PARTS: Mapping[str, Callable[[], str]] = {
    "statuses": statuses,
    "transitions": transitions,
    "diagram": diagram,
    "settings": settings,
}


def render(text: str) -> str:
    """A document with its generated parts made anew."""

    def part(match: re.Match[str]) -> str:
        return f"{match[1]}\n{PARTS[match[2]]()}\n{match[3]}"

    pattern = r"(<!-- generated: (\w+) -->)\n.*?(<!-- end -->)"
    return re.sub(pattern, part, text, flags=re.DOTALL)


def main(arguments: list[str]) -> int:
    """Write, or check."""
    stale = []
    for name in FILES:
        path = ROOT / name
        old = path.read_text(encoding="utf-8")
        if (new := render(old)) == old:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.write_text(new, encoding="utf-8")
    print(f"{'stale' if '--check' in arguments else 'written'}: {', '.join(stale) or 'none'}")
    return 1 if stale and "--check" in arguments else 0


def _moves(moves: Mapping[Status | None, To]) -> str:
    by_target: dict[str, list[str]] = {}
    for source, move in moves.items():
        by_target.setdefault(_target(move, source), []).append(source or "nothing")
    return " · ".join(f"{', '.join(sources)} → {target}" for target, sources in by_target.items())


def _target(move: To, source: Status | None) -> str:
    def names(targets: tuple[Status, ...]) -> str:
        return " or ".join(dict.fromkeys("same" if t is source else t for t in targets))

    if move.unchanged:
        return "no change"
    if move.empty == move.filled or not move.filled:
        return names(move.empty)
    if not move.empty:
        return f"{names(move.filled)} (if queued)"
    return f"{names(move.empty)}, or {names(move.filled)} if queued"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
