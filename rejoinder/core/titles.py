"""A chat's title until somebody finds a better one: the first words of its first message."""

WORDS = 6
CHARACTERS = 80
UNTITLED = "New chat"


def first_words(text: str) -> str:
    """At most six words and eighty characters; a message without words is a new chat."""
    words = text.split()
    title = " ".join(words[:WORDS])
    if len(title) > CHARACTERS:
        return title[: CHARACTERS - 1].rstrip() + "…"
    return title + "…" if len(words) > WORDS else title or UNTITLED
