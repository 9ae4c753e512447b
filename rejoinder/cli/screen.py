"""Where the words go: a pipe, or a terminal with colours.

A screen is written to in two ways: `write` goes on in the current line (an answer that streams),
`line` is a line of its own. `live` is what is going on at the moment; a pipe leaves it out.
"""

import shutil
import sys
from collections.abc import Sequence
from enum import Enum
from typing import Protocol, TextIO


class Style(Enum):
    """How words look on a terminal, as an ANSI code."""

    PLAIN = ""
    DIM = "2"
    THINKING = "2;3"
    USER = "1;36"
    GOOD = "32"
    BAD = "31"
    WARN = "33"
    BOLD = "1"


Live = Sequence[tuple[str, Style]]
SPIN = "\0"
"""In a live line: the place of something that turns."""


class Screen(Protocol):
    """What `Teller` writes on."""

    def write(self, text: str, style: Style = Style.PLAIN) -> None:
        """Go on in the current line."""

    def line(self, text: str, style: Style = Style.PLAIN) -> None:
        """Write a line of its own."""

    def fresh(self) -> None:
        """End the current line, if there is one."""

    def live(self, lines: Live) -> None:
        """Say what is going on, in place of what was said there before."""


def painted(text: str, style: Style) -> str:
    """The text in its style."""
    return f"\033[{style.value}m{text}\033[0m" if style.value and text else text


def printable(text: str) -> str:
    """Text without what could command the terminal; a model's words are not to be trusted."""
    return "".join(
        char if char in "\n\t" or (char.isprintable() or char == "\u200d") else "\ufffd"
        for char in text.replace("\r\n", "\n").replace("\r", "\n")
    )


def width() -> int:
    """Columns of the terminal."""
    return max(40, min(shutil.get_terminal_size((100, 24)).columns, 160))


class PlainScreen:
    """Writes one thing after the other; with colours if it is a terminal."""

    def __init__(self, stream: TextIO | None = None, *, colour: bool | None = None) -> None:
        """Write to this stream, by default standard output."""
        self._stream = stream or sys.stdout
        self._colour = self._stream.isatty() if colour is None else colour
        self._open = False

    def write(self, text: str, style: Style = Style.PLAIN) -> None:
        """Go on in the current line, at once."""
        self._put(printable(text), style)
        self._open = not text.endswith("\n") if text else self._open

    def line(self, text: str, style: Style = Style.PLAIN) -> None:
        """Write a line of its own."""
        self.fresh()
        self._put(printable(text), style)
        self._put("\n", Style.PLAIN)

    def fresh(self) -> None:
        """End the current line."""
        if self._open:
            self._put("\n", Style.PLAIN)
            self._open = False

    def live(self, lines: Live) -> None:
        """Nothing moves here."""

    def _put(self, text: str, style: Style) -> None:
        self._stream.write(painted(text, style) if self._colour else text)
        self._stream.flush()
