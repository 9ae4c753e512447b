"""The one statement that writes a transition of an owner's: parts that all hang on the first.

`chat` is compare and set, by primary key: it locks that row, waits for whoever has it, and then
looks at the row as it is by then. The other parts take their one row from it, so either all is
written or nothing. It is a transaction of its own. Only the parts that are needed are in it, and
the text of each combination is made once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from typing import Any
from uuid import UUID

from sqlalchemy import Dialect, Engine

from models.base import table_of
from models.prepared import Prepared
from models.steps import Took
from models.tables import Chat
from models.types import as_json, escaped

_MESSAGE = (
    "id",
    "chat_id",
    "turn_id",
    "role",
    "visibility",
    "compressed",
    "revision",
    "parts",
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
    "created_at",
)
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
_STEP = ("chat_id", *(each.name for each in fields(Took) if each.name != "seconds"))


def _values(part: str, columns: Sequence[str]) -> str:
    return ", ".join(f"%({part}_{column})s" for column in columns)


def _arrays(part: str, columns: Mapping[str, str]) -> str:
    # As text first: that is what an array of nothing but NULLs is.
    given = (
        f"CAST(CAST(%({part}_{name})s AS text[]) AS {kind}[])" for name, kind in columns.items()
    )
    return f"unnest({', '.join(given)}) AS v({', '.join(columns)})"


# Only names of our own columns are put into the text; values travel as parameters.
_PARTS = {
    "message": f"""m AS (
    INSERT INTO rejoinder.messages ({", ".join(_MESSAGE)}) OVERRIDING SYSTEM VALUE
    SELECT {_values("message", _MESSAGE)} FROM c
)""",  # noqa: S608
    "new_calls": f"""k AS (
    INSERT INTO rejoinder.tool_calls (chat_id, message_id, {", ".join(CALLS)})
    SELECT c.id, %(new_calls_message_id)s, v.call_id, v.name, v.arguments, v.kind, v.delivery,
           v.external_id, v.approval, v.patience, v.default_answer, CAST(v.waits_for AS uuid[]),
           v.state, v.started_at
      FROM c, {_arrays("new_calls", CALLS)}
)""",  # noqa: S608
    "answers": f"""a AS (
    UPDATE rejoinder.tool_calls AS k
       SET state = v.state, result = v.result, settled = v.settled, started_at = v.started_at,
           ended_at = v.ended_at
      FROM c, {_arrays("answers", _ANSWERS)}
     WHERE k.chat_id = %(chat_id)s AND k.message_id = %(answers_message_id)s
       AND k.call_id = v.call_id
)""",  # noqa: S608
    "new_turn": """n AS (
    INSERT INTO rejoinder.turns (id, chat_id, kind, message_id, state)
    SELECT %(new_turn_id)s, c.id, %(new_turn_kind)s, %(new_turn_message_id)s, 'open' FROM c
)""",
    "turn_step": """t AS (
    UPDATE rejoinder.turns AS t SET steps = t.steps + 1 FROM c WHERE t.id = %(turn_step_id)s
)""",
    "turn_end": """t AS (
    UPDATE rejoinder.turns AS t
       SET steps = t.steps + CASE WHEN t.id = %(turn_end_id)s THEN %(turn_end_steps)s ELSE 0 END,
           state = %(turn_end_state)s, ended_at = %(turn_end_ended_at)s,
           answer_id = %(turn_end_answer_id)s, error = %(turn_end_error)s
      FROM c
     WHERE t.id = %(turn_end_id)s OR (t.joined_id = %(turn_end_id)s AND t.state = 'joined')
    RETURNING t.id
)""",
    "step": f"""s AS (
    INSERT INTO rejoinder.steps ({", ".join(_STEP)}, began_at)
    SELECT {_values("step", _STEP)}, clock_timestamp() - make_interval(secs => %(step_seconds)s)
      FROM c
)""",  # noqa: S608
    "stay": "",  # the chat's own columns; and it is told what a claim tells
}


@cache
def _statement(columns: tuple[str, ...], parts: tuple[str, ...]) -> Prepared:
    changes = ", ".join(f"{column} = %(chat_{column})s" for column in columns)
    first = f"""WITH c AS (
    UPDATE rejoinder.chats SET {changes}
     WHERE id = %(chat_id)s AND snapshot_version = %(expected)s
    RETURNING id
)"""  # noqa: S608  # names of our own columns
    wanted = [_PARTS[part] for part in parts]
    told = [
        "ARRAY(SELECT id FROM t)" if "turn_end" in parts else "NULL",
        *(CLAIMED if "stay" in parts else ()),
    ]
    return Prepared(
        ",\n".join([first, *filter(None, wanted)]) + f"\nSELECT {', '.join(told)} FROM c"
    )


@dataclass(frozen=True)
class Written:
    """What Postgres says once it is."""

    over: Sequence[UUID]
    """The turns that are over."""
    taken: tuple[datetime, int, int] | None
    """What is told to whoever takes the chat again, see `CLAIMED`."""


def execute(
    engine: Engine, chat_id: UUID, expected: int, parts: Mapping[str, Mapping[str, Any]]
) -> Written | None:
    """Write the parts; None if the chat is not as expected."""
    changes = _stored(engine.dialect, parts["chat"])
    given: dict[str, Any] = {"chat_id": chat_id, "expected": expected}
    given |= {f"chat_{name}": value for name, value in changes.items()}
    others = tuple(name for name in _PARTS if name in parts)
    for part in others:
        given |= {f"{part}_{name}": _given(value) for name, value in parts[part].items()}
    row = _statement(tuple(changes), others).one(engine, given)
    if row is None:
        return None
    over, *taken = row
    return Written(over or (), (taken[0], taken[1], taken[2]) if taken else None)


def _given(value: Any) -> Any:
    return [_text(each) for each in value] if isinstance(value, list) else value


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _stored(dialect: Dialect, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a chat as they are stored."""
    how = _processors(dialect)
    return {name: how[name](value) for name, value in changes.items()}


@cache
def _processors(dialect: Dialect) -> Mapping[str, Callable[[Any], Any]]:
    columns = table_of(Chat).columns
    found = {column.name: column.type.dialect_impl(dialect) for column in columns}
    return {name: kind.bind_processor(dialect) or _as_it_is for name, kind in found.items()}
