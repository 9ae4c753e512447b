"""Titles: the first words of a message, or a model's, cleaned of what models add."""

import pytest

from rejoinder.core.titles import CHARACTERS, cleaned, first_words


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("Weather in Bonn", "Weather in Bonn"),
        ('"Weather in Bonn"', "Weather in Bonn"),
        ("“Weather in Bonn.”", "Weather in Bonn"),
        ("«Météo à Bonn»", "Météo à Bonn"),
        ("**Weather in Bonn**", "Weather in Bonn"),
        ("# Weather in Bonn", "Weather in Bonn"),
        ("Title: Weather in Bonn", "Weather in Bonn"),
        ('Title: "Weather in Bonn"', "Weather in Bonn"),
        ("\n\n  Weather\tin   Bonn \n\nIt is about rain.", "Weather in Bonn"),
        ("Weather in Bonn.", "Weather in Bonn"),
        ("And then...", "And then..."),
        ("What's the weather?", "What's the weather?"),
        ("Wei\x00rd\x1b[31m \u202eone", "Wei rd [31m one"),
        ("half \ud83d here", "half here"),
        ("天気について", "天気について"),
        ("", ""),
        ('  ""  ', ""),
        ("***", ""),
    ],
)
def test_a_models_title_is_cleaned(answer: str, title: str) -> None:
    assert cleaned(answer) == title


def test_a_title_that_is_too_long_is_cut_between_words() -> None:
    title = cleaned("I am sorry, but I cannot find a title for this message, because " + "x " * 50)
    assert len(title) <= CHARACTERS
    assert title.endswith("x…")
    assert len(cleaned("x" * 500)) == CHARACTERS


def test_the_fallback_is_the_first_words() -> None:
    assert first_words("one two three four five six seven") == "one two three four five six…"
    assert first_words("  ") == "New chat"
