"""Bodies of HTTP answers: where they end, however they are cut."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejoinder.providers.http_body import Chunked, Framing, MalformedError, Sized, UntilClosed

CHUNKS = st.lists(st.binary(min_size=1, max_size=40), max_size=8)


def chunked(chunks: list[bytes], end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end


def taken(framing: Framing, data: bytes, cut: int) -> bytes:
    pieces = (data[at : at + cut] for at in range(0, len(data), cut))
    return b"".join(map(framing.take, pieces))


@given(CHUNKS, st.integers(1, 100))
def test_chunks_are_undone_wherever_they_are_cut(chunks: list[bytes], cut: int) -> None:
    framing = Chunked()
    assert taken(framing, chunked(chunks), cut) == b"".join(chunks)
    assert framing.complete
    assert not framing.surplus


@given(CHUNKS, st.integers(1, 100))
def test_chunks_that_break_off_are_not_complete(chunks: list[bytes], cut: int) -> None:
    framing = Chunked()
    taken(framing, chunked(chunks)[:-1], cut)
    assert not framing.complete
    with pytest.raises(MalformedError):
        framing.end()


def test_part_of_a_chunk_is_given_before_the_rest_has_come() -> None:
    framing = Chunked()
    assert framing.take(b"a\r\n12345") == b"12345"
    assert framing.take(b"67890\r") == b"67890"


def test_chunks_may_have_extensions_and_trailers() -> None:
    framing = Chunked()
    assert framing.take(b"3;a=b\r\nabc\r\n0\r\nx-sum: 1\r\n\r\n") == b"abc"
    assert framing.complete


def test_what_comes_after_the_end_is_seen() -> None:
    framing = Chunked()
    assert framing.take(b"1\r\na\r\n0\r\n\r\nHTTP/1.1") == b"a"
    assert framing.complete
    assert framing.surplus
    sized = Sized(2)
    assert sized.take(b"abc") == b"ab"
    assert sized.surplus


@pytest.mark.parametrize(
    "data",
    [b"-1\r\n", b"+1\r\n", b"0x1\r\n", b"\r\n", b"1\n", b"g\r\n", b"f" * 16 + b"\r\n"],
)
def test_what_is_no_size_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedError, match=re.escape("is not the size of a chunk")):
        Chunked().take(data)


def test_a_chunk_that_is_longer_than_it_says_is_refused() -> None:
    with pytest.raises(MalformedError):
        Chunked().take(b"1\r\nab\r\n")


def test_a_size_that_is_cut_in_two_is_one_size() -> None:
    framing, content = Chunked(), b"a\r\n" + b"x" * 14
    assert framing.take(b"1") == b""
    assert framing.take(b"1\r\n" + content + b"\r\n0\r\n\r\n") == content
    assert framing.complete


def test_a_chunk_that_does_not_end_where_the_next_begins_is_refused() -> None:
    framing = Chunked()
    assert framing.take(b"1\r\na") == b"a"
    with pytest.raises(MalformedError):
        framing.take(b"1\r\nb\r\n")


def test_a_line_without_an_end_is_refused() -> None:
    with pytest.raises(MalformedError):
        taken(Chunked(), b"1" * 1_000_000, 1000)


def test_a_sized_body_must_come_whole() -> None:
    framing = Sized(3)
    framing.take(b"ab")
    assert not framing.complete
    with pytest.raises(MalformedError, match="1 bytes before the end"):
        framing.end()


def test_a_body_without_a_size_ends_with_its_connection() -> None:
    framing = UntilClosed()
    assert framing.take(b"ab") == b"ab"
    assert not framing.complete
    framing.end()
    assert framing.complete
