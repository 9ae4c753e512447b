"""W2, many slow streams: 200 words, one every 20 ms, of so many chats at once.

The model begins when all calls are open (and starts them within a second), so that all stream at
the same time, whoever sent them how fast. Each sample has fresh processes, which first run two
short chats. The bare loops note when their own stream yields the last word; for the others a reader
in a process of its own does (`reader.py`).
"""

import statistics
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple

from rejoinder.streams import key_of
from scripts.bench_parts.measuring import at, cpu
from scripts.bench_parts.model_server import Call
from scripts.bench_parts.place import Place
from scripts.bench_parts.processes import forget_peak, peak
from scripts.bench_parts.running import Contender, Program, Rejoinder
from scripts.bench_parts.task import Task
from scripts.bench_parts.telling import Target, Told, beside_itself, ratios, shown, table
from scripts.bench_parts.turns import OURS, PROCESSES, Makers
from scripts.bench_parts.variants import Variant

PACE = 0.02
CLIENTS = 5
"""Chats of each run that a `Client.stream` follows, too."""
BARE = ("bare helper", "bare raw", "bare redis")
TWO = "rejoinder threads x2"
NAMES = (*BARE, OURS, TWO)
_COMPARED = {
    "delay p50": "delay p50 ms",
    "delay p99": "delay p99 ms",
    "middle p99": "middle delay p99 ms",
    "memory": "memory MiB/chat",
    "CPU of workers": "CPU s worker",
    "of Postgres": "CPU s postgres",
}
LATE_SECONDS = 0.01
"""A model that is later than this is not one that many can be measured with."""
_NOTES = """
at once: calls that the model server had open at the same time
delay: from the model server's write of a chat's last word until the reader has it (p50, p99). The
  reader is a bare loop itself; of `bare redis` and rejoinder, a process with one XREAD every 5 ms;
  by Client: five of the chats, which a `Client.stream` each follows, too (p50)
middle: the same of the word in the middle, when no chat begins or ends
took: from the first word written to the last one read; memory: the workers' peak over idle, a chat
CPU: seconds by process, all chats together; late: how late the model wrote its words (p99)
"""


@dataclass
class Sample:
    """One run of so many chats."""

    delays: list[float]
    middle: list[float]
    by_client: list[float]
    took: float
    memory: float
    cpu: dict[str, float]
    most: int
    late: float
    lost: int


def run(asked: Namespace, place: Place, _: Makers) -> Told:
    """Have everybody stream, and tell."""
    told = Told()
    for number, streams in enumerate(asked.streams):
        makers = {name: make for name, make in _makers(streams).items() if name in asked.streamers}
        makers |= {OURS + each.label: _rejoinder(streams, variant=each) for each in place.variants}
        samples: dict[str, list[Sample]] = {name: [] for name in makers}
        names = list(makers)
        # Once is enough for the larger sizes: they take long, and say the same.
        for round_ in range(1 if number else asked.rounds):
            first = round_ % len(names)
            for name in [*names[first:], *names[:first]]:
                samples[name].append(_sample(makers[name], place, streams, asked.words, name))
        made = {name: _summary(each, streams) for name, each in samples.items()}
        told.figures[str(streams)] = made
        print(_table(f"W2: {streams:,} streams of {asked.words} words", made), flush=True)
        print(beside_itself(OURS, place.variants, made, _COMPARED), flush=True)
        late = max(each["late p99 ms"] for each in made.values())
        if late > LATE_SECONDS * 1000:
            print(
                f"  The model server was up to {late:.0f} ms late at {streams:,} streams: this"
                " machine has too little CPU for both sides, so take these figures as a bound."
            )
    told.targets = _targets(told.figures, asked.streams[0])
    return told


def _makers(streams: int) -> Mapping[str, Callable[[Place], Contender]]:
    def bare(name: str) -> Callable[[Place], Contender]:
        how = name.partition(" ")[2]
        return lambda place: Program(place.apart(BENCH_HOW=how), "bare_streams", title=name)

    ours = {OURS: _rejoinder(streams), TWO: _rejoinder(streams, 2)}
    return {name: bare(name) for name in BARE} | ours


