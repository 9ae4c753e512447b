"""How many tokens a coming call takes at least, roughly."""

from rejoinder.core.estimate import MEDIA_TOKENS
from rejoinder.core.messages import Role
from rejoinder.core.model import ModelRequest, PromptMessage, ToolSpec
from rejoinder.core.parts import Part, Raw, Text, ToolCall, ToolResult
from tasks.budget import tokens_of


def asked(*parts: Part, tools: tuple[ToolSpec, ...] = ()) -> int:
    return tokens_of(ModelRequest("x", (PromptMessage(Role.USER, parts),), tools))


def test_words_calls_results_and_tools_all_count() -> None:
    nothing = asked()
    assert asked(Text("x" * 4000)) >= nothing + 1000
    assert asked(ToolCall("c", "look", {"q": "x" * 4000})) >= nothing + 1000
    assert asked(ToolResult("c", "x" * 4000)) >= nothing + 1000
    assert asked(ToolResult("c", {"found": ["x" * 4000]})) >= nothing + 1000
    assert asked(tools=(ToolSpec("t", "x" * 4000, {"type": "object"}),)) >= nothing + 1000
    assert nothing >= 1, "no call is free"


def test_an_image_counts_as_an_image_and_not_by_its_bytes() -> None:
    image = Raw({"type": "image", "source": {"type": "base64", "data": "A" * 4_000_000}})
    assert asked(image) <= MEDIA_TOKENS + 20
