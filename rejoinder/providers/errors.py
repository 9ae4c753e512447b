"""What went wrong with a provider, and whether trying again can help.

`classify` turns any exception of a provider's stream into one `ProviderError`: a kind, a sentence
for people, the provider's own words without secrets, and how long to wait. It judges by exception
types, status codes and error bodies, never by numbers found in texts. Cancellation is not an error
and never comes here.
"""

import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite

from rejoinder.core.errors import Refused
from rejoinder.core.failures import FailureKind as Kind
from rejoinder.core.messages import Failure
from rejoinder.providers.details import detail_of, error_of, request_id_of

MOST_RETRY_AFTER = 24 * 3600.0
"""Longer is not a wait but nonsense, or a limit that backing off cannot help."""

BROKE_OFF = "The answer broke off before its end."


class ProviderError(Exception):
    """A model call failed; `failure` says how, `retry_after` how long to wait at least."""

    def __init__(self, failure: Failure, retry_after: float | None = None) -> None:
        """Keep both as arguments, so that the error survives pickling."""
        super().__init__(failure, retry_after)
        self.failure = failure
        self.retry_after = retry_after

    def __str__(self) -> str:
        """Say what a person should read."""
        return f"{self.failure.kind}: {self.failure.message}"


class BrokenStreamError(Exception):
    """An answer ended before its end, or is not in the provider's format."""


@dataclass(frozen=True)
class Facts:
    """What is known of a failed call, in no provider's types."""

    status: int | None
    type: str
    text: str
    """The provider's message, in lower case."""
    transport: str | None = None
    """`timeout`, `lost`, `setup` (our own fault), or None."""


_STATUS_OF_TYPE: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_SENTENCES: Mapping[Kind, str] = {
    Kind.OVERLOADED: "{name} is overloaded at the moment.",
    Kind.RATE_LIMIT: "{name} is limiting the rate of requests.",
    Kind.TIMEOUT: "{name} is not reachable at the moment, or the connection broke.",
    Kind.STREAM_SILENCE: "{name} stopped sending data in the middle of an answer.",
    Kind.AUTH: "{name} refused the credentials. Check the API key and its permissions.",
    Kind.MISSING_KEY: "There is no API key for {name}.",
    Kind.CONFIG: "{name} rejected the request. Check the model's name and its options.",
    Kind.CONTEXT_LENGTH: "The conversation is too long for the model.",
    Kind.USAGE_LIMIT: "The account's usage limit at {name} is reached. Check plan and billing.",
    Kind.CONTENT_FILTER: "{name} blocked the answer under its content policy.",
    Kind.GENERIC: "{name} failed with an unexpected error.",
}
_TRANSIENT = frozenset(
    {Kind.OVERLOADED, Kind.RATE_LIMIT, Kind.TIMEOUT, Kind.STREAM_SILENCE, Kind.GENERIC}
)

_BILLING = ("credit balance", "insufficient_quota", "purchase credits", "billing_hard_limit")
_QUOTA = ("usage limit", "spend limit", "spending limit", "quota exceeded", "out of credits")
_TOO_LONG = (
    "prompt is too long",
    "context window",
    "context length",
    "context limit",
    "maximum context",
    "input is too long",
    "too many total text bytes",
    "input length and `max_tokens` exceed",
)
_WRONG = ("model not found", "unknown model", "invalid model", "unsupported model")
_FILTERED = ("content filtering policy", "content policy", "content_filter")


def _says(facts: Facts, words: tuple[str, ...]) -> bool:
    return any(word in facts.text for word in words)


def _is_usage(facts: Facts) -> bool:
    if facts.type in ("billing_error", "insufficient_quota") or facts.status == 402:  # noqa: PLR2004
        return True
    if facts.status == 429:  # noqa: PLR2004  # a rate: its words may well speak of credits to buy
        return False
    return _says(facts, _BILLING) or (facts.status in (400, 403) and _says(facts, _QUOTA))


def _is_config(facts: Facts) -> bool:
    if facts.transport == "setup" or facts.type in ("invalid_request_error", "not_found_error"):
        return True
    return _says(facts, _WRONG) or facts.status in (400, 404, 405, 415, 422, 431)


def _is_too_long(facts: Facts) -> bool:
    if facts.status == 413 or facts.type == "request_too_large":  # noqa: PLR2004
        return True
    return facts.status in (400, 422) and _says(facts, _TOO_LONG)


Rule = tuple[Kind, Callable[[Facts], bool]]
RULES: tuple[Rule, ...] = (  # the first that applies counts
    (Kind.OVERLOADED, lambda f: f.status == 529 or f.type == "overloaded_error"),  # noqa: PLR2004
    (Kind.RATE_LIMIT, lambda f: f.type == "rate_limit_error"),
    (Kind.USAGE_LIMIT, _is_usage),
    (Kind.AUTH, lambda f: f.status == 401 or f.type == "authentication_error"),  # noqa: PLR2004
    (Kind.AUTH, lambda f: f.status == 403 and not _is_config(f)),  # noqa: PLR2004
    (Kind.RATE_LIMIT, lambda f: f.status == 429 and not _is_config(f)),  # noqa: PLR2004
    (Kind.CONTENT_FILTER, lambda f: f.status == 400 and _says(f, _FILTERED)),  # noqa: PLR2004
    (Kind.CONTEXT_LENGTH, _is_too_long),
    (Kind.TIMEOUT, lambda f: f.transport in ("timeout", "lost") and not _is_config(f)),
    (Kind.TIMEOUT, lambda f: f.status in (408, 502, 503, 504) and not _is_config(f)),
    (Kind.CONFIG, _is_config),
)


