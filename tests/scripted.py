"""Asking the scripted provider in a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from rejoinder.core.messages import Role
from rejoinder.core.model import (
    ModelRequest,
    Options,
    PromptMessage,
    Reply,
    StreamItem,
)
from rejoinder.core.parts import Json, Part, Text, ToolResult, text_of
from rejoinder.providers.scripted import ScriptedProvider
from rejoinder.testing import play
from rejoinder.testing.conformance import check_answer, check_failure, collect

if TYPE_CHECKING:
    from rejoinder.providers.errors import ProviderError
    from rejoinder.testing.scripts import ScriptData

PROVIDER = ScriptedProvider()


def user(text: str) -> PromptMessage:
    return PromptMessage(Role.USER, (Text(text),))


def answer(*parts: Part) -> PromptMessage:
    return PromptMessage(Role.ASSISTANT, parts or (Text("…"),))


def results(*contents: Json) -> PromptMessage:
    found = [ToolResult(str(n), content) for n, content in enumerate(contents)]
    return PromptMessage(Role.TOOL, tuple(found))


def request(script: ScriptData | None, *messages: PromptMessage, attempt: int = 0) -> ModelRequest:
    extra = {} if script is None else play(script)
    return ModelRequest("test", messages or (user("Hi"),), (), Options(extra=extra), attempt)


def items(asked: ModelRequest, provider: ScriptedProvider = PROVIDER) -> list[StreamItem]:
    return anyio.run(lambda: collect(provider.stream(asked)))


def reply(asked: ModelRequest, provider: ScriptedProvider = PROVIDER) -> Reply:
    return check_answer(items(asked, provider))


def said(asked: ModelRequest) -> str:
    return text_of(reply(asked).parts)


def failure(asked: ModelRequest) -> ProviderError:
    return anyio.run(lambda: check_failure(PROVIDER.stream(asked)))
