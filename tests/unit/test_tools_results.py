"""What a tool returned, as the model reads it."""

from __future__ import annotations

import base64
import enum
import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rejoinder.testing import run_tool
from rejoinder.tools import File, Image, cap, content_of, result_limit, tool
from rejoinder.tools.cap import MARKER_BYTES, readable
from rejoinder.tools.results import MAX_MEDIA_BYTES, ResultError

LIMIT = 64 * 1024


class Point(BaseModel):
    x: int
    at: datetime | None = None


@dataclass
class Pair:
    left: str
    right: list[Point]


class Colour(enum.Enum):
    RED = "red"


NOW = datetime(2026, 1, 2, tzinfo=UTC)
ID = uuid.UUID(int=5)


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("words, \x00 and é", "words, \x00 and é"),
        ("", ""),
        (True, "true"),
        (3, "3"),
        (1.5, "1.5"),
        ({"b": 1, "a": ["é", None]}, '{"b": 1, "a": ["é", null]}'),
        ([], "[]"),
        ((1, 2), "[1, 2]"),
        (Point(x=1, at=NOW), '{"x": 1, "at": "2026-01-02T00:00:00Z"}'),
        (Pair("l", [Point(x=2)]), '{"left": "l", "right": [{"x": 2, "at": null}]}'),
        (Colour.RED, '"red"'),
        ({"id": ID, "at": NOW}, f'{{"id": "{ID}", "at": "2026-01-02T00:00:00Z"}}'),
        ([{"type": "text", "text": "mine"}], '[{"type": "text", "text": "mine"}]'),
        ("héllo".encode(), "héllo"),
        (bytearray(b"abc"), "abc"),
        (b"\xff\xfe", "[2 bytes of binary data, as base64] //4="),
        (b"\xff" * 5000, "[5000 bytes of binary data, not shown]"),
        ("lone \ud800 surrogate", "lone \ufffd surrogate"),
        ({"k": "\udfff"}, '{"k": "\ufffd"}'),
    ],
)
def test_values_become_text(value: object, content: str) -> None:
    assert content_of(value, LIMIT) == content


def test_nothing_is_told_apart_from_done() -> None:
    @tool
    def act() -> None: ...

    @tool
    def undeclared():  # type: ignore[no-untyped-def]  # noqa: ANN202
        return None

    @tool
    def find() -> str | None:
        return None

    assert run_tool(act).content == "ok"
    assert run_tool(undeclared).content == "ok"
    assert run_tool(find).content == "null"


LOOP: list[Any] = []
LOOP.append(LOOP)
DEEP: list[Any] = []
for _ in range(5000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (float("nan"), "Out of range float"),
        ({"a": [float("inf")]}, "Out of range float"),
        (object(), "object.*no JSON form"),
        ({"a": object()}, "dict.*no JSON form"),
        (LOOP, "list"),
        (DEEP, ""),
        ({"a": b"\xff"}, "dict"),
        ({"picture": Image(b"x")}, "dict.*Image"),
    ],
)
def test_what_has_no_json_form_is_an_error_of_that_call(value: object, says: str) -> None:
    with pytest.raises(ResultError, match=f"The tool ran, but.*{says}"):
        content_of(value, LIMIT)

    @tool
    def f() -> object:
        return value

    result = run_tool(f)
    assert result.is_error
    assert str(result.content).startswith("The tool ran, but")


PNG = b"\x89PNG" + bytes(20)


def test_an_image_is_a_block() -> None:
    assert content_of(Image(PNG), LIMIT) == [
        {
            "type": "image",
            "source": {
                "type": "base64",
                "media_type": "image/png",
                "data": base64.b64encode(PNG).decode(),
            },
        }
    ]


def test_texts_images_and_files_mix() -> None:
    content: Any = content_of(
        [
            "Look:",
            Image(PNG, "image/jpeg"),
            {"a": 1},
            "",
            File(b"%PDF", "application/pdf", "bill.pdf"),
            File("naïve".encode(), "text/plain; charset=utf-8", "note.txt"),
            File(b"\x00\xff", "application/zip", "a.zip"),
            File(b"\xff", "text/plain", "broken.txt"),
            Image(b""),
        ],
        LIMIT,
    )
    assert [block.get("text", block["type"]) for block in content] == [
        "Look:",
        "image",
        '{"a": 1}',
        "document",
        "[file 'note.txt', text/plain; charset=utf-8, 6 bytes]\nnaïve",
        "[file 'a.zip', application/zip, 2 bytes: not shown]",
        "[file 'broken.txt', text/plain, 1 bytes: not shown]",
        "[image, image/png, 0 bytes: no data]",
    ]
    assert content[3]["title"] == "bill.pdf"
    assert content[3]["source"]["media_type"] == "application/pdf"


