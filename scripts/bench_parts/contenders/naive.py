"""What a user of Celery writes first: one task per model call, one commit, then the next task.

No lease, no fence, no stream, no recovery: a killed worker loses the turn. Also the no-op chain,
which is Celery's own floor. `celery -A scripts.bench_parts.contenders.naive worker`.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import psycopg2
import redis
from anthropic import Anthropic
from celery import Celery
from psycopg2.extensions import cursor as Cursor  # noqa: N812  # a class
from psycopg2.pool import ThreadedConnectionPool

from scripts.bench_parts.task import MODEL, TOOL, TOOL_SAYS, TOOL_SCHEMA, add

URL = os.environ.get("BENCH_REDIS_URL", "")
TOOLS: Any = [{"name": TOOL, "description": TOOL_SAYS, "input_schema": TOOL_SCHEMA}]
app = Celery("naive", broker=URL, backend=URL)
app.conf.update(task_default_queue="naive", worker_prefetch_multiplier=1)
TABLE = """
CREATE TABLE IF NOT EXISTS naive_messages
    (id bigserial PRIMARY KEY, chat text, role text, content text);
CREATE INDEX IF NOT EXISTS naive_by_chat ON naive_messages (chat, id)
"""


@cache
def client() -> Anthropic:
    """One per process."""
    return Anthropic(max_retries=0)


@cache
def pool() -> ThreadedConnectionPool:
    """One per process. It keeps 20 open, and makes more rather than fail."""
    return ThreadedConnectionPool(20, 100, os.environ["BENCH_DATABASE_DSN"])


@contextmanager
def transaction() -> Iterator[Cursor]:
    """Statements that are committed together."""
    connection = pool().getconn()
    try:
        with connection, connection.cursor() as cursor:
            yield cursor
    finally:
        pool().putconn(connection)


def say(cursor: Cursor, chat: str, role: str, content: Any) -> None:
    """Store a message."""
    cursor.execute(
        "INSERT INTO naive_messages (chat, role, content) VALUES (%s, %s, %s)",
        [chat, role, json.dumps(content)],
    )


def conversation(chat: str) -> list[Any]:
    """Read what was said."""
    with transaction() as cursor:
        cursor.execute(
            "SELECT role, content FROM naive_messages WHERE chat = %s ORDER BY id", [chat]
        )
        return [{"role": r, "content": json.loads(c)} for r, c in cursor]


@app.task(name="naive.step", ignore_result=True)  # type: ignore[untyped-decorator]
def step(chat: str) -> None:
    """Ask the model once, run its tool, store both, and go on."""
    messages = conversation(chat)
    reply = client().messages.create(model=MODEL, max_tokens=1000, messages=messages, tools=TOOLS)
    results = [
        {
            "type": "tool_result",
            "tool_use_id": block.id,
            "content": str(add(**cast("Any", block.input))),
        }
        for block in reply.content
        if block.type == "tool_use"
    ]
    with transaction() as cursor:
        say(cursor, chat, "assistant", [block.model_dump() for block in reply.content])
        if results:
            say(cursor, chat, "user", results)
    if results:
        step.delay(chat)
    else:
        _redis().rpush("naive:done", chat)


@app.task(name="naive.first_word", ignore_result=True)  # type: ignore[untyped-decorator]
def first_word(chat: str) -> None:
    """Ask the model once, streamed, and tell a reader of its first word."""
    messages = conversation(chat)
    with client().messages.stream(
        model=MODEL, max_tokens=1000, messages=messages, tools=TOOLS
    ) as stream:
        for number, word in enumerate(stream.text_stream):
            if not number:
                _redis().publish(f"naive:{chat}", word)
        reply = stream.get_final_message()
    with transaction() as cursor:
        say(cursor, chat, "assistant", [block.model_dump() for block in reply.content])
    _redis().rpush("naive:done", chat)


@app.task(name="naive.nothing", ignore_result=True)  # type: ignore[untyped-decorator]
def nothing(chat: str, left: int, ended: float) -> None:
    """Note how long it took to come here, and go on."""
    _redis().rpush("naive:gaps", time.time() - ended)
    if left:
        nothing.delay(chat, left - 1, time.time())
    else:
        _redis().rpush("naive:done", chat)


@cache
def _redis() -> "redis.Redis":
    return redis.Redis.from_url(URL)


def prepare(dsn: str) -> None:
    """Make the table."""
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute(TABLE)
    connection.close()
