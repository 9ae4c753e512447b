"""W3, latency: to the first word, to rest after an interrupt, and to go on when a worker goes.

First word: a message to a chat at rest, from just before it is sent until a reader in a process of
its own has the first word; the naive app stores it, sends a task that streams, and publishes the
first word. Interrupt: some chats stream; each is stopped in turn. Workers that go: `handing.py`.
"""

import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import count

from rejoinder.streams import key_of
from scripts.bench_parts.handing import hand_over
from scripts.bench_parts.measuring import at
from scripts.bench_parts.place import Place
from scripts.bench_parts.rows import chat_at_rest
from scripts.bench_parts.running import PATIENCE, Naive, Program, Rejoinder, together
from scripts.bench_parts.streams import reader
from scripts.bench_parts.task import Task
from scripts.bench_parts.telling import Target, Told, ratio, table
from scripts.bench_parts.turns import Makers

PACE = 0.02
HEAD_START = 0.03
"""What a reader gets to be there before the first word is."""
BETWEEN_STOPS = 0.05
FIRST = "send -> first word"
ASKED = "send -> model call"
STOP = "interrupt -> waiting"
_NOTES = """
send -> first word: until a reader process has it (rejoinder: Client.stream; naive: a subscriber);
  `one worker` takes messages and steps, as naive's does; else a worker of its own takes messages
send -> model call: until the model server has the request of that
interrupt -> waiting: from just before Client.interrupt until a reader (XREAD every 5 ms) has the
  status, one after the other, while the rest of twenty chats stream
SIGTERM, SIGKILL of one of two workers, with chats in mid-stream on both:
  released -> runs elsewhere: from the moment the worker gave the chat back until another has it
  signal -> runs elsewhere, -> next model call: from the signal; a step may go on for the drain time
  SIGKILL: a third worker is started at once, and may take the chat in its first, slow step
"""
_numbers = count()


def run(asked: Namespace, place: Place, _: Makers) -> Told:
    """Measure all of it, and tell."""
    with ExitStack() as stack:
        ours, naive = Rejoinder(place.apart(), "threads"), Naive(place.apart())
        one = Rejoinder(place.apart(), "threads", all_in_one=True)
        together(stack, [ours, one, naive])
        taken = _first_words(asked, [ours, one], naive) | _stops(asked, ours)
    taken |= hand_over(asked, place)
    made = {
        name: {
            "n": float(len(values)),
            "p50 ms": at(values, 0.5) * 1000,
            "p99 ms": at(values, 0.99) * 1000,
            "longest ms": max(values) * 1000,
        }
        for name, values in taken.items()
        if values
    }
    rows = [
        [name, f"{each['n']:.0f}", *(f"{each[key]:,.0f} ms" for key in list(each)[1:])]
        for name, each in made.items()
    ]
    print(table("W3: latency", ["", "n", "p50", "p99", "longest"], rows, _NOTES), flush=True)
    return Told({"latency": made}, _targets(made))


def _first_words(
    asked: Namespace, ours: Sequence[Rejoinder], naive: Naive
) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {}
    by_client = [reader(each.place, "clients") for each in ours]
    by_channel = reader(naive.place, "channels")
    with ExitStack() as stack:
        for each in (*by_client, by_channel):
            stack.enter_context(each)
        for number in range((asked.rounds + 1) * asked.samples):
            for name, took, called in (
                *((e.name, *_our_first_word(e, r)) for e, r in zip(ours, by_client, strict=True)),
                (naive.name, *_naive_first_word(naive, by_channel)),
            ):
                if number >= asked.samples:  # the first round is for warming up
                    taken.setdefault(f"{name}: {FIRST}", []).append(took)
                    taken.setdefault(f"{name}: {ASKED}", []).append(called)
    return taken


def _our_first_word(ours: Rejoinder, by_client: Program) -> tuple[float, float]:
    task = Task(f"first{next(_numbers)}", calls=1, tokens=5, pace=PACE)
    chat_id = chat_at_rest(ours.place, task.id)
    key = key_of("rejoinder:", chat_id)
    by_client.tell([key])
    time.sleep(HEAD_START)
    ours.place.model.look()
    began = time.time()
    turn = ours.client.send_message(chat_id, task.text)
    first = by_client.hear()[key][0]
    turn.get(timeout=PATIENCE)
    return first - began, ours.place.model.look().calls[0].came - began


def _naive_first_word(naive: Naive, by_channel: Program) -> tuple[float, float]:
    task = Task(f"first{next(_numbers)}", calls=1, tokens=5, pace=PACE)
    by_channel.tell([f"naive:{task.id}"])
    time.sleep(HEAD_START)
    naive.place.model.look()
    began = time.time()
    naive.send(task, "naive.first_word")
    first = by_channel.hear()[f"naive:{task.id}"][0]
    naive.redis.blpop(["naive:done"], timeout=PATIENCE)
    return first - began, naive.place.model.look().calls[0].came - began


def _stops(asked: Namespace, ours: Rejoinder) -> dict[str, list[float]]:
    taken: list[float] = []
    many = reader(ours.place, "many")
    with many:
        for round_ in range(asked.rounds + 1):
            tasks = [
                Task(f"stop{next(_numbers)}", calls=1, tokens=3000, pace=PACE)
                for _ in range(asked.samples)
            ]
            made = ours.create(tasks)
            while len(ours.place.model.look().open) < len(tasks):
                time.sleep(0.05)
            keys = [key_of("rejoinder:", each["chat_id"]) for each in made]
            many.tell(keys)
            asked_at = {}
            for key, each in zip(keys, made, strict=True):
                time.sleep(BETWEEN_STOPS)
                asked_at[key] = time.time()
                ours.client.interrupt(each["chat_id"])
            came = many.hear()
            if round_:
                taken += [came[key][3] - asked_at[key] for key in keys]
    return {f"rejoinder threads: {STOP}": taken}


def _targets(made: Mapping[str, Mapping[str, float]]) -> list[Target]:
    def of(name: str, key: str = "p99 ms") -> float | None:
        return made.get(name, {}).get(key)

    firsts = (f"rejoinder threads{which}: {FIRST}" for which in (", one worker", ""))
    released = of("SIGTERM, default drain: released -> runs elsewhere")
    killed = of("SIGKILL: signal -> runs elsewhere")
    return [
        *(
            Target(
                f"W3: {name} over naive (p50)",
                ratio(of(name, "p50 ms"), of(f"naive: {FIRST}", "p50 ms")),
                1.5,
            )
            for name in firsts
        ),
        Target(f"W3: {STOP} (p99)", of(f"rejoinder threads: {STOP}"), 100, unit="ms"),
        Target("W3: SIGTERM: released -> runs elsewhere (p99)", released, 1000, unit="ms"),
        Target("W3: SIGKILL: signal -> runs elsewhere (p99)", killed, 20_000, unit="ms"),
    ]
