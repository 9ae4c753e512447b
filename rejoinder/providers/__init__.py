"""Models, behind one small protocol.

A provider is one file: a class with a `name`, `profile`, `stream` and `aclose`, and a line in
`PROVIDERS`. It knows neither rows nor tasks, keeps no history and retries nothing. `anthropic.py`
is the example to follow; `rejoinder/testing/conformance.py` says what each must do.
"""

import importlib
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Protocol

from rejoinder.core.errors import Rejected
from rejoinder.core.model import Batch, ModelRequest, Profile


class Provider(Protocol):
    """Somebody who runs models. One instance per process, used from one event loop."""

    @property
    def name(self) -> str:
        """What stands before the colon in a model's name."""

    def profile(self, model: str) -> Profile:
        """What a model can do; a guess on the safe side for one that nobody knows."""

    def stream(self, request: ModelRequest) -> AsyncIterator[Batch]:
        """Ask: an async generator of deltas and, last, if the answer is complete, its `Reply`.

        What comes together is yielded together, and deltas of the same part in it may be one, with
        their `count`: each batch costs everybody on its way as much as one word. An empty batch
        shows that the provider is there, although it has nothing to say.

        Raises nothing but `ProviderError`. Closing the generator, or cancelling whoever waits for
        it, closes the connection. Read it through `silence.with_silence_limit`.
        """

    async def aclose(self) -> None:
        """Close all connections."""


Factory = Callable[[], Provider]

PROVIDERS: dict[str, str | Factory] = {
    "anthropic": "rejoinder.providers.anthropic:AnthropicProvider",
    "scripted": "rejoinder.providers.scripted:ScriptedProvider",
}
"""By name: where to find the class, or what makes one. Nothing is imported before it is used."""

_made: dict[str, Provider] = {}
_lock = threading.Lock()


def provider_for(model: str) -> tuple[Provider, str]:
    """The provider of `provider:model`, and the model's own name."""
    name, rest = named(model)
    with _lock:
        if name not in _made:
            _made[name] = _make(PROVIDERS[name])
        return _made[name], rest


def named(model: str) -> tuple[str, str]:
    """The two halves of `provider:model`, if there is such a provider. Nothing is imported."""
    name, colon, rest = model.partition(":")
    if not colon or not rest.strip():
        raise Rejected(
            f"{model!r} names no model",
            "write it as provider:model, e.g. anthropic:claude-sonnet-5",
        )
    if name not in PROVIDERS:
        raise Rejected(
            f"There is no provider {name!r}", f"use one of: {', '.join(sorted(PROVIDERS))}"
        )
    return name, rest


def register(name: str, factory: Factory) -> None:
    """Make a provider known under a name, in place of any other."""
    with _lock:
        PROVIDERS[name] = factory
        _made.pop(name, None)


def forget_all() -> None:
    """Drop every provider that was made, open or not: connections do not survive a fork."""
    global _lock  # noqa: PLW0603  # a lock that the parent held stays locked in the child
    _lock = threading.Lock()
    _made.clear()


async def close_all() -> None:
    """Close every provider that was made, on the event loop that it was used from."""
    with _lock:
        made = [*_made.values()]
        _made.clear()
    for provider in made:
        with suppress(Exception):  # it is the end of the process, and the others are to be closed
            await provider.aclose()


def _make(where: str | Factory) -> Provider:
    if callable(where):
        return where()
    module, _, attribute = where.partition(":")
    made: Provider = getattr(importlib.import_module(module), attribute)()
    return made


os.register_at_fork(after_in_child=forget_all)
