"""Example tools, for the demo and for reading: REJOINDER_TOOLS=rejoinder.tools.examples.

They need no network and no key. `weather` is made up, but the same for the same city everywhere;
`slow_lookup` shows progress and cancellation in an async tool.
"""

import ast
import operator
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Literal, TypedDict
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import anyio
from pydantic import Field

from rejoinder.tools.context import ToolContext
from rejoinder.tools.define import ToolError, tool

_SKIES: tuple[Literal["sunny", "cloudy", "rainy", "windy"], ...] = (
    "sunny",
    "cloudy",
    "rainy",
    "windy",
)
_MAX_POWER = 1000
_MAX_DIGITS = 300


class Weather(TypedDict):
    """One city's weather."""

    city: str
    sky: str
    celsius: int


@tool(idempotent=True)
def weather(city: str) -> Weather:
    """Tell the weather in a city. The data is made up.

    Args:
        city: The city's name, e.g. "Bonn".
    """
    dice = random.Random(city.strip().casefold())  # noqa: S311  # the same for everyone
    return {"city": city.strip(), "sky": dice.choice(_SKIES), "celsius": dice.randint(-5, 32)}


@tool(idempotent=True)
def current_time(timezone: str = "UTC") -> str:
    """Tell the date and time in a time zone.

    Args:
        timezone: A name of the IANA database, e.g. "Europe/Berlin".
    """
    try:
        zone = UTC if timezone == "UTC" else ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ToolError(
            f"There is no time zone {timezone!r}; use a name such as 'Europe/Berlin'"
        ) from None
    return datetime.now(zone).isoformat(timespec="seconds")


@tool
def roll_dice(sides: Annotated[int, Field(ge=2, le=1000)] = 6, seed: int | None = None) -> int:
    """Roll a die.

    Args:
        sides: How many sides it has.
        seed: The same seed gives the same roll.
    """
    return random.Random(seed).randint(1, sides)  # noqa: S311  # a game


@tool(idempotent=True, timeout=60)
async def slow_lookup(
    context: ToolContext, topic: str, seconds: Annotated[float, Field(ge=0, le=30)] = 2
) -> str:
    """Look a topic up, slowly, in five steps.

    Args:
        topic: What to look up.
        seconds: How long it takes.
    """
    steps = 5
    for step in range(1, steps + 1):
        await anyio.sleep(seconds / steps)
        context.progress({"done": step, "of": steps})
    return f"{topic.strip()}: there are {len(topic.strip())} characters in it."


@tool(idempotent=True)
def calculate(expression: str) -> int | float:
    """Calculate with numbers: + - * / // % ** and parentheses.

    Args:
        expression: For example "(2 + 3) * 4".
    """
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ToolError(f"This cannot be calculated: {error}") from None


_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _sized(number)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, exponent = _value(left), _value(right)
            if abs(exponent) > _MAX_POWER or (base < 0 and exponent != int(exponent)):
                raise ValueError("that power is out of reach")
            return _sized(base**exponent)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _sized(_BINARY[type(op)](_value(left), _value(right)))
        case _:
            raise ValueError(f"only numbers and operators, not {ast.unparse(node)!r}")


def _sized(number: float) -> float:
    if isinstance(number, int) and abs(number) >= 10**_MAX_DIGITS:
        raise ValueError("the number is too large")
    return number