def kind_of(facts: Facts) -> tuple[Kind, bool]:
    """The kind, and whether trying again may help if nobody says otherwise."""
    for kind, applies in RULES:
        if applies(facts):
            return kind, kind in _TRANSIENT
    status = facts.status or 0
    return Kind.GENERIC, status >= 500 or status in (409, 425)  # noqa: PLR2004


def classify(
    error: Exception, provider: str, *, request_id: str | None = None, now: datetime | None = None
) -> ProviderError:
    """The one error that a step sees, whatever the SDK, the network or the provider threw."""
    if isinstance(error, ProviderError):
        return error
    if isinstance(error, ExceptionGroup):
        return classify(_first(error), provider, request_id=request_id, now=now)
    if isinstance(error, Refused):
        return ProviderError(failure(Kind.CONFIG, provider, message=str(error)))
    headers = _headers(error)
    facts = _facts(error)
    kind, retryable = kind_of(facts)
    hint = headers.get("x-should-retry", "").strip().lower()
    if hint == "false":
        retryable = False
    elif hint == "true":
        retryable = kind in _TRANSIENT
    found = failure(
        kind,
        provider,
        message=BROKE_OFF if isinstance(error, BrokenStreamError) else None,
        detail=detail_of(error, structured_only=kind is Kind.AUTH),
        status_code=_status(error),
        request_id=headers.get("request-id") or request_id_of(error) or request_id,
        retryable=retryable,
    )
    return ProviderError(found, retry_after(headers, now or datetime.now(UTC)))


def failure(  # noqa: PLR0913  # the fields of a Failure
    kind: Kind,
    provider: str,
    *,
    message: str | None = None,
    detail: str | None = None,
    status_code: int | None = None,
    request_id: str | None = None,
    retryable: bool = False,
) -> Failure:
    """A failure with its kind's sentence, unless there is a better one."""
    sentence = message or _SENTENCES[kind].format(name=provider.capitalize())
    return Failure(
        kind=kind.value,
        message=sentence,
        detail=detail,
        provider=provider,
        status_code=status_code,
        request_id=request_id,
        retryable=retryable,
    )


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """How long the provider asks to wait: milliseconds, seconds or a date. Nonsense is no wish."""
    wishes = (
        _number(headers.get("retry-after-ms"), 0.001),
        _number(headers.get("retry-after"), 1.0),
        _until(headers.get("retry-after"), now),
    )
    return next((w for w in wishes if w is not None and 0 < w <= MOST_RETRY_AFTER), None)


def _number(text: str | None, unit: float) -> float | None:
    if text is None or not re.fullmatch(r"\s*\d+(\.\d*)?\s*", text):
        return None
    seconds = float(text) * unit
    return seconds if isfinite(seconds) else None


def _until(text: str | None, now: datetime) -> float | None:
    try:
        moment = parsedate_to_datetime(text or "")
    except (TypeError, ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - now).total_seconds()


def _facts(error: Exception) -> Facts:
    kind, text = error_of(error)
    status = _status(error)
    if status is None or status < 400:  # noqa: PLR2004  # an error event within a good response
        status = _STATUS_OF_TYPE.get(kind, 500 if kind or text or status else None)
    if _names(error).isdisjoint({"APIStatusError", "HTTPStatusError"}):
        return Facts(None, "", "", _transport(error))
    return Facts(status, kind, text.lower())


_TIMEOUTS = frozenset({"TimeoutError", "TimeoutException", "APITimeoutError"})
_SETUP = frozenset({"UnsupportedProtocol", "InvalidURL", "LocalProtocolError", "ProxyError"})
_LOST = frozenset(
    {"APIConnectionError", "TransportError", "NetworkError", "ProtocolError", "DecodingError"}
    | {"BrokenResourceError", "ClosedResourceError", "EndOfStream", "IncompleteRead"}
    | {"OSError", "EOFError", "StreamError", "BrokenStreamError", "UnicodeDecodeError"}
)


def _transport(error: Exception) -> str | None:
    """How a call failed that got no answer, by the types of the error and of its causes."""
    causes = [*_chain(error)]
    names = frozenset[str]().union(*map(_names, causes))
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return "setup"
    if "APIConnectionError" in _names(error) and type(error.__cause__) is ValueError:
        return "setup"  # the request could not be written: a key with a line break in it
    for verdict, types in (("setup", _SETUP), ("timeout", _TIMEOUTS)):
        if names & types:
            return verdict
    return "lost" if _names(error) & _LOST else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _names(error: BaseException) -> frozenset[str]:
    """The names of an error's types: SDKs bring HTTP libraries of their own."""
    return frozenset(kind.__name__ for kind in type(error).__mro__)


def _first(group: ExceptionGroup[Exception]) -> Exception:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, ExceptionGroup) else found


def _status(error: Exception) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _headers(error: Exception) -> Mapping[str, str]:
    headers = getattr(getattr(error, "response", None), "headers", None)
    return {str(k).lower(): str(v) for k, v in headers.items()} if headers else {}
