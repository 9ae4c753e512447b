"""Fills a migrated database with many chats, for EXPLAIN and for measurements.

Rows are written in bulk with SQL, past the machine, in proportions like a busy installation's: most
chats rest, a few per cent are pending, running or parked, some of them overdue or orphaned.
"""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, Engine, text

_FILL = """
SET LOCAL session_replication_role = replica;  -- the rows fit together; no need to check each

INSERT INTO rejoinder.workers (id, name, seen_at)
SELECT md5('worker' || n)::uuid, 'worker ' || n,
       CASE WHEN n = 0 THEN now() - interval '1 hour' ELSE now() + interval '1 day' END
  FROM generate_series(0, 9) AS n;

INSERT INTO rejoinder.chats
       (id, owner, root_id, status, turn_id, lease_id, worker_id, deadline, last_error,
        redispatch_at, dispatches, queue_length)
SELECT md5('chat' || n)::uuid, 'owner ' || n % 1000, md5('chat' || n)::uuid, status,
       CASE WHEN status NOT IN ('waiting', 'error') THEN md5('turn' || n)::uuid END,
       CASE WHEN status = 'running' THEN md5('lease' || n)::uuid END,
       CASE WHEN status = 'running' THEN md5('worker' || n / 100 % 10)::uuid END,
       CASE WHEN status = 'sleeping' THEN now() + (n % 40 - 1) * interval '1 minute' END,
       CASE WHEN status = 'error' THEN '{"kind": "generic"}'::json END,
       CASE WHEN status = 'pending' THEN now() + (n % 40 - 1) * interval '1 minute' END,
       CASE WHEN status = 'pending' THEN 1 ELSE 0 END,
       CASE WHEN n % 100 IN (2, 3) THEN 3 ELSE 0 END
  FROM (SELECT n, CASE n % 100 WHEN 1 THEN 'pending' WHEN 2 THEN 'pending' WHEN 3 THEN 'running'
                  WHEN 4 THEN 'sleeping' WHEN 5 THEN 'error' ELSE 'waiting' END AS status
          FROM generate_series(1, :chats) AS n) AS numbered;

INSERT INTO rejoinder.turns (id, chat_id, kind, state, ended_at)
SELECT md5('turn' || n)::uuid, md5('chat' || n)::uuid, 'message',
       CASE WHEN n % 100 IN (1, 2, 3, 4) THEN 'open' ELSE 'finished' END,
       CASE WHEN n % 100 IN (1, 2, 3, 4) THEN NULL ELSE now() END
  FROM generate_series(1, :chats) AS n;

INSERT INTO rejoinder.turns (id, chat_id, kind, state)
SELECT md5('queued' || n || '/' || q)::uuid, md5('chat' || n)::uuid, 'message', 'queued'
  FROM generate_series(1, :chats) AS n, generate_series(1, 3) AS q WHERE n % 100 IN (2, 3);

INSERT INTO rejoinder.queued_messages (chat_id, turn_id, position, parts)
SELECT md5('chat' || n)::uuid, md5('queued' || n || '/' || q)::uuid, q,
       '[{"type": "text", "text": "and then?"}]'
  FROM generate_series(1, :chats) AS n, generate_series(1, 3) AS q WHERE n % 100 IN (2, 3);

INSERT INTO rejoinder.messages (chat_id, turn_id, role, visibility, revision, parts)
SELECT md5('chat' || n)::uuid, md5('turn' || n)::uuid,
       (ARRAY['system', 'user', 'assistant', 'tool'])[CASE m WHEN 1 THEN 1 ELSE 2 + m % 3 END],
       'both', 1, json_build_array(json_build_object('type', 'text', 'text', repeat('x', 120)))
  FROM generate_series(1, :per_chat) AS m, generate_series(1, :chats) AS n;

INSERT INTO rejoinder.tool_calls
       (chat_id, message_id, call_id, name, arguments, kind, delivery, state, result, settled,
        ended_at)
SELECT chat_id, id, 'call', 'look_up', '{}', 'local', 'once', 'finished', '{}', true, now()
  FROM rejoinder.messages WHERE role = 'tool';

INSERT INTO rejoinder.idempotency_keys (owner, key, fingerprint, chat_id, created_at)
SELECT 'owner ' || n % 1000, 'task:' || n, '', md5('chat' || n)::uuid, now() - n * interval '1 min'
  FROM generate_series(1, :chats) AS n;

-- Sleeping chats wait for a child: most for one that runs, a few for one that has come to rest.
INSERT INTO rejoinder.tool_calls
       (chat_id, message_id, call_id, name, arguments, kind, delivery, state, waits_for)
SELECT md5('chat' || n)::uuid, 0, 'wait', 'wait_agent', '{}', 'children', 'once', 'requested',
       ARRAY[md5('chat' || n + CASE WHEN n % 4000 = 4 THEN 1 ELSE -1 END)::uuid]
  FROM generate_series(1, :chats) AS n WHERE n % 100 = 4;
"""

_LONG_CHAT = """
SET LOCAL session_replication_role = replica;
INSERT INTO rejoinder.messages (chat_id, role, visibility, compressed, revision, parts)
SELECT :chat_id, CASE WHEN m % 1000 = 0 THEN 'user' ELSE 'assistant' END,
       CASE WHEN m % 1000 = 0 THEN 'model' ELSE 'both' END, m % 1000 = 0, 1,
       json_build_array(json_build_object('type', 'text', 'text', repeat('x', 120)))
  FROM generate_series(1, :messages) AS m;
"""


@dataclass(frozen=True)
class Filled:
    """Chats to look at."""

    pending: UUID
    long: UUID


def fill(engine: Engine, *, chats: int, per_chat: int, long_chat: int = 0) -> Filled:
    """Insert so many chats, with so many messages each, and one long chat with boundaries."""
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        connection.execute(text(_FILL), {"chats": chats, "per_chat": per_chat})
        # In the middle of everything, and neither overdue nor orphaned: n % 100 is 1, n % 40 is 21.
        middle = chats // 2 // 200 * 200 + 101 if chats > 200 else 101  # noqa: PLR2004
        filled = Filled(pending=_md5(connection, f"chat{middle}"), long=_md5(connection, "chat6"))
        connection.execute(text(_LONG_CHAT), {"chat_id": filled.long, "messages": long_chat})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
    return filled


def _md5(connection: Connection, value: str) -> UUID:
    found: UUID = connection.execute(
        text("SELECT md5(:value)::uuid"), {"value": value}
    ).scalar_one()
    return found