def _rejoinder(
    streams: int, workers: int = 1, variant: Variant | None = None
) -> Callable[[Place], Contender]:
    slots = streams + 20
    return lambda place: Rejoinder(place.apart(variant), "threads", workers=workers, slots=slots)


def _sample(
    make: Callable[[Place], Contender], place: Place, streams: int, words: int, name: str
) -> Sample:
    prefix = "".join(letter for letter in name if letter.isalnum())
    tasks = [
        Task(f"{prefix}x{number}", calls=1, tokens=words, pace=PACE, crowd=streams)
        for number in range(streams)
    ]
    with ExitStack() as stack:
        contender = stack.enter_context(make(place))
        readers = _Readers(stack, contender)
        model, workers = place.model, contender.processes()["worker"]
        contender.run([Task(f"{prefix}w{n}", calls=1, tokens=5, pace=PACE) for n in range(2)])
        model.look()
        before, idle = cpu(contender), forget_peak(workers)
        came = readers.run(tasks)
        after, seen = cpu(contender), model.look()
        memory = (peak(workers) - idle) / streams
    wrote = {call.task: call for call in seen.calls}
    return Sample(
        delays=[each.last - wrote[task].last for task, each in came.items()],
        middle=[each.middle - _middle(wrote[task], words) for task, each in came.items()],
        by_client=[last - wrote[task].last for task, last in readers.by_client.items()],
        took=max(each.last for each in came.values()) - min(c.first for c in seen.calls),
        memory=memory,
        cpu={process: used - before.get(process, 0.0) for process, used in after.items()},
        most=seen.most,
        late=seen.late_p99,
        lost=sum(words - each.words for each in came.values()),
    )


