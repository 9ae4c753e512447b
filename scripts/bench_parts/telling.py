"""How figures are told: tables for people, and the targets with whether they are met."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scripts.bench_parts.variants import Variant
from scripts.fleet import ROOT


@dataclass(frozen=True)
class Target:
    """A promise, and the figure of this very run."""

    says: str
    value: float | None
    limit: float
    least: bool = False
    """The value has to be at least the limit; else at most."""
    unit: str = "x"

    @property
    def met(self) -> bool | None:
        """Whether it is; None: nothing was measured."""
        if self.value is None:
            return None
        return self.value >= self.limit if self.least else self.value <= self.limit

    def line(self) -> str:
        """As people read it."""
        word = {True: "met", False: "NOT met", None: "not measured"}[self.met]
        sign = ">=" if self.least else "<="
        value = "" if self.value is None else f"{self.value:.2f} {self.unit}, "
        return f"  {word:13} {self.says}: {value}wanted {sign} {self.limit:g} {self.unit}"


@dataclass
class Told:
    """What a workload has to say."""

    figures: dict[str, Any] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], notes: str = "") -> str:
    """A table with its title, and below it what the columns are."""
    all_rows = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in all_rows) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.rjust(width) if n else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in all_rows
    ]
    return "\n".join(["", title, *lines, *(f"  {line}" for line in notes.strip().splitlines())])


def ratio(one: float | None, other: float | None) -> float | None:
    """One over the other, if there are both."""
    return one / other if one is not None and other else None


def shown(value: float | None, form: str = ".2f", unit: str = "") -> str:
    """A number, or a dash."""
    return "-" if value is None or value != value else f"{value:{form}}{unit}"  # noqa: PLR0124  # NaN


def ratios(
    figures: Mapping[str, Mapping[str, float]], name: str, key: str, against: str
) -> float | None:
    """How somebody's figure compares to another's."""
    return ratio(figures.get(name, {}).get(key), figures.get(against, {}).get(key))


def beside_itself(
    ours: str,
    variants: Sequence[Variant],
    figures: Mapping[str, Mapping[str, float]],
    columns: Mapping[str, str],
) -> str:
    """A table of ratios: this commit over others, and each changed environment over this one."""
    rows = []
    for each in variants:
        other, label = ours + each.label, each.label.strip()
        if each.root != ROOT:
            pair, says = (ours, other), f"this commit / {label}"
        else:
            pair, says = (other, ours), f"{label} / without"
        rows.append(
            [says, *(shown(ratios(figures, pair[0], k, pair[1])) for k in columns.values())]
        )
    return table("ratios", ["", *columns], rows) if rows else ""
