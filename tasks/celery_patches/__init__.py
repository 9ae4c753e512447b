"""What is mended in Celery, kombu and billiard, for the workers of this application.

Each patch names the version it was written for, the symptom, and what is known upstream; a test in
`tests/unit/test_celery_patches.py` shows that the library alone still has the fault, and so fails
when the patch can go. Pools are mended by subclasses, which a worker may choose like any pool. Only
what the libraries offer no other way to reach is replaced, and only here.
"""

from functools import partial
from typing import Any

from tasks.celery_patches import control, pools, redis_transport
from tasks.celery_patches.control import OnRevoke
from tasks.celery_patches.replacing import Replace

_installed: list[None] = []


def install(worker: Any, on_revoke: OnRevoke, replace: Replace = setattr) -> None:
    """Mend what this process uses, in this order, at a worker's start.

    `on_revoke` is told of ids that are revoked, whether or not a worker has a message for them.
    """
    worker.pool_cls = pools.mended(worker.pool_cls)
    if replace is setattr and _installed:
        return  # a second worker in one process
    _installed.append(None)
    for patch in (
        redis_transport.survive_lost_connections,
        pools.leave_without_a_reader,
        partial(control.tell_of_revoked, on_revoke=on_revoke),
    ):
        patch(replace)
