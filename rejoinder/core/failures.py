"""Kinds of failures, as programs see them. `Failure.kind` is one of these."""

from enum import StrEnum


class FailureKind(StrEnum):
    """Why a chat stopped, or waits for another attempt."""

    OVERLOADED = "overloaded"
    RATE_LIMIT = "rate_limit"
    TIMEOUT = "timeout"  # also a lost or broken connection
    STREAM_SILENCE = "stream_silence"
    AUTH = "auth"
    MISSING_KEY = "missing_key"
    CONFIG = "config"  # the request itself is wrong: repeating it cannot help
    CONTEXT_LENGTH = "context_length"
    USAGE_LIMIT = "usage_limit"
    CONTENT_FILTER = "content_filter"
    WORKER_LOST = "worker_lost"
    NO_PROGRESS = "no_progress"  # claimed again and again, and nothing came of it
    BUDGET = "budget"  # nobody raised it in time
    GENERIC = "generic"
