"""make bench-db: the hot paths on small and on full tables, side by side in one run.

Fills two databases (1,000 chats; 200,000 chats with 2,000,000 messages), explains every statement
that the hot paths send, and measures them, interleaved, as ratios. Exit 1 if a plan reads a whole
table or sorts a large set. Sizes: BENCH_CHATS, BENCH_MESSAGES; rounds: BENCH_ROUNDS.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping

from sqlalchemy import Engine, text
from uuid_utils.compat import uuid7

from models import claims
from models.engine import make_engine
from models.migrate import upgrade
from rejoinder import embedded
from scripts.big_tables import fill
from scripts.hot_paths import hot_paths
from scripts.plans import explain, watch, wrong

CHATS = int(os.environ.get("BENCH_CHATS", "200000"))
MESSAGES = int(os.environ.get("BENCH_MESSAGES", "2000000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "200"))
SMALL = 1_000
LONG_CHAT = 5_990  # the newest boundary lies 990 messages back
WARM_UP = 10

Paths = Mapping[str, Callable[[], object]]


def prepare(
    servers: embedded.Servers, name: str, chats: int, per_chat: int
) -> tuple[Engine, Paths]:
    """Make a filled database; return its hot paths."""
    admin = make_engine(servers.database_url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    admin.dispose()
    url = str(admin.url.set(database=name).render_as_string(hide_password=False))
    upgrade(url)
    engine = make_engine(url)
    filled = fill(engine, chats=chats, per_chat=per_chat, long_chat=LONG_CHAT)
    worker_id = uuid7()
    claims.register_worker(engine, worker_id, "measured")
    return engine, hot_paths(engine, filled, worker_id)


def check_plans(engine: Engine, paths: Paths) -> list[str]:
    """What does not scale, of all that these paths send. The first sweep clears the backlog."""
    found = []
    for name, run in paths.items():
        with watch(engine) as caught:
            run()
        for statement in caught:
            bad = wrong(explain(engine, statement))
            found += [f"{name}: {each}: {' '.join(statement.sql.split())[:100]}" for each in bad]
    return found


def measure(sides: Mapping[str, Paths]) -> dict[str, dict[str, list[float]]]:
    """Milliseconds by path and side; the sides take turns, so that both see the same machine."""
    taken: dict[str, dict[str, list[float]]] = {}
    for round_number in range(ROUNDS + WARM_UP):
        for path in next(iter(sides.values())):
            for side, paths in sides.items():
                began = time.perf_counter()
                paths[path]()
                spent = (time.perf_counter() - began) * 1000
                if round_number >= WARM_UP:
                    taken.setdefault(path, {}).setdefault(side, []).append(spent)
    return taken


def main() -> int:
    """Run, print a table and a line of JSON."""
    with embedded.servers(durable=True) as servers:
        small = prepare(servers, "bench_small", SMALL, MESSAGES // CHATS)
        print(f"filling {CHATS:,} chats with {MESSAGES:,} messages …", flush=True)
        full = prepare(servers, "bench_full", CHATS, MESSAGES // CHATS)
        check_plans(*small)  # only to bring it to the same point: small tables are read whole
        bad = check_plans(*full)
        taken = measure({"small": small[1], "full": full[1]})
        for engine, _ in (small, full):
            engine.dispose()
    rows = {}
    print(f"\n{'':14}{'small p50':>11}{'full p50':>11}{'full p99':>11}{'ratio p50':>11}   (ms)")
    for path, sides in taken.items():
        few, many = (statistics.median(sides[side]) for side in ("small", "full"))
        p99 = statistics.quantiles(sides["full"], n=100)[98]
        rows[path] = {"small_ms": few, "full_ms": many, "full_p99_ms": p99, "ratio": many / few}
        print(f"{path:14}{few:11.2f}{many:11.2f}{p99:11.2f}{many / few:11.2f}")
    print("\nplans: " + ("every statement uses an index" if not bad else "\n  ".join(["", *bad])))
    print(json.dumps({"chats": CHATS, "messages": MESSAGES, "rounds": ROUNDS, "paths": rows}))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
