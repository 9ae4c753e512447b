"""Every way a provider can fail, and what follows from it."""

from __future__ import annotations

import asyncio
import pickle
import socket
import ssl
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anthropic
import anyio
import httpx2
import pytest

from rejoinder.core.errors import Rejected
from rejoinder.core.failures import FailureKind
from rejoinder.providers.errors import BrokenStreamError, ProviderError, classify, retry_after

REQUEST = httpx2.Request("POST", "http://api.test/v1/messages")
NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def status_error(
    status: int, kind: str | None = None, message: str = "", /, body: Any = None, **headers: str
) -> anthropic.APIStatusError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx2.Response(status, request=REQUEST, headers=named)
    if body is None:
        body = {"type": "error", "error": {"type": kind, "message": message}}
    return anthropic.APIStatusError("failed", response=response, body=body)


def found(error: Exception) -> tuple[str, bool]:
    failure = classify(error, "anthropic", now=NOW).failure
    return failure.kind, failure.retryable


@pytest.mark.parametrize(
    ("status", "kind", "message", "expected", "retryable"),
    [
        (529, "overloaded_error", "Overloaded", "overloaded", True),
        (500, "overloaded_error", "Overloaded", "overloaded", True),
        (200, "overloaded_error", "Overloaded", "overloaded", True),
        (400, "invalid_request_error", "Your credit balance is too low", "usage_limit", False),
        (400, "invalid_request_error", "You have reached your usage limits", "usage_limit", False),
        (402, "billing_error", "Pay first", "usage_limit", False),
        (429, "insufficient_quota", "You exceeded your quota", "usage_limit", False),
        (429, "rate_limit_error", "You exceeded your usage limit", "rate_limit", True),
        (401, "authentication_error", "invalid x-api-key", "auth", False),
        (200, "authentication_error", "expired", "auth", False),
        (403, "permission_error", "No access to this workspace", "auth", False),
        (403, "invalid_request_error", "unsupported region", "config", False),
        (429, "rate_limit_error", "Slow down", "rate_limit", True),
        (429, "invalid_request_error", "bad parameter", "config", False),
        (413, "request_too_large", "Too large", "context_length", False),
        (400, "invalid_request_error", "prompt is too long: 5 > 4", "context_length", False),
        (400, "invalid_request_error", "exceeds the context window", "context_length", False),
        (400, "invalid_request_error", "messages: too many total text bytes: 9015372 > 9000000",
         "context_length", False),
        (400, "invalid_request_error", "Output blocked by content filtering policy",
         "content_filter", False),
        (408, None, "", "timeout", True),
        (502, None, "", "timeout", True),
        (503, "api_error", "unavailable", "timeout", True),
        (503, "invalid_request_error", "no such parameter", "config", False),
        (504, "timeout_error", "took too long", "timeout", True),
        (404, "not_found_error", "model: claude-0", "config", False),
        (400, "invalid_request_error", "max_tokens: required", "config", False),
        (422, None, "", "config", False),
        (500, "api_error", "Internal server error", "generic", True),
        (500, "api_error", "unknown model claude-0", "config", False),
        (409, None, "", "generic", True),
        (418, None, "", "generic", False),
        (200, "novel_error", "?", "generic", True),
    ],
)  # fmt: skip
def test_what_the_provider_answers(
    status: int, kind: str | None, message: str, expected: str, *, retryable: bool
) -> None:
    assert found(status_error(status, kind, message)) == (expected, retryable)


TIER = (  # in June 2026
    "This request would exceed your organization's rate limit of 30,000 input tokens per minute "
    "(org: 0a1b2c3d, model: claude-sonnet-5). For details, refer to: https://docs.claude.com. "
    "You can see the response headers for current usage. Please reduce the prompt length or the "
    "maximum tokens requested, or try again later. You may also contact sales or purchase "
    "credits to advance to the next usage tier."
)


@pytest.mark.parametrize(
    "message",
    [
        TIER,
        "Usage credits are required for long context requests.",
        "Your credit balance, invalid model",
    ],
)
@pytest.mark.parametrize("status", [429, 200])
def test_a_rate_limit_is_one_whatever_its_words(status: int, message: str) -> None:
    assert found(status_error(status, "rate_limit_error", message)) == ("rate_limit", True)
    refused = status_error(status, "rate_limit_error", message, x_should_retry="false")
    assert found(refused) == ("rate_limit", False)
    later = status_error(
        status, "rate_limit_error", message, retry_after="47", x_should_retry="true"
    )
    assert found(later) == ("rate_limit", True)
    assert classify(later, "anthropic", now=NOW).retry_after == 47


def test_the_words_of_a_rate_limit_count_no_more_where_a_gateway_lost_its_type() -> None:
    assert found(status_error(429, None, TIER)) == ("rate_limit", True)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def connection_error() -> Exception:
    return anthropic.APIConnectionError(request=REQUEST)


