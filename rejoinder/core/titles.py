"""A chat's title: the first words of its first message, or what a model made of them, cleaned."""

import re
import unicodedata

WORDS = 6
CHARACTERS = 80
UNTITLED = "New chat"

_LABEL = re.compile(r"^(?:title|titel|titre|título)\s*:\s*", re.IGNORECASE)
_AROUND = "\"'`*_#“”„‘’«»‹›「」『』 "  # noqa: RUF001  # quotation marks of many languages, Markdown
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Controls, invisible formatting (also what turns writing around), halves of characters."""


def first_words(text: str) -> str:
    """At most six words and eighty characters; a message without words is a new chat."""
    words = text.split()
    title = " ".join(words[:WORDS])
    if len(title) > CHARACTERS:
        return title[: CHARACTERS - 1].rstrip() + "…"
    return title + "…" if len(words) > WORDS else title or UNTITLED


def cleaned(answer: str) -> str:
    """The title in a model's answer: one line of at most eighty characters; "" if there is none."""
    lines = (_bare(line) for line in answer.splitlines())
    title = next((line for line in lines if line), "")
    if len(title) > CHARACTERS:
        kept = title[: CHARACTERS - 1].rsplit(" ", 1)[0]
        return kept.rstrip(" ,;:-") + "…"
    return title


def _bare(line: str) -> str:
    """A line without label, quotation marks, Markdown, full stop and what cannot be seen."""
    shown = "".join(" " if unicodedata.category(c) in _HIDDEN else c for c in line)
    title = _LABEL.sub("", " ".join(shown.split()).strip(_AROUND)).strip(_AROUND)
    if title.endswith(".") and not title.endswith(".."):
        title = title[:-1]
    return title.strip(_AROUND)
