"""What a run of tasks took: gaps between model calls, turns per second, CPU by process, commits."""

import json
import time
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

import psutil
from sqlalchemy import Engine, text

from scripts.bench_parts.running import Contender
from scripts.bench_parts.task import Task

_COMMITS = text("SELECT pg_stat_force_next_flush(), sum(xact_commit)::bigint FROM pg_stat_database")


@dataclass
class Sample:
    """One run of one contender."""

    gaps: list[float] = field(default_factory=list)
    """Seconds from the end of one model call to the beginning of the next of the same turn."""
    first: list[float] = field(default_factory=list)
    """Seconds from the start of the run to the first model call of each turn."""
    seconds: float = 0.0
    """From the first model call to the end of the last."""
    turns: int = 0
    steps: int = 0
    cpu: dict[str, float] = field(default_factory=dict)
    """CPU seconds by process."""
    commits: int = 0


def sample(contender: Contender, tasks: Sequence[Task], model_url: str, engine: Engine) -> Sample:
    """Have tasks run, and look at what it took."""
    log_of(model_url)
    before, commits, began = _cpu(contender), _committed(engine), time.time()
    contender.run(tasks)
    calls, cpu = log_of(model_url), _cpu(contender)
    took = Sample(turns=len(tasks), commits=_committed(engine) - commits)
    took.cpu = {name: used - before.get(name, 0.0) for name, used in cpu.items()}
    own = contender.gaps()
    if own is not None:
        took.gaps, took.steps = own, len(own)
        took.seconds = time.time() - began
        return took
    by_task: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for task_id, number, came, ended in calls:
        by_task[task_id].append((number, came, ended))
    for of_one in by_task.values():
        of_one.sort()
        took.first.append(of_one[0][1] - began)
        took.gaps += [b[1] - a[2] for a, b in pairwise(of_one)]
    took.steps = len(calls)
    took.seconds = max(call[3] for call in calls) - min(call[2] for call in calls)
    return took


def log_of(model_url: str) -> list[tuple[str, int, float, float]]:
    """The model calls since the last time."""
    with urllib.request.urlopen(f"{model_url}/log") as answer:  # noqa: S310  # our own server
        told: Mapping[str, list[tuple[str, int, float, float]]] = json.load(answer)
    return told["calls"]


def _cpu(contender: Contender) -> dict[str, float]:
    used: dict[str, float] = {}
    for name, pids in contender.processes().items():
        for pid in pids:
            with suppress(psutil.NoSuchProcess):
                times = psutil.Process(pid).cpu_times()
                used[name] = used.get(name, 0.0) + times.user + times.system
    return used


def _committed(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(_COMMITS).one()[1])
