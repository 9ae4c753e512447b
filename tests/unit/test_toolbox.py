"""The tools of one chat: who answers a call, whether a person is asked, what is never sent."""

import pytest

from rejoinder.core.messages import CallKind, CallPlan
from rejoinder.core.options import ChatOptions
from rejoinder.core.parts import Json, ToolCall
from rejoinder.tools import Approve, Registry, ToolDefinitionError, celery_tool, tool
from rejoinder.tools.celery_tool import CeleryTool
from rejoinder.tools.toolbox import Toolbox

SCHEMA: dict[str, Json] = {
    "type": "object",
    "properties": {"amount": {"type": "integer"}, "to": {"type": "object", "required": ["name"]}},
    "required": ["amount"],
    "additionalProperties": False,
}


@tool
def look(what: str) -> str:
    """Look."""
    return what


@tool(approval=Approve(seconds=5, default=True))
def drop(what: str) -> str:
    """Drop."""
    return what


def refund(**options: object) -> CeleryTool:
    return celery_tool("billing.refund", schema=SCHEMA, description="", **options)  # type: ignore[arg-type]


def plan(name: str, arguments: dict[str, Json], **options: Json) -> CallPlan:
    box = Toolbox(Registry([look, drop, refund()]), ChatOptions.load(options))
    return box.plans([ToolCall("c", name, arguments)])["c"]


GOOD: dict[str, dict[str, Json]] = {
    "look": {"what": "x"},
    "drop": {"what": "x"},
    "billing_refund": {"amount": 1},
}


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({}, {"drop"}),
        ({"approval": "declared"}, {"drop"}),
        ({"approval": "all"}, {"look", "drop", "billing_refund"}),
        ({"approval": "none"}, set()),
        ({"approval": "none", "approve": ["look"]}, {"look"}),
        ({"approve": ["billing_refund"]}, {"drop", "billing_refund"}),
    ],
)
def test_a_chat_says_which_calls_a_person_has_to_allow(
    options: dict[str, Json], asked: set[str]
) -> None:
    assert {name for name, given in GOOD.items() if plan(name, given, **options).approval} == asked


@pytest.mark.parametrize("name", GOOD)
def test_nobody_is_asked_about_a_call_that_cannot_be_made(name: str) -> None:
    assert plan(name, {"wrong": 1}, approval="all") == CallPlan()


def test_a_declared_approval_keeps_its_time_and_its_default() -> None:
    default = plan("drop", GOOD["drop"]).default
    assert default is not None
    assert (default.approve, default.seconds) == (True, 5)


def test_a_tool_that_the_app_declared_wins_over_a_workers_and_asks_nobody_else() -> None:
    declared: list[Json] = [{"name": "drop", "seconds": 7, "default": None}]
    found = plan("drop", {}, client_tools=declared, approval="all")
    assert (found.kind, found.approval, found.seconds) == (CallKind.CLIENT, False, 7)
    assert found.default is not None, "null is an answer, too"


def test_each_call_is_a_task_of_its_own() -> None:
    first, second = (plan("billing_refund", {"amount": 1}) for _ in range(2))
    assert first.kind is CallKind.EXTERNAL
    assert first.external_id != second.external_id


def test_arguments_that_do_not_fit_are_named_one_by_one() -> None:
    objection = refund().objection(ToolCall("c", "x", {"to": {}, "cc": "me"}))
    assert objection == (
        "The arguments of billing_refund are not valid; nothing was sent.\n"
        "- amount: is required and missing\n"
        "- arguments: Additional properties are not allowed ('cc' was unexpected)\n"
        "- to.name: is required and missing"
    )
    assert refund().objection(ToolCall("c", "x", {"amount": 1})) is None


def test_a_huge_value_is_not_told_back() -> None:
    objection = refund().objection(ToolCall("c", "x", {"amount": "9" * 100_000})) or ""
    assert len(objection) < 1000


def test_a_schema_never_fetches_what_it_refers_to() -> None:
    away = celery_tool(
        "a.b",
        schema={"type": "object", "properties": {"x": {"$ref": "https://example.com/x.json"}}},
        description="",
    )
    assert "is broken" in (away.objection(ToolCall("c", "a_b", {"x": 1})) or "")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"timeout": 0}, "above 0"),
        ({"queue": ""}, "queue"),
        ({"name": "not a name"}, "no name for a tool"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_where_it_is_defined(
    options: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ToolDefinitionError, match=complaint):
        refund(**options)


@pytest.mark.parametrize("schema", [{"type": "string"}, {}, {"type": "object", "required": 1}])
def test_a_schema_that_is_none_is_refused(schema: dict[str, Json]) -> None:
    with pytest.raises(ToolDefinitionError, match="schema"):
        celery_tool("a.b", schema=schema, description="")
