"""make bench: contenders side by side in one run, interleaved, as ratios.

One start of servers, one model server (a process of its own, which keeps the clock), several rounds
in turn. Prints a table and, with --json, all figures. What the figures mean: docs/performance.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, cast

from sqlalchemy import NullPool, create_engine

from models.migrate import upgrade
from rejoinder import embedded
from scripts.bench_parts.measuring import Sample, sample
from scripts.bench_parts.running import Contender, Naive, Place, Program, Rejoinder
from scripts.bench_parts.task import Task
from scripts.fleet import ROOT, TETHERED

CONTENDERS: dict[str, Callable[[Place], Contender]] = {
    "bare": lambda place: Program(place, "bare"),
    "nothing": lambda place: Naive(place, "nothing", nothing=True),
    "naive": Naive,
    "threads": lambda place: Rejoinder(place, "threads"),
    "prefork": lambda place: Rejoinder(place, "prefork"),
}
AGAINST = "naive"


def arguments(given: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chats", type=int, default=50, help="turns at once")
    parser.add_argument("--calls", type=int, default=10, help="model calls of a turn")
    parser.add_argument("--only", default=",".join(CONTENDERS), help="contenders, with commas")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args(given)


def main(given: list[str]) -> int:
    """Start everybody, let them run in turn, and tell."""
    asked = arguments(given)
    names = asked.only.split(",")
    results: dict[str, dict[str, list[Sample]]] = {}
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rejoinder-bench-")))
        servers = stack.enter_context(embedded.servers(environ={}))
        upgrade(servers.database_url)
        engine = create_engine(servers.database_url, poolclass=NullPool)
        place = Place(servers, stack.enter_context(model_server()), logs)
        team = [stack.enter_context(CONTENDERS[name](place)) for name in names]
        for title, chats, times in (("alone", 1, 4), ("at once", asked.chats, 1)):
            results[title] = {contender.name: [] for contender in team}
            for round_ in range(asked.rounds + 1):
                for contender in team[round_ % len(team) :] + team[: round_ % len(team)]:
                    for again in range(times):
                        tasks = make_tasks(
                            f"{title} {round_} {again}", contender, chats, asked.calls
                        )
                        took = sample(contender, tasks, place.model_url, engine)
                        if round_:  # the first one is for warming up
                            results[title][contender.name].append(took)
            print(
                table(f"{chats} turn(s) of {asked.calls} model calls", results[title]), flush=True
            )
    if asked.json:
        asked.json.write_text(json.dumps(figures(results), indent=2), encoding="utf-8")
    return 0


def make_tasks(label: str, contender: Contender, chats: int, calls: int) -> list[Task]:
    """Tasks with names of their own."""
    name = "".join(letter for letter in f"{contender.name}{label}" if letter.isalnum())
    return [Task(f"{name}x{number}", calls=calls) for number in range(chats)]


def figures(results: dict[str, dict[str, list[Sample]]]) -> dict[str, Any]:
    """All that was measured, without the single gaps."""
    return {
        title: {name: summary(samples) for name, samples in by_name.items()}
        for title, by_name in results.items()
    }


def summary(samples: Sequence[Sample]) -> dict[str, float]:
    """One contender's figures over all rounds."""
    gaps = sorted(gap for each in samples for gap in each.gaps)
    steps = sum(each.steps for each in samples)
    cpu = sum(sum(each.cpu.values()) for each in samples)
    rates = [each.turns / each.seconds for each in samples if each.seconds]
    return {
        "gap p50 ms": statistics.median(gaps) * 1000,
        "gap p99 ms": gaps[min(len(gaps) - 1, int(len(gaps) * 0.99))] * 1000,
        "turns/s": statistics.median(rates),
        "turns/s lowest": min(rates),
        "turns/s highest": max(rates),
        "CPU ms/step": cpu / steps * 1000,
        "commits/step": sum(each.commits for each in samples) / steps,
    }


def table(title: str, by_name: dict[str, list[Sample]]) -> str:
    """As people read it, with ratios to what they would write first."""
    told = {name: summary(samples) for name, samples in by_name.items()}
    base = told.get(AGAINST)
    head = [
        "",
        "gap p50",
        "x naive",
        "gap p99",
        "turns/s",
        "(spread)",
        "x naive",
        "CPU/step",
        "commits",
    ]
    rows = [head]
    for name, each in told.items():
        rows.append(
            [
                name,
                f"{each['gap p50 ms']:.1f} ms",
                f"{each['gap p50 ms'] / base['gap p50 ms']:.2f}" if base else "",
                f"{each['gap p99 ms']:.1f} ms",
                f"{each['turns/s']:.2f}",
                f"{each['turns/s lowest']:.2f}-{each['turns/s highest']:.2f}",
                f"{each['turns/s'] / base['turns/s']:.2f}" if base else "",
                f"{each['CPU ms/step']:.1f} ms",
                f"{each['commits/step']:.1f}",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.rjust(width) if n else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(["", title, *lines])


@contextmanager
def model_server() -> Iterator[str]:
    """The model server, ready; gone afterwards."""
    command = [sys.executable, "-m", "scripts.bench_parts.model_server"]
    process = subprocess.Popen(
        [sys.executable, "-S", TETHERED, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )
    try:
        yield cast("IO[str]", process.stdout).readline().strip()
    finally:
        process.kill()
        process.wait()
        cast("IO[str]", process.stdout).close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
