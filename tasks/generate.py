"""One model call: the prompt goes out, the answer streams in, and what follows is recorded.

Runs on the process' event loop with no transaction open. Live parts go to the chat's readers as
they come. An answer counts only if the provider ended it; if the step is cancelled first, what came
so far is kept in `Held.partial` for whoever ends the step.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial

import anyio

from models import machine
from models.snapshot import Loaded
from rejoinder.core import parts
from rejoinder.core.cancellation import Cancellation
from rejoinder.core.effects import Cause
from rejoinder.core.messages import Failure, NewMessage, Role, Usage, Visibility
from rejoinder.core.model import Batch, ModelRequest, Reply, StopReason
from rejoinder.core.partial import Partial
from rejoinder.core.prompt import assemble
from rejoinder.providers import Provider, provider_for
from rejoinder.providers.errors import ProviderError
from rejoinder.providers.silence import with_silence_limit
from tasks import budget, titles
from tasks.held import Held
from tasks.preview import Preview
from tasks.use_tools import finish_tools, starts

CUT = Failure("timeout", "The answer broke off before its end.", retryable=True)
REFUSED = Failure("content_filter", "The model declined to answer.")
CUT_NOTICE = "The answer was cut off at the model's output limit."


def generate(held: Held, loaded: Loaded) -> None:
    """Ask the model, then run the tools it asked for, or end the turn."""
    provider, model = provider_for(loaded.model or held.runtime.settings.model)
    profile = provider.profile(model)
    request = ModelRequest(
        model=model,
        messages=assemble(
            loaded.snapshot.history, provider.name, model=model, caching=profile.caching
        ),
        tools=held.tools(loaded).specs(),
        options=loaded.options.model,
        attempt=held.attempt,
    )
    full_name = f"{provider.name}:{model}"
    if budget.parks(held, loaded, full_name, partial(budget.tokens_of, request)):
        return
    titles.begin(held.runtime, loaded)
    reply, runtime_ms = _ask(held, provider, request)
    message = NewMessage(
        Role.ASSISTANT,
        reply.parts,
        model=full_name,
        usage=reply.usage,
        context_limit=profile.context_limit,
        runtime_ms=runtime_ms,
        stop_reason=reply.stop,
        request_id=reply.request_id,
        cost_micros=held.runtime.prices.cost_micros(full_name, reply.usage),
    )
    held.partial = message  # complete now, and still to be saved if a stop comes first
    _follow_up(held, loaded, message, reply.stop)


def _follow_up(held: Held, loaded: Loaded, message: NewMessage, stop: StopReason) -> None:
    requested = parts.open_calls(message.parts)
    if requested:
        plans = held.tools(loaded).plans(requested)
        start = [call_id for call_id, plan in plans.items() if starts(plan)]
        held.write(machine.record, message, plans=plans, start=start)
        held.partial = None
        finish_tools(held, loaded, requested, plans)
    elif stop is StopReason.PAUSE:
        held.commit(message=message)
    elif stop is StopReason.REFUSAL and not parts.text_of(message.parts).strip():
        held.partial = None
        held.write(machine.fail, REFUSED, lost=message)
    elif stop in (StopReason.MAX_TOKENS, StopReason.CONTEXT_LENGTH):
        notice = NewMessage(Role.ASSISTANT, (parts.Text(CUT_NOTICE),), Visibility.USER)
        held.write(machine.finish_turn, message=message, notice=notice)
    else:
        held.write(machine.finish_turn, message=message)


def _ask(held: Held, provider: Provider, request: ModelRequest) -> tuple[Reply, int]:
    """The answer, and how long it took in milliseconds."""
    began = time.monotonic()
    so_far = Partial()
    preview = Preview(held)

    def see(batch: Batch) -> None:
        for item in batch:
            so_far.add(item)
            preview.add(item)

    silence = held.runtime.settings.silence_seconds
    stream = provider.stream(request)
    with held.away("model"):
        try:
            reply = held.runtime.run(
                partial(consume, stream, held.cancellation, see, silence), held.cancellation
            )
        except BaseException:
            held.partial = _broken_off(held, f"{provider.name}:{request.model}", so_far, began)
            raise
        finally:
            held.usage = so_far.usage
        took = _since(began)
    return reply, took


def _broken_off(held: Held, model: str, so_far: Partial, began: float) -> NewMessage | None:
    """What there is of an answer that has no end: words, or at least what they cost."""
    kept, usage = so_far.parts(), so_far.usage
    if not kept and usage == Usage():
        return None
    return NewMessage(
        Role.ASSISTANT,
        kept,
        model=model,
        usage=usage,
        runtime_ms=_since(began),
        cost_micros=held.runtime.prices.cost_micros(model, usage),
    )


def _since(began: float) -> int:
    return int((time.monotonic() - began) * 1000)


async def consume(
    stream: AsyncIterator[Batch],
    cancellation: Cancellation,
    see: Callable[[Batch], None],
    silence: float,
) -> Reply:
    """Read the stream to its end. A complete answer wins over a cancellation that came with it."""
    loop = asyncio.get_running_loop()
    reply: Reply | None = None
    with anyio.CancelScope() as scope:

        def stop(_: Cause) -> None:
            loop.call_soon_threadsafe(scope.cancel)

        forget = cancellation.on_cancel(stop)
        try:
            async with aclosing(with_silence_limit(stream, silence)) as batches:
                async for batch in batches:
                    see(batch)
                    if isinstance(batch[-1], Reply):
                        reply = batch[-1]
        finally:
            forget()
    if reply is not None:
        return reply
    cancellation.raise_if_cancelled()
    raise ProviderError(CUT)
