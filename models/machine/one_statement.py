"""The one statement that writes a lease holder's transition: parts that all hang on the first.

`chat` is compare and set, by primary key: it locks that row, waits for whoever has it, and then
looks at the row as it is by then. The other parts take their one row from it, so either all is
written or nothing. It is a transaction of its own. Only the parts that are needed are in it, and
the text of each combination is made once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import Dialect, Engine

from models.base import table_of
from models.prepared import Prepared
from models.steps import Took
from models.tables import Chat
from models.types import as_json, escaped

_MESSAGE = ("id", "turn_id", "role", "visibility", "compressed", "parts")
_ANSWER = (
    "model",
    "context_limit",
    "runtime_ms",
    "stop_reason",
    "request_id",
    "cost_micros",
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
)
"""What only a model's message has."""
CALLS = {
    "call_id": "text",
    "name": "text",
    "arguments": "json",
    "kind": "text",
    "delivery": "text",
    "external_id": "text",
    "approval": "text",
    "patience": "double precision",
    "default_answer": "json",
    "waits_for": "text",
    "state": "text",
    "started_at": "timestamptz",
}
"""What is stored of a new call, and as what."""
_ANSWERS = {
    "call_id": "text",
    "state": "text",
    "result": "json",
    "settled": "boolean",
    "started_at": "timestamptz",
    "ended_at": "timestamptz",
}


def _as_it_is(value: Any) -> Any:
    return value


def _json(value: Any) -> str | None:
    return None if value is None else as_json(value)


ANSWER: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_ANSWERS, _as_it_is),
    "call_id": escaped,
    "result": _json,
}
"""What is written of a call that gets its answer, and how it is stored."""
CLAIMED = (
    "clock_timestamp()",
    "nextval('rejoinder.messages_id_seq')",
    "nextval('rejoinder.messages_id_seq')",
)
"""What whoever takes a chat is told: the time, and two places at the end of history."""
_STEP = tuple(each.name for each in fields(Took) if each.name != "seconds")
_OF_CALLS = {"new_calls": CALLS, "answers": _ANSWERS}


def _values(part: str, columns: Iterable[str]) -> str:
    return ", ".join(f"%({part}_{column})s" for column in columns)


# Only names of our own columns are put into the text; values travel as parameters.
def _message(columns: tuple[str, ...]) -> str:
    # What the chat's own row says of it is taken from there.
    return f"""m AS (
    INSERT INTO rejoinder.messages (chat_id, revision, created_at, {", ".join(columns)})
           OVERRIDING SYSTEM VALUE
    SELECT c.id, c.snapshot_version, c.updated_at, {_values("message", columns)} FROM c
)"""  # noqa: S608


def _rows(part: str, columns: Mapping[str, str], of_one: tuple[str, ...]) -> str:
    """Rows of values: one, of which only these are given, or any number, as arrays."""
    if of_one:
        given = {name: f"%({part}_{name})s" for name in of_one}
        one = (
            f"CAST({given.get(name, 'NULL')} AS {kind}) AS {name}" for name, kind in columns.items()
        )
        return f"(SELECT {', '.join(one)}) AS v"
    # As text first: that is what an array of nothing but NULLs is.
    arrays = (
        f"CAST(CAST(%({part}_{name})s AS text[]) AS {kind}[])" for name, kind in columns.items()
    )
    return f"unnest({', '.join(arrays)}) AS v({', '.join(columns)})"


def _new_calls(of_one: tuple[str, ...]) -> str:
    return f"""k AS (
    INSERT INTO rejoinder.tool_calls (chat_id, message_id, {", ".join(CALLS)})
    SELECT c.id, %(message_id)s, v.call_id, v.name, v.arguments, v.kind, v.delivery,
           v.external_id, v.approval, v.patience, v.default_answer, CAST(v.waits_for AS uuid[]),
           v.state, v.started_at
      FROM c, {_rows("new_calls", CALLS, of_one)}
)"""  # noqa: S608


def _answers(of_one: tuple[str, ...]) -> str:
    return f"""a AS (
    UPDATE rejoinder.tool_calls AS k
       SET state = v.state, result = v.result, settled = v.settled, started_at = v.started_at,
           ended_at = v.ended_at
      FROM c, {_rows("answers", _ANSWERS, of_one)}
     WHERE k.chat_id = %(chat_id)s AND k.message_id = %(answers_message_id)s
       AND k.call_id = v.call_id
)"""  # noqa: S608


def _turn_step(_: tuple[str, ...]) -> str:
    return """t AS (
    UPDATE rejoinder.turns AS t SET steps = t.steps + 1 FROM c WHERE t.id = %(message_turn_id)s
)"""


