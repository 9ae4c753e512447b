"""Compaction: one model call that writes a summary, which then stands in place of history.

When it is time is `decide`'s business, by the limits that `policy` gives it; what is said is in
`rejoinder/core/compaction.py`. Progress goes to the readers as `compaction` events, never as parts
of an answer. Nothing is kept of a summary that is not complete: a stop leaves history as it was.
"""

from dataclasses import dataclass, replace
from functools import partial

from models import machine
from models.snapshot import Loaded
from rejoinder.core.cancellation import Cancelled
from rejoinder.core.compaction import (
    CUT_OFF,
    Source,
    boundary,
    instruction,
    marker_parts,
    source_of,
    too_long,
)
from rejoinder.core.decide import Compact, Policy, TooLong
from rejoinder.core.effects import Cause, EventKind
from rejoinder.core.errors import Rejected, StopRequested
from rejoinder.core.estimate import message_tokens, prompt_tokens, tools_tokens
from rejoinder.core.failures import FailureKind
from rejoinder.core.fitting import fit
from rejoinder.core.messages import Failure, NewMessage, Role, Visibility
from rejoinder.core.model import (
    Batch,
    ModelRequest,
    Options,
    Profile,
    Reply,
    StopReason,
    TextDelta,
)
from rejoinder.core.parts import Json, text_of
from rejoinder.core.prompt import assemble
from rejoinder.core.settings import PERCENT
from rejoinder.providers import Provider, provider_for
from rejoinder.providers.errors import ProviderError
from tasks import budget
from tasks.generate import consume
from tasks.held import Held

EVENT = EventKind.COMPACTION
EMPTY = Failure("generic", "The model wrote no summary.", retryable=True)
REFUSED = Failure("content_filter", "The model declined to write a summary.")
SUMMARY_TOKENS = 16_000
"""What a summary may have, at most."""
SHARES = (1.0, 0.5, 0.25)
"""How much of the room is used, from one try to the next, if the estimate was too low."""


@dataclass(frozen=True)
class _Writer:
    """Who writes the summary, and within which limits."""

    provider: Provider
    model: str
    profile: Profile
    options: Options

    @property
    def name(self) -> str:
        return f"{self.provider.name}:{self.model}"

    @property
    def room(self) -> int:
        """Tokens of a prompt that leaves enough for the summary."""
        return self.profile.context_limit - (self.options.max_tokens or 0)


def policy(held: Held, loaded: Loaded) -> Policy:
    """The limits of this chat: the stricter of the chat's model and the one that summarises."""
    settings = held.runtime.settings
    percent = (
        settings.compact_at if loaded.options.compact_at is None else loaded.options.compact_at
    )
    if percent >= PERCENT:
        return Policy(settings.max_steps)
    provider, model = _known(loaded.model or settings.model)
    limit = provider.profile(model).context_limit
    strict = min(limit, _writer(held, loaded).profile.context_limit)
    newest_first = reversed(loaded.snapshot.history)
    counted = any(entry.context_tokens is not None for entry in newest_first)
    return Policy(
        settings.max_steps,
        compact_from=strict * percent // PERCENT,
        context_limit=limit,
        overhead=0 if counted else tools_tokens(held.tools(loaded).specs()),
    )


def make_room(held: Held, loaded: Loaded, action: Compact | TooLong) -> None:
    """Have history summarised; or say that this cannot help."""
    match action:
        case Compact():
            _compact(held, loaded)
        case TooLong():
            held.write(machine.fail, too_long(action))


def _compact(held: Held, loaded: Loaded) -> None:
    source = source_of(loaded.snapshot.turn_kind)
    writer = _writer(held, loaded)
    history = loaded.snapshot.history
    before = prompt_tokens(history)
    if budget.parks(held, loaded, writer.name, lambda: before):
        return
    held.tell(EVENT, state="started", source=source, model=writer.name, tokens_before=before)
    try:
        reply, summary = _summary(held, loaded, writer)
        cost = held.runtime.prices.cost_micros(writer.name, reply.usage)
        runtime_ms = int(held.timeline.ms("model") or 0)
        marker = replace(_marker(writer, reply, source, before, runtime_ms), cost_micros=cost)
        told: dict[str, Json] = {"source": source, "tokens_before": before}
        stored = boundary(summary, history, writer.profile.context_limit, marker, told)
        held.write(machine.store_compaction, stored)
    except (Cancelled, StopRequested, ProviderError) as why:
        if not (isinstance(why, Cancelled) and why.cause is Cause.LEASE_LOST):
            message = why.failure.message if isinstance(why, ProviderError) else "It was stopped."
            held.tell(EVENT, state="failed", source=source, message=message)
        raise


