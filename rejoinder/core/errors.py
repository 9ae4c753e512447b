"""Refusals, named by what the caller should do next.

Every refusal says what happened and what to do about it. A refused call changed nothing: the
transaction it ran in is to be rolled back.
"""


class Refused(Exception):  # noqa: N818  # a refusal is an answer, not an error of ours
    """A transition did not happen; `advice` says what to do."""

    def __init__(self, reason: str, advice: str) -> None:
        """Keep the reason and the advice apart, so that front ends can show both."""
        super().__init__(reason, advice)  # so that Celery can carry it between processes
        self.reason = reason
        self.advice = advice

    def __str__(self) -> str:
        """Say both."""
        return f"{self.reason}: {self.advice}"


class Rejected(Refused):
    """The caller asked for something the chat's state does not allow, or with bad input."""


class Stale(Refused):
    """The worker no longer owns the chat. Expected; leave quietly and write nothing."""


class StopRequested(Refused):
    """The worker still owns the chat, but a stop was asked for: call `finish_interrupt`."""


class Unavailable(Refused):
    """A server that is needed does not answer at the moment; `advice` says whether to repeat."""
