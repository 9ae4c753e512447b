"""What a user of Celery writes first: one task per model call, one commit, then the next task.

No lease, no fence, no stream, no recovery: a killed worker loses the turn. Also the no-op chain,
which is Celery's own floor. `celery -A scripts.bench_parts.contenders.naive worker`.
"""

import json
import os
import time
from functools import cache
from typing import Any, cast

import psycopg2
import redis
from anthropic import Anthropic
from celery import Celery
from psycopg2.pool import ThreadedConnectionPool

from scripts.bench_parts.task import MODEL, TOOL, TOOL_SAYS, TOOL_SCHEMA, add

URL = os.environ.get("BENCH_REDIS_URL", "")
app = Celery("naive", broker=URL, backend=URL)
app.conf.update(task_default_queue="naive", worker_prefetch_multiplier=1, broker_pool_limit=None)
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
    """One per process."""
    return ThreadedConnectionPool(1, 60, os.environ["BENCH_DATABASE_DSN"])


@app.task(name="naive.step", ignore_result=True)  # type: ignore[untyped-decorator]
def step(chat: str) -> None:
    """Ask the model once, run its tool, store both, and go on."""
    connection = pool().getconn()
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT role, content FROM naive_messages WHERE chat = %s ORDER BY id", [chat]
            )
            messages: list[Any] = [{"role": r, "content": json.loads(c)} for r, c in cursor]
        reply = client().messages.create(
            model=MODEL,
            max_tokens=1000,
            messages=messages,
            tools=[{"name": TOOL, "description": TOOL_SAYS, "input_schema": TOOL_SCHEMA}],
        )
        rows = [(chat, "assistant", json.dumps([block.model_dump() for block in reply.content]))]
        for block in reply.content:
            if block.type == "tool_use":
                answer = {"type": "tool_result", "tool_use_id": block.id}
                said = json.dumps([{**answer, "content": str(add(**cast("Any", block.input)))}])
                rows.append((chat, "user", said))
        with connection, connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO naive_messages (chat, role, content) VALUES (%s, %s, %s)", rows
            )
    finally:
        pool().putconn(connection)
    if reply.stop_reason == "tool_use":
        step.delay(chat)
    else:
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
