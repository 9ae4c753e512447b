"""Another app with a broker in common and nothing else: its own tasks, queue, worker and settings.

Run as `celery -A tests.scenarios.billing worker -Q billing`. It imports nothing of Rejoinder's.
"""

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

app = Celery("billing", broker=os.environ["REJOINDER_REDIS_URL"])
app.conf.update(
    result_backend=os.environ["REJOINDER_REDIS_URL"],
    task_default_queue="billing",
    worker_send_task_events=True,
    broker_connection_retry_on_startup=True,
)


class OutOfMoney(Exception):  # noqa: N818  # as a stranger names it
    """An exception that only this app knows."""


@app.task(name="billing.refund")  # type: ignore[untyped-decorator]
def refund(amount: int, note: str = "", until: str = "") -> dict[str, Any]:
    """Pay back; at work until a file is there, if one is named."""
    if note:
        with Path(note).open("a", encoding="utf-8") as file:
            file.write(f"refund {amount}\n")
    end = time.monotonic() + 60
    while until and not Path(until).exists() and time.monotonic() < end:
        time.sleep(0.02)
    return {"refunded": amount}


@app.task(name="billing.fail")  # type: ignore[untyped-decorator]
def fail(reason: str) -> None:
    raise OutOfMoney(reason)


@app.task(name="billing.odd")  # type: ignore[untyped-decorator]
def odd() -> Any:
    return object()


@app.task(name="billing.quiet", ignore_result=True, store_errors_even_if_ignored=False)  # type: ignore[untyped-decorator]
def quiet(reason: str = "") -> str:
    """Keep no result anywhere."""
    if reason:
        raise OutOfMoney(reason)
    return "quietly done"
