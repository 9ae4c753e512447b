"""What a tool returned, as content that a model can read and history can keep.

The content of a result is a text, or, as soon as an `Image` or a `File` is in it, a list of
content blocks. Everything else that is no text becomes JSON text: a list of a tool's own objects is
never mistaken for blocks. What has no JSON form is a `ResultError`, which concerns its call only.
"""

import base64
import json
from collections.abc import Sequence

from pydantic_core import to_jsonable_python

from rejoinder.core.parts import Json
from rejoinder.tools.cap import cap, readable

MAX_MEDIA_BYTES = 3_750_000
"""Images and files of one result, together: 5 MB once they are base64, the least that models take.
They cannot be cut, so what is over the limit is left out, with a note."""
MAX_SHOWN_BINARY = 4096
"""Binary data that is shown as base64. More would fill the context and say nothing."""

Block = dict[str, Json]


class ResultError(ValueError):
    """A tool returned what cannot be told; the message is for the model."""


class Image:
    """A picture as a tool's result, or as one item of a list that is the result."""

    def __init__(self, data: bytes, media_type: str = "image/png") -> None:
        """Take the encoded picture (PNG, JPEG, GIF or WebP, as far as the model can see it)."""
        if not media_type.startswith("image/"):
            raise ValueError(f"{media_type!r} is no picture: use File")
        self.data = bytes(data)
        self.media_type = media_type


class File:
    """A file as a tool's result: a text or a PDF is shown to the model, others are described."""

    def __init__(self, data: bytes, media_type: str, name: str = "file") -> None:
        """Take the content, its type and a name for people."""
        self.data = bytes(data)
        self.media_type = media_type
        self.name = name


def content_of(value: object, limit: int, *, nothing: str = "null") -> Json:
    """The content of a result: a text of at most `limit` bytes, or blocks with as much text.

    `nothing` is said for None. Raises `ResultError` for what has no JSON form.
    """
    if isinstance(value, Image | File):
        value = [value]
    if isinstance(value, list | tuple) and any(isinstance(item, Image | File) for item in value):
        return _blocks(value, limit)
    return cap(_text(value, nothing), limit)


def _text(value: object, nothing: str) -> str:
    match value:
        case None:
            return nothing
        case str():
            return readable(str(value))
        case bytes() | bytearray() | memoryview():
            return _binary(bytes(value))
        case _:
            return readable(_json(value))


def _json(value: object) -> str:
    try:
        plain = to_jsonable_python(value, inf_nan_mode="constants")
        return json.dumps(plain, ensure_ascii=False, allow_nan=False)
    except RecursionError as error:
        raise ResultError("The tool ran, but its result is nested too deeply for JSON.") from error
    except Exception as error:
        raise ResultError(
            f"The tool ran, but its result ({type(value).__name__}) has no JSON form: {error}"
        ) from error


def _binary(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        said = f"[{len(data)} bytes of binary data"
    if len(data) > MAX_SHOWN_BINARY:
        return f"{said}, not shown]"
    return f"{said}, as base64] {base64.b64encode(data).decode()}"


def _blocks(items: Sequence[object], limit: int) -> list[Json]:
    """Content blocks, in order; texts share one limit, media another."""
    blocks: list[Json] = []
    media = MAX_MEDIA_BYTES
    for item in items:
        block = _media(item) if isinstance(item, Image | File) else None
        if block is not None and isinstance(item, Image | File) and len(item.data) <= media:
            media -= len(item.data)
            blocks.append(block)
            continue
        text = _note(item) if isinstance(item, Image | File) else _text(item, "null")
        text = cap(text, limit)
        limit -= len(text.encode())
        if text.strip():  # providers refuse a block of empty text
            blocks.append({"type": "text", "text": text})
    return blocks


def _media(item: Image | File) -> Block | None:
    """The block that shows it, or None: it can only be told about."""
    source = {
        "type": "base64",
        "media_type": item.media_type,
        "data": base64.b64encode(item.data).decode(),
    }
    match item:
        case Image() if item.data:
            return {"type": "image", "source": source}
        case File(media_type="application/pdf") if item.data:
            return {"type": "document", "source": source, "title": readable(item.name)}
        case _:
            return None


def _note(item: Image | File) -> str:
    size = len(item.data)
    if isinstance(item, Image):
        reason = "no data" if not size else "left out: over the limit, return a smaller one"
        return f"[image, {item.media_type}, {size} bytes: {reason}]"
    named = f"file {readable(item.name)!r}, {item.media_type}, {size} bytes"
    if _is_text(item):
        try:
            return f"[{named}]\n{item.data.decode()}"
        except UnicodeDecodeError:
            pass
    too_large = item.media_type == "application/pdf" and size
    return f"[{named}: {'left out: over the limit' if too_large else 'not shown'}]"


def _is_text(item: File) -> bool:
    kind = item.media_type.partition(";")[0].strip()
    return kind.startswith("text/") or kind in ("application/json", "application/xml")
