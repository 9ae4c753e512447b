"""make bench: contenders side by side in one run, interleaved, as ratios.

One start of servers, one model server (a process of its own, which keeps the clock), several rounds
in turn: `--against REV` is another commit of this repository beside it, `--with-env` this one with
another environment. Prints tables, then the targets, met or not; with --json, all figures. What
they mean: docs/performance.md. A workload is a module of `bench_parts`.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rejoinder import embedded
from scripts.bench_parts import growth, latency, peers, streams, turns
from scripts.bench_parts.model import Model, capacity, model_server
from scripts.bench_parts.place import Place
from scripts.bench_parts.running import Contender, Naive, Program, Rejoinder
from scripts.bench_parts.telling import Told
from scripts.bench_parts.turns import Makers
from scripts.bench_parts.variants import checked_out, with_env
from scripts.fleet import heeding_signals

CONTENDERS: dict[str, Callable[[Place], Contender]] = {
    "bare": lambda place: Program(place, "bare"),
    "nothing": lambda place: Naive(place, "nothing", nothing=True),
    "naive": Naive,
    "threads": lambda place: Rejoinder(place, "threads"),
    "prefork": lambda place: Rejoinder(place, "prefork"),
    **peers.installed(),
}
WORKLOADS: Mapping[str, Callable[[argparse.Namespace, Place, Makers], Told]] = {
    "w1": turns.run,
    "w2": streams.run,
    "w3": latency.run,
    "w4": growth.run,
}


SIZES: Mapping[str, Mapping[str, Any]] = {
    "full": {
        "rounds": 5,
        "chats": 50,
        "calls": 10,
        "streams": [300, 1000],
        "words": 200,
        "samples": 20,
        "kills": 6,
        "in_flight": 8,
        "messages": [1000, 10_000],
        "tables": 1_000_000,
    },
    "quick": {"rounds": 2, "streams": [100], "samples": 10, "kills": 2, "tables": 100_000},
    "tiny": {
        "rounds": 1,
        "chats": 2,
        "calls": 3,
        "streams": [2],
        "words": 5,
        "samples": 2,
        "kills": 1,
        "in_flight": 1,
        "messages": [20],
        "tables": 300,
    },
}
"""What is not said on the command line; what a smaller size does not say is as in the full one."""


def arguments(given: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    add = parser.add_argument
    add("--workloads", type=names, default=list(WORKLOADS), help="which, with commas")
    add("--only", type=names, default=list(CONTENDERS), help="contenders of w1, with commas")
    add("--streamers", type=names, default=list(streams.NAMES), help="of w2, with commas")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const="quick", default="full")
    size.add_argument(
        "--tiny", dest="size", action="store_const", const="tiny", help="only to see it run"
    )
    add(
        "--against",
        action="append",
        default=[],
        metavar="REV",
        help="another commit of this repository, too, in w1 and w2; may be repeated",
    )
    add(
        "--with-env",
        type=with_env,
        action="append",
        default=[],
        metavar="NAME=VARIABLE=VALUE,...",
        help="this commit with another environment, too, e.g. plain=REJOINDER_FAST=off",
    )
    add("--rounds", type=int, help="of each workload")
    add("--chats", type=int, help="w1: turns at once")
    add("--calls", type=int, help="w1, w4: model calls of a turn")
    add("--streams", type=numbers, help="w2: how many at once, e.g. 300,1000")
    add("--words", type=int, help="w2: of each stream")
    add("--samples", type=int, help="w3: first words, and stopped chats, of a round")
    add("--kills", type=int, help="w3: workers that go, of each kind")
    add("--in-flight", type=int, help="w3: chats that a worker has when it goes")
    add("--messages", type=numbers, help="w4: before the turn, e.g. 1000,10000")
    add("--tables", type=int, help="w4: chats in large tables")
    add("--json", type=Path, help="write the figures to this file")
    add("--logs", type=Path, help="keep the contenders' logs in this folder")
    asked = parser.parse_args(given)
    for name, value in {**SIZES["full"], **SIZES[asked.size]}.items():
        if getattr(asked, name) is None:
            setattr(asked, name, value)
    return asked


def names(given: str) -> list[str]:
    """Words with commas."""
    return given.split(",")


def numbers(given: str) -> list[int]:
    """Numbers with commas."""
    return [int(each) for each in given.split(",")]


def main(given: list[str]) -> int:
    """Start what all share, have the workloads run, and tell."""
    asked = arguments(given)
    makers = {name: CONTENDERS[name] for name in asked.only}
    told: dict[str, Told] = {}
    if not peers.installed():
        print(peers.HOW, flush=True)
    with heeding_signals(), ExitStack() as stack:
        logs = stack.enter_context(tempfile.TemporaryDirectory(prefix="rejoinder-bench-"))
        variants = [*asked.with_env]
        variants += [stack.enter_context(checked_out(revision)) for revision in asked.against]
        servers = stack.enter_context(embedded.servers(environ={}))
        model = stack.enter_context(model_server())
        tiny = asked.size == "tiny"
        place = Place(servers, model, asked.logs or Path(logs), variants=variants, small=tiny)
        place.prepare()
        alone = show_capacity(model, tiny=tiny)
        for name in asked.workloads:
            told[name] = WORKLOADS[name](asked, place, makers)
    print("\ntargets")
    for target in (target for each in told.values() for target in each.targets):
        print(target.line())
    if asked.json:
        figures = {name: each.figures for name, each in told.items()}
        met = [
            {"says": target.says, "value": target.value, "limit": target.limit, "met": target.met}
            for each in told.values()
            for target in each.targets
        ]
        whole = {"model server alone": alone, **figures, "targets": met}
        asked.json.write_text(json.dumps(whole, indent=2), encoding="utf-8")
    return 0


def show_capacity(model: Model, *, tiny: bool) -> dict[str, float]:
    """Print what the model server does by itself: far more than any contender asks for."""
    told = capacity(model, 10, 0.2) if tiny else capacity(model, 1000, 2.0)
    print(
        f"the model server alone, against a raw client: {told['calls/s']:,.0f} calls/s"
        f" ({told['CPU us/call']:.0f} us CPU each); {told['streams']:,.0f} streams at once,"
        f" {told['words/s']:,.0f} words/s, p99 {told['late p99 ms']:.0f} ms late,"
        f" {told['CPU share at that']:.0%} of a core",
        flush=True,
    )
    return told


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
