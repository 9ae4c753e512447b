"""What a function's signature and docstring say to a model."""

from __future__ import annotations

import collections.abc  # a tool reads its hints at run time
import enum
import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from rejoinder.core.messages import CallKind, Delivery
from rejoinder.core.model import ToolSpec
from rejoinder.testing import run_tool
from rejoinder.tools import Tool, ToolDefinitionError, tool

if TYPE_CHECKING:
    from collections.abc import Callable

    from rejoinder.tools import ToolContext


class Place(BaseModel):
    """Where."""

    city: str
    country: str = "Germany"


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


@dataclass
class Span:
    first: int
    last: int


def test_a_plain_function_becomes_a_tool_and_stays_callable() -> None:
    @tool
    def add(a: int, b: int = 2) -> int:
        """Add two numbers.

        Slowly, if need be.
        """
        return a + b

    assert add.spec == ToolSpec(
        "add",
        "Add two numbers.\n\nSlowly, if need be.",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 2}},
            "required": ["a"],
            "additionalProperties": False,
        },
    )
    assert add(1) == 3
    assert (add.plan.kind, add.plan.delivery) == (CallKind.LOCAL, Delivery.ONCE)
    assert "test_tools_schema.py:" in add.location


def test_the_decorator_takes_name_description_timeout_and_delivery() -> None:
    @tool(name="sum-up", description="Better words.", timeout=5, idempotent=True)
    async def add(a: int) -> int:
        """Words."""
        return a

    assert (add.name, add.spec.description, add.timeout) == ("sum-up", "Better words.", 5)
    assert add.plan.delivery is Delivery.IDEMPOTENT
    assert add.is_async


GOOGLE = """Do it.

    Args:
        city: The city
            to look at.
        days: How many.

    Returns:
        Something.
    """
NUMPY = """Do it.

    Parameters
    ----------
    city : str
        The city to look at.
    days : int
        How many.
    """
SPHINX = """Do it.

    :param city: The city to look at.
    :param days: How many.
    :returns: Something.
    """


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_descriptions_of_parameters_come_from_the_docstring(doc: str) -> None:
    def forecast(city: str, days: int = 1) -> str:
        return city * days

    forecast.__doc__ = doc
    spec = tool(forecast).spec
    assert spec.description == "Do it."
    properties: Any = spec.schema["properties"]
    assert properties["city"]["description"] == "The city to look at."
    assert properties["days"]["description"] == "How many."


def test_a_description_in_the_annotation_comes_before_the_docstring() -> None:
    @tool
    def f(a: Annotated[int, Field(description="This one.", ge=1)]) -> int:
        """F.

        Args:
            a: Not this one.
        """
        return a

    assert f.spec.schema["properties"] == {
        "a": {"type": "integer", "description": "This one.", "minimum": 1}
    }


def test_without_a_docstring_the_name_has_to_do() -> None:
    @tool
    def send_mail() -> None: ...

    assert send_mail.spec.description == "send mail"
    assert send_mail.spec.schema == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }


def test_rich_types_have_schemas_and_arrive_as_themselves() -> None:
    seen: list[Any] = []

    @tool
    def f(
        place: Place, unit: Unit, span: Span, mode: Literal["a", "b"], tags: list[str] | None = None
    ) -> None:
        seen.extend([place, unit, span, mode, tags])

    result = run_tool(
        f, place={"city": "Bonn"}, unit="celsius", span={"first": 1, "last": 2}, mode="b"
    )
    assert not result.is_error, result.content
    assert seen == [Place(city="Bonn"), Unit.C, Span(1, 2), "b", None]
    assert "title" not in f.spec.schema
    assert json.loads(json.dumps(f.spec.schema)) == f.spec.schema


