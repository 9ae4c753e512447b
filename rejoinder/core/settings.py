"""Settings: the environment, read once into one frozen object.

`Settings.load(environ)` refuses what makes no sense with a sentence that names the variable. The
table in docs/settings.md is generated from the fields below.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Self, TypeVar

from rejoinder.core.errors import Rejected

T = TypeVar("T")
PERCENT = 100


def _set(default: T, says: str) -> T:
    value: T = field(default=default, metadata={"says": says})
    return value


@dataclass(frozen=True)
class Settings:
    """Everything that can be set from outside; each field is `REJOINDER_` + its name."""

    database_url: str = _set("", "Postgres, as an SQLAlchemy URL")
    redis_url: str = _set("", "Redis or Valkey: broker, results and streams")
    broker_url: str = _set("", "the broker, if it is another, e.g. RabbitMQ")
    redis_prefix: str = _set("rejoinder:", "what every key of ours in Redis begins with")
    celery_prefix: str = _set("", "what Celery's keys in Redis begin with; callers need the same")
    visibility_seconds: float = _set(
        30.0, "on Redis: when a command that a killed worker had taken is given to another one"
    )
    model: str = _set("scripted:demo", "the model of chats that name none")
    prices: str = _set(
        "", "prices of models that come before the table's: JSON, or a file; see docs/accounts.md"
    )
    title_model: str = _set(
        "", "the model that names chats; empty is each chat's own, `off` names none"
    )
    tools: str = _set("", "modules with tools to load, separated by commas")
    concurrency: int = _set(
        100, "steps that one worker runs at once (prefork: as many as there are CPUs)"
    )
    database_pool: int = _set(
        20, "connections to Postgres that one process makes, at most; it keeps them"
    )
    fast: bool = _set(
        default=True,
        says="`off` takes the plain way everywhere: no compare-and-set, prepared statements,"
        " history cache, local dispatch or concurrency limiter",
    )
    max_steps: int = _set(1200, "steps of one turn, before it is stopped with a notice")
    compact_at: int = _set(
        70, "percent of a model's context from which on a chat is summarised; 100: never"
    )
    compaction_model: str = _set("", "the model that writes summaries, if not the chat's own")
    keep_keys_seconds: float = _set(
        604_800.0, "how long a command that comes again is known, by its key or its task's id"
    )
    heartbeat_seconds: float = _set(5.0, "how often a worker process says that it lives")
    dead_after_seconds: float = _set(15.0, "silence after which a worker process counts as dead")
    drain_seconds: float = _set(
        10.0, "how long steps may go on when their worker is to end; then they are handed back"
    )
    green_pools: str = _set(
        "", "`allow` lets a worker start on gevent or eventlet; see docs/stopping.md"
    )
    silence_seconds: float = _set(600.0, "silence in a model's stream that counts as a failure")
    step_seconds: float = _set(900.0, "how long one step may take")
    tool_seconds: float = _set(300.0, "how long one tool call may take, if it does not say")
    max_abandoned_threads: int = _set(
        50,
        "tool calls of one process that timed out or were stopped, and have not returned; with so"
        " many it refuses further tools that block",
    )
    park_seconds: float = _set(300.0, "how long a chat waits for answers from outside")
    agent_depth: int = _set(1, "how deep agents may start agents: 1 is a chat and its own")
    agents_at_once: int = _set(10, "agents of one chat that may work at once")
    agents_total: int = _set(100, "chats that one tree of agents may have, its root included")
    budget_seconds: float = _set(
        604_800.0, "how long a chat whose budget is used up waits for a larger one"
    )

    @classmethod
    def load(cls, environ: Mapping[str, str]) -> Self:
        """Read REJOINDER_*; what is not set keeps its default."""
        values: dict[str, object] = {}
        for each in fields(cls):
            name = variable(each.name)
            if (text := environ.get(name, "").strip()) == "":
                continue
            values[each.name] = _value(name, text, each.type)
        settings = cls(**values)  # type: ignore[arg-type]
        if settings.dead_after_seconds < 2 * settings.heartbeat_seconds:
            raise Rejected(
                "REJOINDER_DEAD_AFTER_SECONDS is less than two heartbeats",
                "a live worker would be taken for dead; raise it",
            )
        if settings.compact_at > PERCENT:
            raise Rejected(
                f"REJOINDER_COMPACT_AT is {settings.compact_at}",
                "it is a percentage: give 1 to 99, or 100 for never",
            )
        return settings


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"REJOINDER_{name.upper()}"


def _value(name: str, text: str, kind: object) -> object:
    if kind is str:
        return text
    return _switch(name, text) if kind is bool else _number(name, text, kind)


def _switch(name: str, text: str) -> bool:
    if text not in ("on", "off"):
        raise Rejected(f"{name} is {text!r}", "give `on` or `off`")
    return text == "on"


def _number(name: str, text: str, kind: object) -> float:
    try:
        number = int(text) if kind is int else float(text)
    except ValueError:
        number = 0
    if not 0 < number < float("inf"):
        what = "a whole number" if kind is int else "a number of seconds"
        raise Rejected(f"{name} is {text!r}", f"give {what} above 0")
    return number
