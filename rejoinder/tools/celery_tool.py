"""`celery_tool`: another app's Celery task as a tool, by its name alone.

The model sees a schema; the task runs in the other app's worker, and the chat sleeps meanwhile.
Here is only what a call must be like: it is sent by `tasks/dispatch.py`, and its answer comes in
through `tasks/callbacks.py`. How to use it: docs/waiting.md.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import jsonschema
from jsonschema.protocols import Validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from rejoinder.core.messages import CallKind, CallPlan
from rejoinder.core.model import ToolSpec
from rejoinder.core.parts import Json, ToolCall
from rejoinder.tools.cap import readable
from rejoinder.tools.define import Approve, Tool, planned
from rejoinder.tools.schema import ToolDefinitionError

MOST_ERRORS = 10
LONGEST_ERROR = 300


@dataclass(frozen=True, eq=False)
class CeleryTool(Tool):
    """A tool that is a task of another app."""

    task: str = field(kw_only=True)
    """The task's name, in the other app."""
    queue: str = field(kw_only=True)
    """Where that app's workers listen."""
    validator: Validator = field(kw_only=True, repr=False)

    def plan_for(self, call: ToolCall) -> CallPlan:
        """Give each call a task id of its own: models reuse their call ids."""
        del call
        return replace(self.plan, external_id=str(uuid4()))

    def objection(self, call: ToolCall) -> str | None:
        """Name each field that does not fit the schema."""
        try:
            wrong = dict.fromkeys(_told(self.validator, call.arguments))
        except Unresolvable as error:
            return (
                f"The schema of {self.name} is broken ({error}); nothing was sent. Tell the user."
            )
        if not wrong:
            return None
        first = [f"The arguments of {self.name} are not valid; nothing was sent."]
        return readable("\n".join([*first, *list(wrong)[:MOST_ERRORS]]))


def celery_tool(  # noqa: PLR0913  # all but one are named
    task: str,
    *,
    schema: Mapping[str, Any],
    description: str,
    queue: str = "celery",
    name: str | None = None,
    idempotent: bool = False,
    approval: bool | Approve = False,
    timeout: float | None = None,
) -> CeleryTool:
    """Make a tool of the task of this name, which another app's workers run.

    The model's arguments are checked against `schema` and become the task's keyword arguments.
    `queue` is where those workers listen (by default Celery's own default). `timeout`: seconds
    until the model is told that no answer came; without it, as long as the chat waits for anything.
    `idempotent=True` allows to send a call again if nobody knows whether the broker took it.
    """
    name = name or re.sub(r"[^a-zA-Z0-9_-]+", "_", task)
    if not task or not queue:
        raise ToolDefinitionError("give the task's name, and the queue where its workers listen")
    if timeout is not None and not 0 < timeout < float("inf"):
        raise ToolDefinitionError(f"timeout={timeout!r}: give seconds above 0")
    if schema.get("type") != "object":
        raise ToolDefinitionError(f'{name}: the schema of its arguments needs "type": "object"')
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        kind.check_schema(dict(schema))
    except jsonschema.SchemaError as error:
        raise ToolDefinitionError(f"{name}: this is no JSON schema: {error.message}") from error
    plan = planned(idempotent=idempotent, approval=approval)
    return CeleryTool(
        # Providers refuse a schema without properties.
        spec=ToolSpec(name, description, {"properties": {}, **schema}),
        plan=replace(plan, kind=CallKind.EXTERNAL, seconds=timeout),
        location=f"celery_tool({task!r})",
        task=task,
        queue=queue,
        # Without a registry of its own, it would fetch what a schema refers to from the network.
        validator=kind(schema, registry=Registry()),
    )


def _told(validator: Validator, arguments: Mapping[str, Json]) -> Iterator[str]:
    for error in sorted(validator.iter_errors(arguments), key=lambda error: str(error.json_path)):
        where = error.json_path.removeprefix("$").removeprefix(".")
        if error.validator == "required":
            yield from _missing(where, error)
        else:
            told = error.message
            cut = told if len(told) <= LONGEST_ERROR else f"{told[:LONGEST_ERROR]}…"
            yield f"- {where or 'arguments'}: {cut}"


def _missing(where: str, error: Any) -> Iterator[str]:
    for each in error.validator_value:
        if each not in error.instance:
            yield f"- {f'{where}.{each}' if where else each}: is required and missing"