def _turn_end(_: tuple[str, ...]) -> str:
    return """t AS (
    UPDATE rejoinder.turns AS t
       SET steps = t.steps + CASE WHEN t.id = %(turn_end_id)s THEN %(turn_end_steps)s ELSE 0 END,
           state = %(turn_end_state)s, ended_at = %(turn_end_ended_at)s,
           answer_id = %(turn_end_answer_id)s, error = %(turn_end_error)s
      FROM c
     WHERE t.id = %(turn_end_id)s OR (t.joined_id = %(turn_end_id)s AND t.state = 'joined')
    RETURNING t.id
)"""


def _step(_: tuple[str, ...]) -> str:
    return f"""s AS (
    INSERT INTO rejoinder.steps (chat_id, began_at, {", ".join(_STEP)})
    SELECT c.id, clock_timestamp() - make_interval(secs => %(step_seconds)s),
           {_values("step", _STEP)}
      FROM c
)"""  # noqa: S608


_PARTS: Mapping[str, Callable[[tuple[str, ...]], str]] = {
    "message": _message,
    "new_calls": _new_calls,
    "answers": _answers,
    "turn_step": _turn_step,
    "turn_end": _turn_end,
    "step": _step,
    "stay": lambda _: "",  # the chat's own columns; and it is told what a claim tells
}
"""The parts besides the chat itself; the text of each depends on what is given of it."""
Shape: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]


@cache
def _statement(columns: tuple[str, ...], parts: Shape) -> Prepared:
    changes = ", ".join(f"{column} = %(chat_{column})s" for column in columns)
    first = f"""WITH c AS (
    UPDATE rejoinder.chats SET {changes}
     WHERE id = %(chat_id)s AND snapshot_version = %(expected)s AND lease_id = %(lease_id)s
    RETURNING id, snapshot_version, updated_at
)"""  # noqa: S608  # names of our own columns
    names = [name for name, _ in parts]
    wanted = [first, *filter(None, (_PARTS[name](given) for name, given in parts))]
    told = [
        "ARRAY(SELECT id FROM t)" if "turn_end" in names else "NULL",
        *(CLAIMED if "stay" in names else ()),
    ]
    return Prepared(",\n".join(wanted) + f"\nSELECT {', '.join(told)} FROM c")


@dataclass(frozen=True)
class Written:
    """What Postgres says once it is."""

    over: Sequence[UUID]
    """The turns that are over."""
    taken: tuple[datetime, int, int] | None
    """What is told to whoever takes the chat again, see `CLAIMED`."""


def execute(
    engine: Engine,
    chat_id: UUID,
    expected: int,
    lease_id: UUID,
    parts: Mapping[str, Mapping[str, Any]],
) -> Written | None:
    """Write the parts; None if the chat is not as expected, or the lease is gone.

    The version alone would not do: after a failover that lost a commit, versions repeat.
    """
    given: dict[str, Any] = {"chat_id": chat_id, "expected": expected, "lease_id": lease_id}
    how = _processors(engine.dialect)
    for name, value in parts["chat"].items():
        given[f"chat_{name}"] = how[name](value)
    shape = tuple((part, _give(part, parts[part], given)) for part in _PARTS if part in parts)
    row = _statement(tuple(parts["chat"]), shape).one(engine, given)
    if row is None:
        return None
    over, *taken = tuple(row)
    return Written(over or (), (taken[0], taken[1], taken[2]) if taken else None)


def _give(part: str, values: Mapping[str, Any], given: dict[str, Any]) -> tuple[str, ...]:
    """Add what a part needs to what is given; which of it the part's text has to name.

    Few texts, for each connection prepares all that it needs: NULLs are given, but for those of a
    message that is not a model's, and of a single call.
    """
    names: tuple[str, ...] = ()
    if part == "message":
        is_answer = any(values[name] is not None for name in _ANSWER)
        names = _MESSAGE + _ANSWER if is_answer else _MESSAGE
    elif part in ("new_calls", "answers"):
        if len(values["call_id"]) != 1:
            values = {name: _array(value) for name, value in values.items()}
        else:
            values = {n: v[0] if isinstance(v, list) else v for n, v in values.items()}
            names = tuple(n for n in _OF_CALLS[part] if values[n] is not None)
    for name, value in values.items():
        given[f"{part}_{name}"] = value
    return names


def _array(value: Any) -> Any:
    return [_text(each) for each in value] if isinstance(value, list) else value


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.isoformat() if isinstance(value, datetime) else str(value)


@cache
def _processors(dialect: Dialect) -> Mapping[str, Callable[[Any], Any]]:
    """How columns of a chat are stored."""
    columns = table_of(Chat).columns
    found = {column.name: column.type.dialect_impl(dialect) for column in columns}
    return {name: kind.bind_processor(dialect) or _as_it_is for name, kind in found.items()}
