"""Which pool a worker runs on: what the command line says, then what the settings say.

Celery 5.7 takes `--pool=prefork` for the option's default, and so for nothing said: a worker whose
settings name another pool runs on that one, without a word.
"""

from typing import Any

from celery.bin.worker import WorkersPool
from celery.concurrency import get_implementation
from click import Context
from click.core import ParameterSource

PREFORK = "prefork"


def heed_the_command_line() -> None:
    """Let `--pool=prefork` mean prefork."""
    original = WorkersPool.convert

    def convert(self: Any, value: Any, param: Any, ctx: Context) -> Any:
        said = ctx.get_parameter_source(param.name) is not ParameterSource.DEFAULT
        if value == PREFORK and said:
            return get_implementation(PREFORK)
        return original(self, value, param, ctx)

    WorkersPool.convert = convert
