"""Whether there is enough left for the next model call. Asked before each, never after.

What a tree has used, plus what the coming call will at least take to read its prompt, must be
within the budget; if it is not, the chat parks until somebody raises it. Chats of one tree that
look at the same moment may each make one call: that is the most by which a tree exceeds its budget,
besides what the last answers themselves take.
"""

from collections.abc import Callable

from models import accounts, machine
from models.snapshot import Loaded
from rejoinder.core.estimate import message_tokens, tools_tokens
from rejoinder.core.failures import FailureKind
from rejoinder.core.messages import Budget, Failure, Usage
from rejoinder.core.model import ModelRequest
from rejoinder.providers.errors import ProviderError
from tasks.held import Held


def parks(held: Held, loaded: Loaded, model: str, estimate: Callable[[], int]) -> bool:
    """Whether the budget does not allow this call; the chat is parked then, and the step over.

    `model` is `provider:model`; `estimate` tells about how many tokens its prompt has, which takes
    a while. Without a price, a budget in money would be no budget at all.
    """
    budget, used = loaded.budget, loaded.used
    if budget == Budget():
        return False
    tokens = estimate()
    cost = held.runtime.prices.cost_micros(model, Usage(input_tokens=tokens))
    if budget.micros is not None and cost is None:
        raise ProviderError(_without_price(model))
    short = budget.tokens is not None and used.tokens + tokens > budget.tokens
    short |= budget.micros is not None and used.cost_micros + (cost or 0) > budget.micros
    if short:
        held.write(
            machine.exceed_budget,
            budget=budget,
            deadline_seconds=held.runtime.settings.budget_seconds,
            spent={
                "spent": accounts.told(used),
                "budget": accounts.told_budget(budget),
                "needs": {"tokens": tokens, "cost_micros": cost},
            },
        )
    return short


def tokens_of(request: ModelRequest) -> int:
    """About how many tokens the prompt has."""
    said = sum(message_tokens(message.parts) for message in request.messages)
    return 1 + said + tools_tokens(request.tools)


def _without_price(model: str) -> Failure:
    return Failure(
        FailureKind.CONFIG.value,
        f"The chat has a budget in money, and nobody knows the price of {model}.",
        detail="Give the model a price in REJOINDER_PRICES, or set a budget in tokens; then retry.",
    )