def test_the_context_is_not_in_the_schema_though_imported_for_type_checkers_only() -> None:
    @tool
    def f(context: ToolContext, city: str) -> str:
        return f"{context.tool} {city}"

    @tool
    def last(city: str, *, context: ToolContext | None = None) -> str:
        return f"{context.tool if context else '-'} {city}"

    assert list(f.spec.schema["properties"]) == ["city"]  # type: ignore[arg-type]
    assert run_tool(f, city="Bonn").content == "f Bonn"
    assert run_tool(last, city="Bonn").content == "last Bonn"


def test_types_of_the_enclosing_function_are_found() -> None:
    class Local(BaseModel):
        x: int

    @tool
    def f(local: Local) -> int:
        return local.x

    assert run_tool(f, local={"x": 7}).content == "7"


def test_names_that_pydantic_keeps_for_itself_are_fine_as_parameters() -> None:
    @tool
    def f(schema: str, copy: str, model_config: str, _private: str, self: str, json: str) -> str:
        return schema + copy + model_config + _private + self + json

    arguments: dict[str, Any] = dict.fromkeys(
        ["schema", "copy", "model_config", "_private", "self", "json"], "x"
    )
    assert f.spec.schema["required"] == list(arguments)
    assert run_tool(f, **arguments).content == "xxxxxx"


def test_a_default_stays_the_functions_own() -> None:
    marker: list[int] = []

    @tool
    def f(a: int = 1, b: list[int] = marker) -> bool:
        return a == 1 and b is marker

    assert run_tool(f).content == "true"
    assert f.spec.schema["required"] == []


def test_methods_and_wrapped_functions_can_be_tools() -> None:
    class Shop:
        def price(self, item: str) -> str:
            """Tell a price."""
            return f"{item}: 3"

    def twice(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **options: Any) -> Any:
            return function(*args, **options)

        return wrapper

    @tool
    @twice
    async def hidden(a: int) -> int:
        return a

    assert run_tool(tool(Shop().price), item="tea").content == "tea: 3"
    assert run_tool(hidden, a=4).content == "4"


def test_schemas_are_the_same_every_time() -> None:
    def f(z: Place, a: Unit, m: Span) -> None: ...

    first, second = (json.dumps(tool(f).spec.schema) for _ in range(2))
    assert first == second
    assert list(json.loads(first)["properties"]) == ["z", "a", "m"]


def positional(a: int, /) -> None: ...
def star(*names: str) -> None: ...
def double_star(**options: str) -> None: ...
def untyped(a) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
def unknown_type(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def unschematic(a: object, b: Callable[[], int]) -> None: ...
def generator(a: int) -> Any:
    yield a


def two_contexts(a: ToolContext, b: ToolContext) -> None: ...
def field_default(a: int = Field(3, ge=1)) -> None: ...


class Opaque:
    pass


def opaque(a: Opaque) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (positional, "positional.*'a' is positional-only"),
        (star, r"star: \*names has no schema; take a list"),
        (double_star, r"\*\*options has no schema"),
        (untyped, "'a' has no type hint; write e.g. a: str"),
        (unknown_type, "'Nowhere' in its signature is not known at run time"),
        (unschematic, "'Callable' in its signature is not known"),
        (generator, "is a generator: return one value"),
        (two_contexts, "two ToolContexts"),
        (field_default, "write a: Annotated"),
        (opaque, "opaque: no schema for its parameters"),
        (len, "not a function"),
        (Opaque(), "not a function"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_where_it_is_defined(function: Any, says: str) -> None:
    with pytest.raises(ToolDefinitionError, match=says):
        tool(function)


def test_a_callable_parameter_has_no_schema() -> None:
    def f(a: collections.abc.Callable[[], int]) -> None: ...

    with pytest.raises(ToolDefinitionError, match="f: no schema"):
        tool(f)


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 65, "a.b"])
def test_names_that_a_provider_would_refuse_are_refused_here(name: str) -> None:
    with pytest.raises(ToolDefinitionError, match="no name for a tool"):
        Tool(ToolSpec(name, "", {}))


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_is_above_zero(timeout: float) -> None:
    with pytest.raises(ToolDefinitionError, match="seconds above 0"):
        tool(timeout=timeout)
