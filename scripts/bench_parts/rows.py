"""Rejoinder's rows, made with SQL past the machine: chats at rest that nobody had to wait for."""

from hashlib import md5
from uuid import UUID

from scripts.bench_parts.place import Place
from scripts.bench_parts.task import WORDS

_HISTORY = """
SET LOCAL session_replication_role = replica;
INSERT INTO rejoinder.chats (id, owner, root_id, status)
VALUES (md5(%(name)s)::uuid, 'bench', md5(%(name)s)::uuid, 'waiting');
INSERT INTO rejoinder.turns (id, chat_id, kind, state, ended_at)
VALUES (md5('turn' || %(name)s)::uuid, md5(%(name)s)::uuid, 'message', 'finished', now());
INSERT INTO rejoinder.messages
       (chat_id, turn_id, role, visibility, compressed, revision, parts)
SELECT md5(%(name)s)::uuid, md5('turn' || %(name)s)::uuid,
       CASE WHEN n %% 2 = 0 THEN 'assistant' ELSE 'user' END,
       CASE WHEN n = %(boundary)s THEN 'model' ELSE 'both' END, n = %(boundary)s, 1,
       json_build_array(json_build_object('type', 'text', 'text', %(words)s))
  FROM generate_series(1, %(messages)s) AS n ORDER BY n;
"""


def chat_at_rest(place: Place, name: str, *, messages: int = 0, boundary: int = 0) -> str:
    """Make a chat with so many messages, one of which may stand for all before it; its id."""
    given = {"name": name, "messages": messages, "boundary": boundary, "words": WORDS}
    place.execute(_HISTORY, given, database=place.database)
    return str(UUID(md5(name.encode(), usedforsecurity=False).hexdigest()))
