"""W4, growth: the same turn behind longer and longer histories, and among more and more chats.

Any client has to send the prompt, so the bare loop and the naive task get the same histories. What
lies behind a compaction boundary is not in the prompt: there only ours can be asked. Rows are made
with SQL; each turn has a chat of its own; all take turns in each round.
"""

import math
import time
from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count, pairwise

from models.engine import make_engine
from scripts.bench_parts.measuring import at, by_task
from scripts.bench_parts.place import Place
from scripts.bench_parts.rows import chat_at_rest
from scripts.bench_parts.running import PATIENCE, Contender, Naive, Program, Rejoinder, together
from scripts.bench_parts.task import WORDS, Task
from scripts.bench_parts.telling import Target, Told, ratio, ratios, shown, table
from scripts.bench_parts.turns import AGAINST, OURS, Makers
from scripts.big_tables import fill

FEW = 10
"""Messages that are in the prompt where the rest is behind a boundary; also the shortest row."""
_NOTES = """
gap: between two model calls of a turn (p50, p99)
x itself: over its own gap with the shortest history
in the prompt: all messages before the turn are sent to the model with each call
"""
_NAIVE_HISTORY = """
INSERT INTO naive_messages (chat, role, content)
SELECT %(name)s, CASE WHEN n %% 2 = 0 THEN 'assistant' ELSE 'user' END, to_json(%(words)s::text)
  FROM generate_series(1, %(messages)s) AS n ORDER BY n
"""
_TO_REST = """
SET session_replication_role = replica;
UPDATE rejoinder.chats
   SET status = 'waiting', turn_id = NULL, lease_id = NULL, worker_id = NULL, deadline = NULL,
       redispatch_at = NULL, dispatches = 0, queue_length = 0
 WHERE status NOT IN ('waiting', 'error');
DELETE FROM rejoinder.queued_messages;
UPDATE rejoinder.turns SET state = 'finished', ended_at = now() WHERE state <> 'finished';
DELETE FROM rejoinder.tool_calls WHERE NOT settled;
DELETE FROM rejoinder.workers;
"""
_numbers = count()


@dataclass(frozen=True)
class Row:
    """One line of the table: who runs a turn behind which history."""

    contender: Contender
    what: str
    before: int
    boundary: int = 0
    """The message that stands for all before it; 0: none."""

    @property
    def name(self) -> str:
        """As it is told."""
        return f"{self.contender.name}, {self.what}"


def run(asked: Namespace, place: Place, _: Makers) -> Told:
    """Have everybody run turns behind their histories, and tell."""
    with ExitStack() as stack:
        crowded = place.apart()
        _fill(crowded, asked.tables)
        big = Rejoinder(crowded, "threads")
        ours = big if place.small else Rejoinder(place.apart(), "threads")
        plain = [Program(place.apart(), "bare"), Naive(place.apart()), ours]
        together(stack, [*plain, big] if big is not ours else plain)
        rows = [
            Row(contender, f"{before:,} in the prompt", before)
            for before in (FEW, *asked.messages)
            for contender in plain
        ]
        longest = asked.messages[-1]
        boundary = longest - FEW + 1
        rows.append(Row(ours, f"{longest:,}, {FEW} since a boundary", longest, boundary))
        rows.append(Row(big, f"{FEW} in the prompt, {asked.tables:,} chats", FEW))
        gaps: dict[str, list[float]] = {row.name: [] for row in rows}
        for round_ in range(asked.rounds + 1):
            for row in [*rows[round_ % len(rows) :], *rows[: round_ % len(rows)]]:
                took = _turn(row, asked.calls)
                if round_:
                    gaps[row.name] += took
    made = _figures(rows, gaps)
    print(_table(made), flush=True)
    return Told({"rows": made}, _targets(made, rows))


def _turn(row: Row, calls: int) -> list[float]:
    """Run one turn; its gaps."""
    contender, place = row.contender, row.contender.place
    task = Task(f"growth{next(_numbers)}", calls=calls, before=row.before)
    place.model.look()
    if isinstance(contender, Rejoinder):
        chat_id = chat_at_rest(place, task.id, messages=row.before, boundary=row.boundary)
        contender.client.send_message(chat_id, task.text).get(timeout=PATIENCE)
    else:
        if isinstance(contender, Naive):
            given = {"name": task.id, "messages": row.before, "words": WORDS}
            place.execute(_NAIVE_HISTORY, given, database=place.database)
        contender.run([task])
    of_one = by_task(place.model.look().calls)[task.id]
    if len(of_one) != calls:
        raise RuntimeError(f"{row.name}: {len(of_one)} model calls instead of {calls}")
    return [b.came - a.ended for a, b in pairwise(of_one)]


def _fill(place: Place, chats: int) -> None:
    """Put so many chats at rest into a place's database."""
    print(f"\nW4: filling tables with {chats:,} chats …", flush=True)
    began = time.monotonic()
    engine = make_engine(place.database_url)
    fill(engine, chats=chats, per_chat=1)
    engine.dispose()
    place.execute(_TO_REST, database=place.database)
    place.execute("VACUUM ANALYZE", database=place.database)
    print(f"  in {time.monotonic() - began:.0f} s", flush=True)


def _figures(rows: list[Row], gaps: Mapping[str, list[float]]) -> dict[str, dict[str, float]]:
    made: dict[str, dict[str, float]] = {}
    for row in rows:
        own = f"{row.contender.name}, {FEW} in the prompt"
        took = gaps[row.name]
        made[row.name] = {
            "gap p50 ms": at(took, 0.5) * 1000,
            "gap p99 ms": at(took, 0.99) * 1000,
        }
        grown = ratio(made[row.name]["gap p50 ms"], made[own]["gap p50 ms"])
        made[row.name]["x itself"] = math.nan if grown is None else grown
    return made


def _table(made: Mapping[str, Mapping[str, float]]) -> str:
    def against(name: str) -> str:
        whose, _, what = name.partition(", ")
        return shown(ratios(made, name, "gap p50 ms", f"{AGAINST}, {what}")) if whose else "-"

    rows = [
        [
            name,
            f"{each['gap p50 ms']:.1f} ms",
            f"{each['gap p99 ms']:.1f} ms",
            f"{each['x itself']:.2f}",
            against(name),
        ]
        for name, each in made.items()
    ]
    head = ["messages before the turn", "gap p50", "gap p99", "x itself", f"x {AGAINST}"]
    return table("W4: growth", head, rows, _NOTES)


def _targets(made: Mapping[str, Mapping[str, float]], rows: list[Row]) -> list[Target]:
    behind, among = rows[-2], rows[-1]
    longest = f"{behind.before:,} in the prompt"
    more = {
        whose: made[f"{whose}, {longest}"]["gap p50 ms"]
        - made[f"{whose}, {FEW} in the prompt"]["gap p50 ms"]
        for whose in (AGAINST, OURS)
    }
    return [
        Target(f"W4: {behind.name}, over {FEW}", made[behind.name]["x itself"], 1.3),
        Target(f"W4: {among.name}, over a few chats", made[among.name]["x itself"], 1.3),
        Target(
            f"W4: what {longest} add to a gap, rejoinder threads over naive",
            ratio(more[OURS], more[AGAINST]),
            1.3,
        ),
    ]
