"""How Celery sees our tasks: what it shows of them, and what it does when they are to stop.

Celery makes one of these in the worker's main process for every message, on every pool. They show
ids, never content: arguments appear in logs, events, `celery inspect` and Flower, and a front-door
call carries a user's words. And they never kill: where Celery would end a process (or, on threads,
fail), a step is asked to stop instead, with the right cause.
"""

from collections.abc import Mapping
from typing import Any

from billiard.common import TERM_SIGNAME
from billiard.exceptions import WorkerLostError
from celery.platforms import signals
from celery.worker.request import Request

from rejoinder.discreet import shown
from tasks import lost, stopping


class DiscreetRequest(Request):  # type: ignore[misc]  # Celery has no types
    """A request that does not tell what users say, and that no signal tears apart."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Replace the sender's representations."""
        super().__init__(*args, **options)
        self._argsrepr = "(…)" if self._args else "()"
        self._kwargsrepr = shown(self._kwargs)
        self._request_dict["argsrepr"] = self._argsrepr
        self._request_dict["kwargsrepr"] = self._kwargsrepr
        self._answer = [True]

    def info(self, safe: bool = False) -> dict[str, Any]:  # noqa: ARG002, FBT001, FBT002
        """Describe the request for `celery inspect`."""
        described: dict[str, Any] = super().info(safe=True)
        return described

    def acknowledge(self) -> None:
        """Acknowledge, once: a revocation and the task's end may come at the same moment.

        Celery looks and then acts, in two threads; a second acknowledgement would end the worker.
        """
        if self._answers():
            super().acknowledge()

    def reject(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002  # Celery's own
        """Reject, once."""
        if self._answers():
            super().reject(requeue=requeue)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Let it finish: it takes milliseconds, and its caller waits for the answer."""

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:  # noqa: ARG002, FBT001, FBT002
        """Cold shutdown: the whole worker goes now.

        Celery cancels also when the connection to the broker is lost, if it is configured to. The
        lease is what counts: the task goes on, and the message's repetition finds it at work.
        """
        if not self._app.conf.worker_cancel_long_running_tasks_on_connection_loss:
            stopping.this.begin(now=True)

    def _answers(self) -> bool:
        try:
            return self._answer.pop()  # atomic
        except IndexError:
            return False


COMMAND: Mapping[str, Any] = {
    "Request": DiscreetRequest,
    "acks_late": True,
    "reject_on_worker_lost": True,
    "acks_on_failure_or_timeout": True,
}
"""Options of a task whose message is a command, the only copy of what a user or another app said.

It is acknowledged when the task is over: done, refused or failed. If its worker is gone before, the
message is given to another one.
"""


class StepRequest(DiscreetRequest):
    """A step: revoked, it is interrupted; lost with its process, its chat is recovered."""

    def terminate(self, pool: Any, signal: Any = None) -> None:  # noqa: ARG002
        """Stop the turn, whatever the signal: `task_revoked` says so to `edges.py`."""
        if not self._already_revoked:
            number = signals.signum(signal or TERM_SIGNAME)
            self._announce_revoked("terminated", terminated=True, signum=number, expired=False)

    def send_event(self, type: str, **fields: Any) -> None:  # noqa: A002  # Celery's own
        """Say what becomes of it; that it succeeded only if it was not revoked."""
        if not (self._already_revoked and type == "task-succeeded"):
            super().send_event(type, **fields)

    def on_failure(self, exc_info: Any, *args: Any, **options: Any) -> Any:
        """If its process is gone, let the chat go on elsewhere."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(error, WorkerLostError | SystemExit | KeyboardInterrupt):
            lost.recover_step(self.id)
        return super().on_failure(exc_info, *args, **options)

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001  # Celery's own
        """If a time limit of Celery's killed its process, the same."""
        super().on_timeout(soft, timeout)
        if not soft:
            lost.recover_step(self.id)
