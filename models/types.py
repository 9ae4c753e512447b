"""Column types that the tables share."""

import json
import re
from enum import StrEnum

from sqlalchemy import JSON, DateTime, Dialect, Enum, Text, TypeDecorator
from sqlalchemy.dialects.postgresql import JSONB

from rejoinder.core.errors import Rejected

# Content is `json`, not `jsonb`: Postgres keeps the text as we wrote it. Written as ASCII (see
# `as_json`), every str survives: NUL bytes and lone surrogates, which jsonb refuses, number
# formats and key order, which jsonb rewrites. See docs/adr/0003.
Content = JSON(none_as_null=True)
Labels = JSONB()
Moment = DateTime(timezone=True)


def words(enum: type[StrEnum]) -> Enum:
    """An enum stored as its word, and guarded: readable in psql, and extended by a migration.

    Not a Postgres ENUM type: those cannot lose a value, and cannot be changed while an older
    release holds prepared statements on them.
    """
    return Enum(
        enum,
        native_enum=False,
        create_constraint=False,  # the tables say themselves which words they know
        values_callable=lambda e: [member.value for member in e],
        length=32,
    )


# What Postgres' text cannot hold: NUL and halves of surrogate pairs.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_ESCAPED = re.compile("[\\\\\x00\ud800-\udfff]")


def escaped(text: str) -> str:
    """Any text, as `AnyText` stores it."""
    return _ESCAPED.sub(lambda match: f"\\{ord(match[0]):04x}", text)


def unescaped(text: str) -> str:
    """The text that was stored as `escaped`."""
    return re.sub(r"\\([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), text)


class AnyText(TypeDecorator[str]):
    """Text from a model: whatever a `str` holds comes back unchanged, readable where it can be."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Escape what text cannot hold, and the backslash that marks an escape."""
        del dialect
        return value and escaped(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Undo the escapes."""
        del dialect
        return value and unescaped(value)


_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_sorting = json.JSONEncoder(allow_nan=False, separators=(",", ":"), sort_keys=True)


def as_json(value: object, *, sort_keys: bool = False) -> str:
    """Write JSON as ASCII: NUL bytes and lone surrogates travel as escapes, and stay escapes."""
    try:
        return (_sorting if sort_keys else _encoder).encode(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise Rejected(
            f"The content is not JSON ({error})",
            "send only JSON values: no NaN, no infinity, no objects",
        ) from error


def plain(name: str, text: str) -> str:
    """Refuse text that a plain text column cannot hold, before Postgres does it less politely."""
    if _UNSTORABLE.search(text):
        raise Rejected(
            f"{name} holds a NUL byte or half a surrogate pair",
            "only message content may hold those; clean the value",
        )
    return text
