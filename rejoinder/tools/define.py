"""`@tool`: a typed function becomes something that a model can call.

A `Tool` is what the model sees, and the plan of who answers a call; a `FunctionTool` is one that a
worker answers by calling a function. Decorating registers nothing: see `registry.py`. Other kinds
(client-side, another app's task) are a `Tool` with another `CallKind` in its plan.
"""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, ParamSpec, TypeVar, overload

from rejoinder.core.messages import CallPlan, Default, Delivery
from rejoinder.core.model import ToolSpec
from rejoinder.core.parts import ToolCall
from rejoinder.tools.schema import ArgumentsError, Signature, ToolDefinitionError, read

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class ToolError(Exception):
    """Raise it in a tool to tell the model, in these very words, why there is no result."""


@dataclass(frozen=True, eq=False)
class Tool:
    """A tool of any kind: what the model sees, and who answers a call."""

    spec: ToolSpec
    plan: CallPlan = field(default_factory=CallPlan)
    location: str = "unknown"
    """Where it is defined, for people."""

    def __post_init__(self) -> None:
        """Refuse names that a provider would refuse together with the whole request."""
        if not _NAME.fullmatch(self.spec.name):
            raise ToolDefinitionError(
                f"{self.spec.name!r} is no name for a tool: up to 64 letters, digits, _ and -"
            )

    @property
    def name(self) -> str:
        """What the model calls it."""
        return self.spec.name

    def plan_for(self, call: ToolCall) -> CallPlan:
        """How this very call is answered; other kinds of tools look at its arguments."""
        del call
        return self.plan

    def objection(self, call: ToolCall) -> str | None:
        """Why this very call cannot be made, in words for the model; None: it can.

        Such a call is answered by the worker, with these words: nobody is asked to allow it.
        """
        del call
        return None


@dataclass(frozen=True)
class Approve:
    """How a person is asked: for how long, and what holds if nobody answers."""

    seconds: float | None = None
    default: bool = False


@dataclass(frozen=True, eq=False)
class FunctionTool(Tool, Generic[P, R]):
    """A tool that is a function. Calling it calls the function, as if it were not decorated."""

    function: Callable[P, R] = field(kw_only=True)
    signature: Signature = field(kw_only=True, repr=False)
    timeout: float | None = field(default=None, kw_only=True)
    """Seconds; None is the runner's default, `math.inf` is no limit but the step's own."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self.function(*args, **kwargs)

    def objection(self, call: ToolCall) -> str | None:
        """Name what is wrong with the arguments."""
        try:
            self.signature.check(self.name, call.arguments)
        except ArgumentsError as error:
            return str(error)
        return None

    @property
    def is_async(self) -> bool:
        """Whether it runs in the event loop rather than in a thread."""
        return inspect.iscoroutinefunction(self.function)


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    idempotent: bool = False,
    approval: bool | Approve = False,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(  # noqa: PLR0913  # all but one are named
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    idempotent: bool = False,
    approval: bool | Approve = False,
) -> Any:
    """Make a tool of a typed function, sync or async: `@tool`, or `@tool(timeout=5)`.

    The schema comes from the type hints, the descriptions from the docstring (Google, numpy or
    sphinx style). `idempotent=True` allows to run a call again whose worker died; by default the
    model is told instead that the outcome is unknown. `approval=True` has a person allow each call
    first (`Approve` says for how long it waits, and what holds if nobody answers). A parameter
    annotated `ToolContext` gets the call's context. What cannot be a tool raises
    `ToolDefinitionError` here, not in a chat.
    """
    if timeout is not None and not 0 < timeout <= inf:
        raise ToolDefinitionError(f"timeout={timeout!r}: give seconds above 0")
    names = dict(sys._getframe(1).f_locals)  # noqa: SLF001  # a local class may be in the signature

    def make(function: Callable[..., Any]) -> FunctionTool[..., Any]:
        plan = planned(idempotent=idempotent, approval=approval)
        return _make(function, names, (name, description), timeout, plan)

    return make if function is None else make(function)


def planned(*, idempotent: bool, approval: bool | Approve) -> CallPlan:
    """How calls of a worker's tool are answered."""
    ask = Approve() if approval is True else approval or None
    return CallPlan(
        delivery=Delivery.IDEMPOTENT if idempotent else Delivery.ONCE,
        approval=ask is not None,
        default=Default(approve=ask.default, seconds=ask.seconds) if ask else None,
    )


def _make(
    function: Callable[..., Any],
    names: Mapping[str, Any],
    said: tuple[str | None, str | None],
    timeout: float | None,
    plan: CallPlan,
) -> FunctionTool[..., Any]:
    signature = read(function, names)
    name, description = said
    return FunctionTool(
        spec=ToolSpec(
            name or function.__name__, description or signature.description, signature.schema
        ),
        plan=plan,
        location=_location(function),
        function=function,
        signature=signature,
        timeout=timeout,
    )


def _location(function: Callable[..., Any]) -> str:
    function = inspect.unwrap(function)
    place = f"{function.__module__}.{function.__qualname__}"
    code = getattr(function, "__code__", None)
    return f"{place} ({code.co_filename}:{code.co_firstlineno})" if code else place
