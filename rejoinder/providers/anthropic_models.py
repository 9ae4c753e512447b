"""What Claude models can do, as far as a request depends on it.

The first family whose name is in the model's name counts, so dated names, aliases and the names of
other clouds are all found. A model that nobody knows gets what every current one can do.
"""

from rejoinder.core.model import Profile

_CONTEXT = 200_000  # what every model takes without asking for more
_CLAUDE = Profile(_CONTEXT, 32_000, caching=True, thinking=True)
_STRANGER = Profile(_CONTEXT, 8_192, caching=True, thinking=False)

_FAMILIES: tuple[tuple[str, int, bool], ...] = (
    # part of the name, most output tokens, thinking
    ("claude-3-haiku", 4_096, False),
    ("claude-3-sonnet", 4_096, False),
    ("claude-3-opus", 4_096, False),
    ("claude-3-5", 8_192, False),
    ("claude-3-7", 64_000, True),
    ("claude-sonnet-4", 64_000, True),
    ("claude-haiku-4", 64_000, True),
    ("claude-opus-4-5", 64_000, True),
    ("claude-opus-4-6", 128_000, True),
)


def profile(model: str) -> Profile:
    """What this model can do."""
    for name, output, thinking in _FAMILIES:
        if name in model:
            return Profile(_CONTEXT, output, caching=True, thinking=thinking)
    return _CLAUDE if "claude" in model else _STRANGER
