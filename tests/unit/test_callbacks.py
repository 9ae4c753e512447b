"""What the model is told of another app's task that came to nothing."""

import pytest
import redis
from billiard.exceptions import WorkerLostError
from celery import states
from kombu.exceptions import OperationalError

from tasks.callbacks import REVOKED, UNSURE, UNTOLD, told


def test_a_task_that_failed_by_itself_failed() -> None:
    assert told(states.FAILURE, ValueError("no"), 1000) == (
        "The task failed with ValueError: no",
        True,
    )
    assert told(states.FAILURE, None, 1000) == (UNTOLD, True)
    assert told(states.REVOKED, None, 1000) == (REVOKED, True)


@pytest.mark.parametrize(
    "error", [redis.ConnectionError("gone"), OperationalError("gone"), WorkerLostError("killed")]
)
def test_a_task_that_celery_lost_sight_of_may_have_been_done(error: Exception) -> None:
    content, is_error = told(states.FAILURE, error, 1000)
    assert is_error
    assert str(content).startswith(f"The task failed with {type(error).__name__}: ")
    assert str(content).endswith(UNSURE)
