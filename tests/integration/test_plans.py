"""With many rows, every statement of the hot paths goes through an index.

The statements are not listed here: they are caught as the real functions send them, and explained
on a filled database. So a new or changed statement is checked without anybody remembering to.
`make bench-db` does the same at full size and measures.
"""

from sqlalchemy import Engine, text
from uuid_utils.compat import uuid7

from models import claims
from models.engine import transaction
from models.history import prompt_history
from scripts.big_tables import fill
from scripts.hot_paths import hot_paths
from scripts.plans import Caught, explain, watch, wrong

CHATS = 50_000
PER_CHAT = 4
LONG_CHAT = 5_000


def test_hot_paths_never_read_a_whole_table_nor_sort_a_large_set(engine: Engine) -> None:
    filled = fill(engine, chats=CHATS, per_chat=PER_CHAT, long_chat=LONG_CHAT)
    worker_id = uuid7()
    claims.register_worker(engine, worker_id, "measured")
    seen: dict[str, list[Caught]] = {}
    for name, run in hot_paths(engine, filled, worker_id).items():
        with watch(engine) as caught:
            run()
        seen[name] = caught
        assert caught, f"{name} sent nothing"
    bad = {
        f"{name}: {' '.join(statement.sql.split())[:120]}": found
        for name, statements in seen.items()
        for statement in statements
        if (found := wrong(explain(engine, statement)))
    }
    assert not bad
    assert [len(seen[name]) for name in ("claim", "record", "commit")] == [1, 1, 1]
    assert len(seen["heartbeat"]) == 2  # in one round trip
    assert len(seen["history"]) == 1


def test_the_check_notices_a_missing_index(engine: Engine) -> None:
    filled = fill(engine, chats=CHATS, per_chat=1)
    with engine.begin() as connection:
        connection.execute(
            text("ALTER TABLE rejoinder.messages DROP CONSTRAINT messages_pkey CASCADE")
        )
    with watch(engine) as caught, transaction(engine) as tx:
        prompt_history(tx, filled.long)
    assert "reads all of messages" in [e for c in caught for e in wrong(explain(engine, c))]


def test_a_long_chat_is_read_from_its_newest_boundary_on(engine: Engine) -> None:
    filled = fill(engine, chats=100, per_chat=PER_CHAT, long_chat=LONG_CHAT)
    with transaction(engine) as tx:
        shown = prompt_history(tx, filled.long)
    system, boundary, *rest = shown
    assert (system.role, boundary.compressed) == ("system", True)
    assert rest == []  # the last of the 5,000 is itself a boundary
    assert [m.id for m in shown] == sorted(m.id for m in shown)
