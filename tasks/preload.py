"""What a worker imports before it begins, rather than when a step first needs it.

The first steps after a deploy then take no longer than others. Children share it, and start
quickly. And none of them can be born while another thread of the main process is in the middle of
an import: it would wait for that import for ever.
"""

import gc
import importlib
import logging

from sqlalchemy.orm import configure_mappers

from rejoinder.core.errors import Rejected
from rejoinder.core.settings import Settings
from rejoinder.prices import Prices
from rejoinder.providers import PROVIDERS
from rejoinder.tools import default_registry


def preload(settings: Settings, *, stepping: bool) -> None:
    """Import the tools, check the prices; for those who take steps also drivers and providers."""
    try:
        default_registry.load_modules(settings.tools)
        Prices.load(settings.prices)
    except Rejected as error:
        raise SystemExit(str(error)) from None  # now, and not in every step
    configure_mappers()  # under a lock of SQLAlchemy's
    for name in ("psycopg2.extras", "sqlalchemy.dialects.postgresql.psycopg2"):
        importlib.import_module(name)
    if stepping:
        _preload_for_steps()
    gc.collect()
    # Not to be looked through again: a full collection took a tenth of a second, in the middle of
    # somebody's answer; and Celery collects before each fork.
    gc.freeze()


def _preload_for_steps() -> None:
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for every model call
    importlib.import_module("genai_prices.data")
    for where in PROVIDERS.values():
        if isinstance(where, str):
            importlib.import_module(where.partition(":")[0])
