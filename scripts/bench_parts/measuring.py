"""What a run of tasks took: gaps between model calls, turns per second, CPU by process.

CPU is told by process: the contender's own (`worker`: runs steps; `control`: the front door), and
what it made Postgres, Valkey and the model server do. The benchmark's own process is left out.
"""

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from scripts.bench_parts.model_server import Call
from scripts.bench_parts.processes import cpu_of
from scripts.bench_parts.running import Contender
from scripts.bench_parts.task import Task


@dataclass
class Sample:
    """One run of one contender."""

    gaps: list[float] = field(default_factory=list)
    """Seconds from the end of one model call to the beginning of the next of the same turn."""
    first: list[float] = field(default_factory=list)
    """Seconds from the start of the run to the first model call of each turn."""
    seconds: float = 0.0
    """From the first message sent to the end of the last model call."""
    turns: int = 0
    steps: int = 0
    cpu: dict[str, float] = field(default_factory=dict)
    """CPU seconds by process."""


def sample(contender: Contender, tasks: Sequence[Task]) -> Sample:
    """Have tasks run, and look at what it took."""
    model = contender.place.model
    model.look()
    before, began = cpu(contender), time.time()
    contender.run(tasks)
    ended, calls, after = time.time(), model.look().calls, cpu(contender)
    took = Sample(turns=len(tasks))
    took.cpu = {name: used - before.get(name, 0.0) for name, used in after.items()}
    own = contender.gaps()
    if own is not None:
        took.gaps, took.steps, took.seconds = own, len(own), ended - began
        return took
    for of_one in by_task(calls).values():
        took.first.append(of_one[0].came - began)
        took.gaps += [b.came - a.ended for a, b in pairwise(of_one)]
    took.steps = len(calls)
    took.seconds = max(call.ended for call in calls) - began
    return took


def by_task(calls: Sequence[Call]) -> dict[str, list[Call]]:
    """The calls of each turn, in order."""
    found: dict[str, list[Call]] = defaultdict(list)
    for call in sorted(calls, key=lambda call: call.came):
        found[call.task].append(call)
    return found


def cpu(contender: Contender) -> dict[str, float]:
    """CPU seconds so far, of the contender's processes and of the shared ones."""
    return cpu_of({**contender.processes(), **contender.place.server_pids})


def at(values: Sequence[float], share: float) -> float:
    """A quantile, as one of the values: the smallest that so many do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan
