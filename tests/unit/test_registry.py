"""Which tools there are."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from rejoinder.core.errors import Rejected
from rejoinder.core.messages import CallKind, CallPlan, Delivery
from rejoinder.core.model import ToolSpec
from rejoinder.core.parts import ToolCall
from rejoinder.tools import FunctionTool, Registry, Tool, default_registry, tool

if TYPE_CHECKING:
    from pathlib import Path


def named(name: str, *, idempotent: bool = False) -> FunctionTool[..., Any]:
    @tool(name=name, idempotent=idempotent)
    def f() -> None: ...

    return f


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("made_up_tools")
    monkeypatch.setitem(sys.modules, "made_up_tools", made)
    return made


def test_order_is_by_name_whatever_came_first() -> None:
    a, b, c = named("a"), named("b"), named("c")
    for order in ([a, b, c], [c, a, b]):
        registry = Registry(order)
        assert registry.names == ("a", "b", "c")
        assert [spec.name for spec in registry.specs()] == ["a", "b", "c"]
        assert list(registry) == [a, b, c]
    assert len(Registry([a, b])) == 2
    assert "a" in Registry([a])
    assert Registry([a]).get("a") is a
    assert Registry([a]).get("b") is None


def test_two_tools_of_one_name_are_refused_with_both_places() -> None:
    registry = Registry([named("a")])
    with pytest.raises(Rejected) as refused:
        registry.add(named("a"))
    assert refused.value.reason.count("test_registry.py:") == 2
    assert "'a'" in refused.value.reason


def test_the_same_tool_twice_is_fine() -> None:
    a = named("a")
    assert Registry([a, a]).names == ("a",)


def test_only_tools_are_taken() -> None:
    with pytest.raises(Rejected, match="decorate"):
        Registry([print])  # type: ignore[list-item]


def test_active_tools_only_and_unknown_names_are_no_error() -> None:
    registry = Registry([named("a"), named("b")])
    assert [spec.name for spec in registry.specs(active=["b", "elsewhere"])] == ["b"]
    assert registry.specs(active=[]) == ()


def test_plans_say_who_answers_and_how_often() -> None:
    client = Tool(ToolSpec("ask", "Ask a person.", {}), CallPlan(CallKind.CLIENT))
    registry = Registry([named("a"), named("b", idempotent=True), client])
    calls = [ToolCall(str(n), name, {}) for n, name in enumerate(["a", "b", "ask", "nobody"])]
    assert registry.plans(calls) == {
        "0": CallPlan(),
        "1": CallPlan(delivery=Delivery.IDEMPOTENT),
        "2": CallPlan(CallKind.CLIENT),
        "3": CallPlan(),
    }


def test_modules_are_imported_and_their_tools_found(module: ModuleType) -> None:
    module.__dict__.update(first=named("first"), second=named("second"), other=3)
    module.__dict__["alias"] = module.__dict__["first"]
    registry = Registry()
    registry.load_modules(" made_up_tools , rejoinder.tools.examples,")
    assert {"first", "second", "weather", "calculate"} <= set(registry.names)
    registry.load_modules("made_up_tools")
    registry.load_modules(["made_up_tools"])


def test_a_module_can_say_which_are_its_tools(module: ModuleType) -> None:
    module.__dict__.update(first=named("first"), second=named("second"))
    module.__dict__["TOOLS"] = [module.__dict__["second"]]
    registry = Registry()
    registry.load_modules("made_up_tools")
    assert registry.names == ("second",)
    module.__dict__["TOOLS"] = [print]
    with pytest.raises(Rejected, match="TOOLS in 'made_up_tools'"):
        Registry().load_modules("made_up_tools")


def test_a_module_without_tools_is_refused(module: ModuleType) -> None:
    module.__dict__["f"] = print
    with pytest.raises(Rejected, match="'made_up_tools' has no tool"):
        Registry().load_modules("made_up_tools")


def test_a_module_that_does_not_import_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_tools.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Rejected, match=r"'broken_tools'.*ZeroDivisionError"):
        Registry().load_modules("broken_tools")
    with pytest.raises(Rejected, match=r"'no_such_tools'.*ModuleNotFoundError.*PYTHONPATH"):
        Registry().load_modules("no_such_tools")


def test_decorating_registers_nothing() -> None:
    before = default_registry.names
    named("surprise")
    assert default_registry.names == before
