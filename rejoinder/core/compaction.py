"""What is said in a compaction: to the model, to the next one who reads its summary, to people.

`decide` says when, `tasks/compact.py` does it, `models/machine` stores it.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from rejoinder.core.decide import Entry, TooLong, is_complete
from rejoinder.core.estimate import is_shown
from rejoinder.core.failures import FailureKind
from rejoinder.core.fitting import shorten
from rejoinder.core.messages import (
    Compaction,
    Failure,
    NewMessage,
    Role,
    TurnKind,
    Visibility,
)
from rejoinder.core.model import PromptMessage
from rejoinder.core.parts import Json, Part, Raw, Text, text_of

_ASKS = "Stop here, and write a summary of this conversation."
INSTRUCTION = f"""{_ASKS} It will stand in place of \
everything above: whoever goes on reads it and the system prompt, and nothing else. Do not call \
tools, do not answer the user, and do not go on with the work in this message.

Write these sections, and leave one out only if there is nothing for it:

1. What the user demanded: every constraint, preference and prohibition of the user that still \
holds, quoted in their own words.
2. Goal: what the user wants to have in the end, and why, as far as they said so.
3. Decisions: what was decided, by whom, and for which reason; what was considered and rejected.
4. Technical facts: names, paths, commands, identifiers, versions, figures and interfaces that the \
work depends on, exactly as they are.
5. Errors and fixes: each specific error, what caused it, and what helped. One failure of a tool \
or a command is one failure: say what failed and with which input, and never turn it into a rule \
that the tool cannot or must not be used.
6. State: what is done (and how that was checked), what is in progress, what remains.
7. The action in flight: what was being done at the moment this summary was asked for, and the \
very next step. If the user's last message has been answered and nothing is left to do, say so.

Be complete where something cannot be found out again, and brief where it can: do not copy the \
content of files or long outputs, but name the path or the command that shows it again. If an \
earlier summary stands above, carry over all of it that still holds."""

BEFORE = """\
The conversation up to here was longer than can be shown. This is a summary of it, written by the \
assistant; take it as what you know. Do not mention it, and do not repeat what is done: go on with \
the action in flight, if there is one."""
NEWEST = "The user's newest message before the summary, word for word:"
CUT_OFF = "(The summary was cut off here, at the model's output limit.)"
MOST_CARRIED = 16_000
"""Characters of the user's newest message that are kept beside the summary, at most."""


class Source(StrEnum):
    """Who wanted it."""

    AUTOMATIC = "automatic"
    REQUESTED = "requested"


def source_of(kind: TurnKind) -> Source:
    """Who wanted it: a turn of its own was asked for."""
    return Source.REQUESTED if kind is TurnKind.COMPACTION else Source.AUTOMATIC


def instruction() -> Entry:
    """The last message of the prompt that asks for a summary."""
    return Entry(0, Role.USER, (Text(INSTRUCTION),))


def asks_for_summary(messages: Sequence[PromptMessage]) -> bool:
    """Whether a prompt ends with the instruction."""
    return bool(messages) and any(
        isinstance(part, Text) and part.text.startswith(_ASKS) for part in messages[-1].parts
    )


def boundary(
    summary: str,
    history: Sequence[Entry],
    context_limit: int,
    marker: NewMessage,
    told: Mapping[str, Json],
) -> Compaction:
    """What is stored: the summary with the user's newest words for the model, and the marker."""
    carried = _carried(history, min(MOST_CARRIED, context_limit // 3))
    parts = (Text(f"{BEFORE}\n\n{summary.strip()}"), *carried)
    message = NewMessage(Role.USER, parts, Visibility.MODEL, compressed=True)
    return Compaction(message, marker, told)


def marker_parts(source: Source, tokens_before: int | None) -> tuple[Part, ...]:
    """What people see: a sentence, and the same for programs."""
    how = "as you asked" if source is Source.REQUESTED else "to make room"
    size = f" It had about {tokens_before:,} tokens." if tokens_before else ""
    words = f"The conversation up to here was summarised for the model, {how}.{size}"
    facts: dict[str, Json] = {
        "type": "compaction",
        "source": source.value,
        "tokens_before": tokens_before,
    }
    return Text(words), Raw(facts)


def too_long(action: TooLong) -> Failure:
    """The failure of a chat that summarising cannot help."""
    if action.compacted:
        return Failure(
            FailureKind.CONTEXT_LENGTH.value,
            f"The conversation was summarised and is still too long: about {action.tokens:,} tokens"
            f" of {action.limit:,} that it may have.",
            "What is always there (system prompt, tools, the newest message) takes the room:"
            " shorten it, raise compact_at, or send the next message with a model that has a larger"
            " context.",
        )
    return Failure(
        FailureKind.CONTEXT_LENGTH.value,
        f"The message is too long: the prompt has about {action.tokens:,} tokens, and the model can"
        f" read {action.limit:,}.",
        "Shorten the message (edit it) or split it, or use a model with a larger context. It was"
        " not sent to the model.",
    )


def _carried(history: Sequence[Entry], length: int) -> tuple[Part, ...]:
    """The user's words that are not answered yet: a paraphrase of them would be a loss."""
    said: list[Entry] = []
    for entry in reversed(history):
        if is_complete((entry,)):
            break
        if entry.compressed:
            if not said:
                return entry.parts[1:]  # nothing was said since the last summary
            break
        if entry.role is Role.USER:
            said.append(entry)
    if not said:
        return ()
    words = "\n\n".join(text_of(entry.parts) for entry in reversed(said))
    shown = [p for entry in reversed(said) for p in entry.parts if is_shown(p)]
    return Text(f"{NEWEST}\n\n{shorten(words, length)}"), *shown
