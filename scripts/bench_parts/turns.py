"""W1, agent turns: ten model calls, nine with a trivial tool, and a model that takes no time.

What is left is what each contender adds. One turn alone, then many at once; rounds are interleaved,
each begins with another contender, the first is for warming up. Statements are counted in a pass of
their own.
"""

import statistics
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from scripts.bench_parts.measuring import Sample, at, sample
from scripts.bench_parts.place import Place
from scripts.bench_parts.running import Contender, Rejoinder, together
from scripts.bench_parts.statements import counting
from scripts.bench_parts.task import Task
from scripts.bench_parts.telling import (
    Target,
    Told,
    beside_itself,
    ratio,
    ratios,
    shown,
    table,
)

AGAINST = "naive"
OURS = "rejoinder threads"
PEERS = ("langgraph", "dbos")
ALONE_TIMES = 4
PROCESSES = ("worker", "control", "postgres", "valkey", "model")
_COMPARED = {
    "gap p50": "gap p50 ms",
    "gap p99": "gap p99 ms",
    "turns/s": "turns/s",
    "CPU/step": "CPU ms/step",
    "of workers": "CPU ms/step worker",
    "of Postgres": "CPU ms/step postgres",
    "stmts": "statements/step",
}
Makers = Mapping[str, Callable[[Place], Contender]]
_NOTES = """
gap: from the end of a model call to the beginning of the next of its turn, at the model server
turns/s: from the first message sent to the end of the last model call; median, lowest-highest round
commits, stmts: transactions and statements in the contender's database, per model call
"""
_CPU_NOTES = """
CPU milliseconds per model call, by process; postgres with all its backends
model busy: the model server's CPU over the time of the runs: 100% would be a bottleneck
"""


def run(asked: Namespace, place: Place, makers: Makers) -> Told:
    """Have everybody run turns, and tell."""
    told = Told()
    with ExitStack() as stack:
        team = [make(place.apart()) for make in makers.values()]
        team += [Rejoinder(place.apart(each), "threads") for each in place.variants]
        together(stack, team)
        counted = {each.name: _counted(each, asked.calls) for each in team}
        for title, chats, times in (("alone", 1, ALONE_TIMES), ("at once", asked.chats, 1)):
            samples = _rounds(asked, team, title, chats, times)
            made = {name: _summary(each) | counted[name] for name, each in samples.items()}
            told.figures[title] = made
            print(_table(f"W1: {chats} turn(s) of {asked.calls} model calls", made), flush=True)
            print(_cpu_table(made), flush=True)
            print(beside_itself(OURS, place.variants, made, _COMPARED), flush=True)
    told.targets = _targets(told.figures)
    return told


def _rounds(
    asked: Namespace, team: Sequence[Contender], title: str, chats: int, times: int
) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {contender.name: [] for contender in team}
    for round_ in range(asked.rounds + 1):
        first = round_ % len(team)
        for contender in [*team[first:], *team[:first]]:
            for again in range(times):
                tasks = make_tasks(f"{title} {round_} {again}", contender, chats, asked.calls)
                took = sample(contender, tasks)
                if round_:
                    samples[contender.name].append(took)
    return samples


def make_tasks(
    label: str, contender: Contender, chats: int, calls: int, before: int = 0
) -> list[Task]:
    """Tasks with names of their own."""
    name = "".join(letter for letter in f"{contender.name}{label}" if letter.isalnum())
    return [Task(f"{name}x{number}", calls=calls, before=before) for number in range(chats)]


def _counted(contender: Contender, calls: int) -> dict[str, float]:
    contender.run(make_tasks("first", contender, 1, calls))
    with counting(contender.place) as counted:
        contender.run(make_tasks("counted", contender, 1, calls))
    if counted.statements is None or counted.commits is None:
        return {}
    return {
        "statements/step": counted.statements / calls,
        "commits/step": counted.commits / calls,
    }


def _summary(samples: Sequence[Sample]) -> dict[str, float]:
    """One contender's figures over all rounds."""
    gaps = [gap for each in samples for gap in each.gaps]
    steps = sum(each.steps for each in samples)
    rates = [each.turns / each.seconds for each in samples if each.seconds]
    made = {
        "gap p50 ms": at(gaps, 0.5) * 1000,
        "gap p99 ms": at(gaps, 0.99) * 1000,
        "turns/s": statistics.median(rates),
        "turns/s lowest": min(rates),
        "turns/s highest": max(rates),
        "model busy": sum(each.cpu.get("model", 0.0) for each in samples)
        / sum(each.seconds for each in samples),
    }
    for name in PROCESSES:
        used = sum(each.cpu.get(name, 0.0) for each in samples)
        made[f"CPU ms/step {name}"] = used / steps * 1000
    own = [name for name in PROCESSES if name != "model"]
    made["CPU ms/step"] = sum(made[f"CPU ms/step {name}"] for name in own)
    return made


def _table(title: str, figures: Mapping[str, Mapping[str, float]]) -> str:
    head = ["", "gap p50", f"x {AGAINST}", "gap p99", "turns/s", "(spread)", f"x {AGAINST}"]
    head += ["CPU/step", f"x {AGAINST}", "commits", "stmts"]
    rows = [
        [
            name,
            f"{each['gap p50 ms']:.1f} ms",
            shown(ratios(figures, name, "gap p50 ms", AGAINST)),
            f"{each['gap p99 ms']:.1f} ms",
            f"{each['turns/s']:.2f}",
            f"{each['turns/s lowest']:.2f}-{each['turns/s highest']:.2f}",
            shown(ratios(figures, name, "turns/s", AGAINST)),
            f"{each['CPU ms/step']:.1f} ms",
            shown(ratios(figures, name, "CPU ms/step", AGAINST)),
            shown(each.get("commits/step"), ".1f"),
            shown(each.get("statements/step"), ".1f"),
        ]
        for name, each in figures.items()
    ]
    return table(title, head, rows, _NOTES)


def _cpu_table(figures: Mapping[str, Mapping[str, float]]) -> str:
    rows = [
        [
            name,
            *(f"{each[f'CPU ms/step {process}']:.2f}" for process in PROCESSES),
            f"{each['model busy']:.0%}",
        ]
        for name, each in figures.items()
    ]
    return table("CPU", ["", *PROCESSES, "model busy"], rows, _CPU_NOTES)


def _targets(figures: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[Target]:
    alone, crowd = figures["alone"], figures["at once"]
    peers = [e["gap p50 ms"] for n, e in alone.items() if n.startswith(PEERS)]
    ours = alone.get(OURS, {}).get("gap p50 ms")
    return [
        Target(
            "W1: gap of one chat, rejoinder threads over naive",
            ratios(alone, OURS, "gap p50 ms", AGAINST),
            1.35,
        ),
        Target(
            "W1: gap of one chat, rejoinder threads over the fastest durable peer",
            ratio(ours, min(peers, default=None)),
            1.0,
        ),
        Target(
            "W1: CPU of a step of one chat, rejoinder threads over naive",
            ratios(alone, OURS, "CPU ms/step", AGAINST),
            1.5,
        ),
        Target(
            "W1: turns/s of many, rejoinder threads over naive",
            ratios(crowd, OURS, "turns/s", AGAINST),
            0.8,
            least=True,
        ),
    ]