def _writer(held: Held, loaded: Loaded) -> _Writer:
    settings, asked = held.runtime.settings, loaded.options
    own = loaded.model or settings.model
    chosen = asked.compaction_model or settings.compaction_model or own
    provider, model = _known(chosen)
    profile = provider.profile(model)
    most = min(SUMMARY_TOKENS, profile.max_output_tokens, max(1, profile.context_limit // 4))
    # Another model may not know what this chat's was told; thinking costs room and saves nothing.
    options = replace(asked.model, thinking=None) if chosen == own else Options()
    return _Writer(provider, model, profile, replace(options, max_tokens=most))


def _known(name: str) -> tuple[Provider, str]:
    try:
        return provider_for(name)
    except Rejected as error:
        raise ProviderError(Failure(FailureKind.CONFIG.value, str(error))) from error


def _summary(held: Held, loaded: Loaded, writer: _Writer) -> tuple[Reply, str]:
    """Ask, with less and less of history if the provider finds it too long."""
    tools = held.tools(loaded).specs()
    ask = instruction()
    overhead = tools_tokens(tools) + message_tokens(ask.parts)
    for tried, share in enumerate(SHARES):
        history = fit(loaded.snapshot.history, int(writer.room * share), overhead=overhead)
        request = ModelRequest(
            model=writer.model,
            messages=assemble((*history, ask), writer.provider.name, model=writer.model),
            tools=tools,
            options=writer.options,
            attempt=held.attempt + tried,
            tool_use=False,
        )
        try:
            return _written(_ask(held, writer, request))
        except ProviderError as error:
            too_long = error.failure.kind == FailureKind.CONTEXT_LENGTH
            if not too_long or share == SHARES[-1]:
                raise
    raise AssertionError("there is a last share")


def _written(reply: Reply) -> tuple[Reply, str]:
    """The summary in an answer; calls in it are ignored."""
    summary = text_of(reply.parts).strip()
    if not summary:
        raise ProviderError(REFUSED if reply.stop is StopReason.REFUSAL else EMPTY)
    if reply.stop in (StopReason.MAX_TOKENS, StopReason.CONTEXT_LENGTH):
        summary = f"{summary}\n\n{CUT_OFF}"
    return reply, summary


def _ask(held: Held, writer: _Writer, request: ModelRequest) -> Reply:
    count = 0

    def see(batch: Batch) -> None:
        for item in batch:
            if isinstance(item, TextDelta):
                show(item)

    def show(words: TextDelta) -> None:
        nonlocal count
        is_first = count == 0
        count += words.count
        data: dict[str, Json] = {"state": "part", "index": words.index, "text": words.text}
        data |= {"history_version": held.fence.history_version, "attempt": request.attempt}
        data |= {"seq": count, "n": words.count}
        held.runtime.events.add(held.chat_id, EVENT, data, now=is_first)

    stream = writer.provider.stream(request)
    silence = held.runtime.settings.silence_seconds
    with held.away("model"):
        reply = held.runtime.run(
            partial(consume, stream, held.cancellation, see, silence), held.cancellation
        )
    held.usage = reply.usage
    return reply


def _marker(
    writer: _Writer, reply: Reply, source: Source, before: int, runtime_ms: int
) -> NewMessage:
    return NewMessage(
        Role.ASSISTANT,
        marker_parts(source, before),
        Visibility.USER,
        compressed=True,
        model=writer.name,
        usage=reply.usage,
        context_limit=writer.profile.context_limit,
        runtime_ms=runtime_ms,
        stop_reason=reply.stop,
        request_id=reply.request_id,
    )