def _middle(call: Call, words: int) -> float:
    """When the middle word was written, about: they are written evenly."""
    return call.first + (call.last - call.first) * (words // 2) / max(1, words - 1)


class _Came(NamedTuple):
    """What a reader saw of one chat."""

    last: float
    words: int
    middle: float


class _Readers:
    """Who sees the words of a contender."""

    def __init__(self, stack: ExitStack, contender: Contender) -> None:
        """Start readers, if this one needs any."""
        self._contender = contender
        self.by_client: dict[str, float] = {}
        self._many: Program | None = None
        self._clients: Program | None = None
        if contender.name not in BARE[:2]:
            self._many = reader(contender.place, "many")
            stack.enter_context(self._many)
        if isinstance(contender, Rejoinder):
            self._clients = reader(contender.place, "clients")
            stack.enter_context(self._clients)

    def run(self, tasks: Sequence[Task]) -> dict[str, _Came]:
        """Run; what was seen of each task."""
        contender = self._contender
        if isinstance(contender, Rejoinder):
            made = contender.create(tasks)
            keys = [key_of("rejoinder:", each["chat_id"]) for each in made]
            return self._read(keys, [task.id for task in tasks])
        if isinstance(contender, Program) and self._many is None:
            contender.run(tasks)
            return {task: _Came(*seen) for task, *seen in contender.said}
        names = [task.id for task in tasks]
        self._tell(names)
        contender.run(tasks)
        return self._heard(names, names)

    def _read(self, keys: list[str], names: list[str]) -> dict[str, _Came]:
        self._tell(keys)
        if self._clients is not None:
            # Not the first ones: those end before the others do.
            some = dict([*zip(keys, names, strict=True)][:: max(1, len(keys) // CLIENTS)])
            self._clients.tell(list(some))
            self.by_client = {some[key]: came[1] for key, came in self._clients.hear().items()}
        return self._heard(keys, names)

    def _tell(self, keys: list[str]) -> None:
        if self._many is not None:
            self._many.tell(keys)

    def _heard(self, keys: list[str], names: list[str]) -> dict[str, _Came]:
        came = self._many.hear() if self._many is not None else {}
        return {
            name: _Came(came[key][1], came[key][2], came[key][4])
            for key, name in zip(keys, names, strict=True)
        }


def reader(place: Place, how: str) -> Program:
    """A reader of this place's streams."""
    told = replace(place, settings={**place.settings, "BENCH_READS": how})
    return Program(told, "reader", package="scripts.bench_parts")


def _summary(samples: Sequence[Sample], streams: int) -> dict[str, float]:
    delays = [delay for each in samples for delay in each.delays]
    middle = [delay for each in samples for delay in each.middle]
    by_client = [delay for each in samples for delay in each.by_client]
    p99s = [at(each.delays, 0.99) * 1000 for each in samples]
    made = {
        "at once": float(min(each.most for each in samples)),
        "delay p50 ms": at(delays, 0.5) * 1000,
        "delay p99 ms": statistics.median(p99s),
        "delay p99 ms lowest": min(p99s),
        "delay p99 ms highest": max(p99s),
        "middle delay p50 ms": at(middle, 0.5) * 1000,
        "middle delay p99 ms": at(middle, 0.99) * 1000,
        "delay by Client p50 ms": at(by_client, 0.5) * 1000,
        "took s": statistics.median(each.took for each in samples),
        "memory MiB/chat": statistics.median(each.memory for each in samples),
        "late p99 ms": max(each.late for each in samples) * 1000,
        "words lost": float(sum(each.lost for each in samples)),
        "streams": float(streams),
    }
    for name in PROCESSES:
        made[f"CPU s {name}"] = statistics.median(each.cpu.get(name, 0.0) for each in samples)
    made["model busy"] = made["CPU s model"] / made["took s"]
    return made


def _table(title: str, figures: Mapping[str, Mapping[str, float]]) -> str:
    head = ["", "at once", "delay p50", "delay p99", "(spread)", "x helper", "x raw", "x redis"]
    head += [
        "middle p50",
        "p99",
        "by Client",
        "took",
        "memory",
        *(f"CPU {name}" for name in PROCESSES),
    ]
    head += ["model busy", "late"]
    rows = []
    for name, each in figures.items():
        compared = [shown(ratios(figures, name, "delay p99 ms", bare)) for bare in BARE]
        rows.append(
            [
                name,
                f"{each['at once']:,.0f}",
                f"{each['delay p50 ms']:,.0f} ms",
                f"{each['delay p99 ms']:,.0f} ms",
                f"{each['delay p99 ms lowest']:,.0f}-{each['delay p99 ms highest']:,.0f}",
                *compared,
                f"{each['middle delay p50 ms']:,.0f} ms",
                f"{each['middle delay p99 ms']:,.0f} ms",
                shown(each["delay by Client p50 ms"], ",.0f", " ms"),
                f"{each['took s']:.1f} s",
                f"{each['memory MiB/chat']:.2f} MiB",
                *(f"{each[f'CPU s {process}']:.2f}" for process in PROCESSES),
                f"{each['model busy']:.0%}",
                f"{each['late p99 ms']:.0f} ms",
            ]
        )
    lost = {name: int(each["words lost"]) for name, each in figures.items() if each["words lost"]}
    notes = f"{_NOTES.rstrip()}\nWORDS LOST: {lost}" if lost else _NOTES
    return table(title, head, rows, notes)


def _targets(
    by_size: Mapping[str, Mapping[str, Mapping[str, float]]], streams: int
) -> list[Target]:
    figures = by_size[str(streams)]
    ours = figures.get(OURS, {})
    says = f"W2: {streams} streams, rejoinder threads in one process"
    return [
        Target(
            f"{says}: at once",
            ours.get("at once"),
            streams,
            least=True,
            unit="chats",
        ),
        Target(
            f"{says}: p99 delay of the last word over the bare loop's (SDK helper)",
            ratios(figures, OURS, "delay p99 ms", BARE[0]),
            1.2,
        ),
        Target(
            f"{says}: p99 delay of the last word over the bare loop's (raw)",
            ratios(figures, OURS, "delay p99 ms", BARE[1]),
            1.2,
        ),
        Target(f"{says}: memory of a chat", ours.get("memory MiB/chat"), 1.5, unit="MiB"),
    ]