@pytest.mark.parametrize(
    ("error", "expected", "retryable"),
    [
        (httpx2.ReadError("reset"), "timeout", True),
        (httpx2.RemoteProtocolError("peer closed connection"), "timeout", True),
        (httpx2.RemoteProtocolError("stream 429 was reset"), "timeout", True),
        (httpx2.DecodingError("gzip"), "timeout", True),
        (httpx2.ReadTimeout("slow"), "timeout", True),
        (httpx2.PoolTimeout("busy"), "timeout", True),
        (httpx2.UnsupportedProtocol("no scheme"), "config", False),
        (httpx2.LocalProtocolError("illegal header"), "config", False),
        (anthropic.APITimeoutError(request=REQUEST), "timeout", True),
        (connection_error(), "timeout", True),
        (caused(connection_error(), httpx2.UnsupportedProtocol("foo")), "config", False),
        (caused(connection_error(), ssl.SSLCertVerificationError("self-signed")), "config", False),
        (caused(connection_error(), socket.gaierror(-3, "try again")), "timeout", True),
        (ssl.SSLError("record layer failure"), "timeout", True),
        (ConnectionResetError(104, "reset"), "timeout", True),
        (BrokenPipeError(), "timeout", True),
        (TimeoutError(), "timeout", True),
        (asyncio.IncompleteReadError(b"", 3), "timeout", True),
        (anyio.BrokenResourceError(), "timeout", True),
        (anyio.ClosedResourceError(), "timeout", True),
        (anyio.EndOfStream(), "timeout", True),
        (BrokenStreamError("cut"), "timeout", True),
        (ExceptionGroup("two", [ConnectionResetError(), ValueError()]), "timeout", True),
        (KeyError("a bug of ours"), "generic", False),
        (TypeError("a bug of ours"), "generic", False),
        (Rejected("Bad", "do better"), "config", False),
    ],
    ids=repr,
)
def test_what_the_network_and_we_do_wrong(
    error: Exception, expected: str, *, retryable: bool
) -> None:
    assert found(error) == (expected, retryable)


def test_cut_bytes_are_a_broken_connection_not_a_bug() -> None:
    error = UnicodeDecodeError("utf-8", b"\xf0", 0, 1, "unexpected end of data")
    assert found(error) == ("timeout", True)


@pytest.mark.parametrize("status", [429, 500, 529])
def test_the_provider_may_say_that_trying_again_is_no_use(status: int) -> None:
    assert found(status_error(status, x_should_retry="false"))[1] is False


def test_the_provider_cannot_make_a_wrong_request_right() -> None:
    assert found(status_error(400, x_should_retry="true")) == ("config", False)
    assert found(status_error(418, x_should_retry="true")) == ("generic", True)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 7.5 "}, 7.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": format_datetime(NOW + timedelta(seconds=30), usegmt=True)}, 30.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, None),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e3"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": "99999999"}, None),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": ""}, None),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


def test_headers_are_found_whatever_their_case() -> None:
    error = status_error(429, Retry_After="12", Request_Id="req_9")
    caught = classify(error, "anthropic", now=NOW)
    assert caught.retry_after == 12
    assert caught.failure.request_id == "req_9"


def test_the_request_id_of_a_body() -> None:
    body = {"error": {"type": "request_too_large", "message": "Big"}, "request_id": "req_b"}
    failure = classify(status_error(413, body=body), "anthropic").failure
    assert (failure.kind, failure.request_id) == ("context_length", "req_b")


@pytest.mark.parametrize(
    "secret",
    [
        "sk-ant-api03-abcdefghijkl",
        "https://user:hunter22@proxy.test/path?key=1",
        "Authorization: Bearer abcdef123456",
        "x-api-key: abcdef123456",
        'api_key="abcdef123456"',
        "password=abcdef123456",
        "eyJhbGciOiJIUzI1.eyJzdWIiOiIx.abc",
    ],
)
def test_no_secret_leaves(secret: str) -> None:
    for error in (
        status_error(400, "invalid_request_error", f"Look: {secret}, you see"),
        httpx2.ConnectError(f"failed for {secret}"),
        status_error(500, body=f"oops {secret}"),
    ):
        detail = classify(error, "anthropic").failure.detail or ""
        for piece in ("abcdef", "hunter22", "proxy.test", "eyJhbG"):
            assert piece not in detail


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"error": {"message": "inner"}}, "inner"),
        ({"message": "outer"}, "outer"),
        ({"error": "text"}, "text"),
        ({"detail": "fastapi"}, "fastapi"),
        ("first line\nsecond line", "first line"),
        ("<!DOCTYPE html><title>502</title>", None),
        ({}, None),
        ({"error": {"message": "x" * 900}}, "x" * 499 + "…"),
    ],
)
def test_the_providers_own_words(body: Any, detail: str | None) -> None:
    assert classify(status_error(500, body=body), "anthropic").failure.detail == detail


def test_an_unstructured_refusal_of_credentials_is_not_repeated() -> None:
    assert classify(status_error(401, body="who are you?"), "anthropic").failure.detail is None


def test_an_error_that_is_one_already_stays_as_it_is() -> None:
    error = classify(status_error(529), "anthropic")
    assert classify(error, "other") is error


def test_the_error_survives_a_process() -> None:
    error = classify(status_error(429, retry_after="3"), "anthropic")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert isinstance(again, ProviderError)
    assert (again.failure, again.retry_after) == (error.failure, 3.0)


def test_every_kind_is_told_to_people() -> None:
    kinds = {found(status_error(s))[0] for s in (400, 401, 402, 408, 413, 429, 500, 529)}
    assert kinds <= set(FailureKind)
    for status in (400, 401, 402, 408, 413, 429, 500, 529):
        message = classify(status_error(status), "anthropic").failure.message
        assert message.endswith(".")