def test_media_over_the_limit_is_left_out_with_a_note() -> None:
    half = MAX_MEDIA_BYTES // 2 + 1
    content: Any = content_of(
        [Image(bytes(half)), Image(bytes(half)), File(bytes(half), "application/pdf"), Image(PNG)],
        LIMIT,
    )
    assert [block["type"] for block in content] == ["image", "text", "text", "image"]
    assert content[1]["text"] == (
        f"[image, image/png, {half} bytes: left out: over the limit, return a smaller one]"
    )
    assert "left out: over the limit" in content[2]["text"]


def test_texts_of_blocks_share_one_limit() -> None:
    content: Any = content_of(["a" * 900, Image(PNG), "b" * 900, "c" * 900], 1000)
    texts = [block["text"] for block in content if block["type"] == "text"]
    assert sum(len(text.encode()) for text in texts) <= 1000
    assert texts[0] == "a" * 900


def test_a_picture_is_a_picture() -> None:
    with pytest.raises(ValueError, match="use File"):
        Image(b"", "application/pdf")


@pytest.mark.parametrize(
    ("context_limit", "limit"),
    [
        (None, 64 * 1024),
        (0, 64 * 1024),
        (-5, 64 * 1024),
        (1000, 16 * 1024),
        (200_000, 199_998),
        (1_000_000, 999_999),
    ],
)
def test_the_limit_follows_the_context(context_limit: int | None, limit: int) -> None:
    assert result_limit(context_limit) == limit


@given(st.text(max_size=400), st.integers(1, 60), st.integers(MARKER_BYTES, 3000))
def test_a_capped_text_keeps_head_and_tail_and_counts_what_is_missing(
    piece: str, times: int, limit: int
) -> None:
    text = readable(piece) * times
    size = len(text.encode())
    capped = cap(text, limit)
    if size <= limit:
        assert capped == text
        return
    assert len(capped.encode()) <= limit
    before, marker, after = split(capped, size)
    assert text.startswith(before)
    assert text.endswith(after)
    assert marker == size - len(before.encode()) - len(after.encode())
    room = limit - MARKER_BYTES
    assert 0 <= room - room // 3 - len(before.encode()) < 4  # at most one character short
    assert 0 <= room // 3 - len(after.encode()) < 4


def split(capped: str, size: int) -> tuple[str, int, str]:
    """Head, bytes said to be cut, and tail."""
    start = capped.index("\n\n[… ", max(0, capped.find("\n\n[… ")))
    number = capped[start + 5 :].split(" ", 1)[0]
    marker = f"\n\n[… {number} of {size} bytes were cut here; ask for less, or for a part …]\n\n"
    before, _, after = capped.partition(marker)
    return before, int(number), after


def test_a_text_of_just_the_limit_is_whole() -> None:
    assert cap("é" * 500, 1000) == "é" * 500
    assert cap("é" * 500, 999) != "é" * 500


@pytest.mark.parametrize("character", ["é", "€", "𝄞", "👩‍👩‍👧"])
@pytest.mark.parametrize("shift", range(4))
def test_no_character_is_split_at_a_cut(character: str, shift: int) -> None:
    text = "x" * shift + character * 5000
    capped = cap(text, 1000)
    assert "\ufffd" not in capped
    assert set(capped.split("\n\n")[0]) <= set("x" + character)


@given(st.text(), st.integers(-10, MARKER_BYTES - 1))
def test_a_tiny_limit_is_kept_too(text: str, limit: int) -> None:
    assert len(cap(readable(text), limit).encode()) <= max(limit, 0)


@given(st.text(st.characters(codec=None)))
def test_readable_text_can_be_encoded_and_good_text_is_untouched(text: str) -> None:
    fixed = readable(text)
    fixed.encode()
    assert readable(fixed) == fixed
    if not any("\ud800" <= c <= "\udfff" for c in text):
        assert fixed == text


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=10,
)


@given(json_values)
def test_any_json_value_comes_back_from_its_text(value: object) -> None:
    if not isinstance(value, str):
        text = content_of(value, 10**9)
        assert isinstance(text, str)
        assert json.loads(text) == value
