"""A provider's own words about a failure, short and without secrets.

Bodies come as JSON in several shapes, as text, as a web page of some proxy, or not at all. What
leaves here may be stored and shown.
"""

import re
from collections.abc import Mapping

MOST_CHARACTERS = 500

_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>)\]}]+", re.IGNORECASE), "<url>"),
    (re.compile(r"\b(sk|pk|rk|key|tok|ghp|gho|xox[a-z])[-_][A-Za-z0-9_\-]{6,}"), "<secret>"),
    (re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=\-]{6,}", re.IGNORECASE), "<secret>"),
    (
        re.compile(
            r"\b((?:x-)?api[-_ ]?key|authorization|password|secret|access[-_ ]?token)"
            r"(\"?'?\s*[:=]\s*\"?'?)[^\s\"',;}]+",
            re.IGNORECASE,
        ),
        r"\1\2<secret>",
    ),
    (re.compile(r"\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-.]+"), "<secret>"),
)


def error_of(error: Exception) -> tuple[str, str]:
    """The provider's type and message, each empty if it gave none."""
    body = getattr(error, "body", None)
    if isinstance(body, Mapping):
        inner = body.get("error")
        if isinstance(inner, Mapping):
            kind = inner.get("type") or inner.get("code")
            return _text(kind), _text(inner.get("message"))
        kind = "" if body.get("type") == "error" else _text(body.get("type"))
        return kind, _text(body.get("message")) or _text(inner) or _text(body.get("detail"))
    return "", body.strip() if isinstance(body, str) else ""


def detail_of(error: Exception, *, structured_only: bool = False) -> str | None:
    """What the provider said, else what the exception says; nothing of a web page."""
    structured = isinstance(getattr(error, "body", None), Mapping)
    if structured_only and not structured:
        return None
    _, said = error_of(error)
    if not said and not structured:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if said.lstrip().startswith("<") or "<html" in said.lower():
        return None
    lines = said.strip().splitlines()
    return clean(said if structured else lines[0] if lines else "") or None


def request_id_of(error: Exception) -> str | None:
    """The request's id where only the body has it."""
    body = getattr(error, "body", None)
    found = body.get("request_id") if isinstance(body, Mapping) else None
    return found if isinstance(found, str) and found else None


def clean(text: str) -> str:
    """Without URLs, keys and passwords, and not too long."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    text = text.encode("utf-8", "replace").decode().replace("\0", "").strip()
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
