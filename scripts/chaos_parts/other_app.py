"""Another app, with workers of its own: Rejoinder knows the names of its tasks, and nothing else.

Plain Celery, as its documentation has it: a message is acknowledged when its task begins, so that a
killed worker loses what it was at.
"""

import os
import time
from typing import Any

from celery import Celery

from scripts.chaos_parts.ledger import TASKS_QUEUE, done, write

app = Celery(
    "other",
    broker=os.environ.get("REJOINDER_REDIS_URL"),
    backend=os.environ.get("REJOINDER_REDIS_URL"),
)
app.conf.update(
    task_default_queue=TASKS_QUEUE,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    worker_prefetch_multiplier=1,
    worker_cancel_long_running_tasks_on_connection_loss=False,
)


@app.task(bind=True, name="other.once")  # type: ignore[untyped-decorator]  # Celery has no types
def once(self: Any, nonce: str, seconds: float) -> str:
    """Do something that must not be done twice."""
    return _work(self.request.id, "task_once", nonce, seconds)


@app.task(bind=True, name="other.again")  # type: ignore[untyped-decorator]  # the same
def again(self: Any, nonce: str, seconds: float) -> str:
    """Do something that may be done again."""
    return _work(self.request.id, "task_again", nonce, seconds)


def _work(task_id: str, tool: str, nonce: str, seconds: float) -> str:
    write(what="begin", tool=tool, nonce=nonce, task_id=task_id)
    time.sleep(seconds)
    write(what="end", tool=tool, nonce=nonce, task_id=task_id)
    return done(nonce)
