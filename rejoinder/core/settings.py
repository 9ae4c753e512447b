"""Settings: the environment, read once into one frozen object.

`Settings.load(environ)` refuses what makes no sense with a sentence that names the variable. The
table in docs/settings.md is generated from the fields below.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Self

from rejoinder.core.errors import Rejected


@dataclass(frozen=True)
class Settings:
    """Everything that can be set from outside; each field is `REJOINDER_` + its name."""

    database_url: str = field(default="", metadata={"says": "Postgres, as an SQLAlchemy URL"})
    redis_url: str = field(
        default="", metadata={"says": "Redis or Valkey: broker, results and streams"}
    )
    heartbeat_seconds: float = field(
        default=5.0, metadata={"says": "how often a worker process says that it lives"}
    )
    dead_after_seconds: float = field(
        default=15.0, metadata={"says": "silence after which a worker process counts as dead"}
    )

    @classmethod
    def load(cls, environ: Mapping[str, str]) -> Self:
        """Read REJOINDER_*; what is not set keeps its default."""
        values: dict[str, object] = {}
        for each in fields(cls):
            name = variable(each.name)
            if (text := environ.get(name, "").strip()) == "":
                continue
            values[each.name] = _positive(name, text) if each.type is float else text
        settings = cls(**values)  # type: ignore[arg-type]
        if settings.dead_after_seconds < 2 * settings.heartbeat_seconds:
            raise Rejected(
                "REJOINDER_DEAD_AFTER_SECONDS is less than two heartbeats",
                "a live worker would be taken for dead; raise it",
            )
        return settings


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"REJOINDER_{name.upper()}"


def _positive(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise Rejected(f"{name} is {text!r}", "give a number of seconds above 0")
    return number
