"""From the environment to a `Client`, and from a failure to one sentence that says what to do."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click
import redis
from celery import Celery
from celery.exceptions import TimeoutError as NoAnswer
from kombu.exceptions import OperationalError

from rejoinder.client import Client
from rejoinder.core.errors import Refused
from rejoinder.core.settings import Settings

ANSWER_SECONDS = 10.0
SERVER_SECONDS = 3.0
HINT = "is `make up` running? `. .rejoinder/env` sets the addresses"


class Failed(click.ClickException):
    """Shown as one sentence; exit code 1."""


def connect(environ: Mapping[str, str] = os.environ) -> Client:
    """A client of the servers that the environment names, if somebody answers there."""
    settings = Settings.load(environ)
    if not settings.redis_url:
        raise Failed(f"REJOINDER_REDIS_URL is not set: {HINT}")
    app = Celery(
        "rejoinder-cli",
        broker=settings.broker_url or settings.redis_url,
        backend=settings.redis_url,
    )
    prefix = {"global_keyprefix": settings.celery_prefix} if settings.celery_prefix else {}
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        broker_transport_options=prefix,
        result_backend_transport_options=prefix,
    )
    _require_redis(settings.redis_url)
    _require_worker(app)
    return Client(app, prefix=settings.redis_prefix, timeout=ANSWER_SECONDS)


def _require_redis(url: str) -> None:
    try:
        with redis.Redis.from_url(
            url, socket_connect_timeout=SERVER_SECONDS, socket_timeout=SERVER_SECONDS
        ) as server:
            server.ping()
    except (redis.RedisError, ValueError) as error:
        raise Failed(f"Redis does not answer ({error}): {HINT}") from None


def _require_worker(app: Celery) -> None:
    """Ask before anything is sent: a message to nobody would be answered by a later worker."""
    try:
        answers = app.control.ping(timeout=ANSWER_SECONDS, limit=1)
    except OperationalError as error:
        raise Failed(f"the broker does not answer ({error}): {HINT}") from None
    if not answers:
        raise Failed(f"no worker answered within {ANSWER_SECONDS:.0f} s: {HINT}")


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turn what can go wrong between us and the workers into a sentence."""
    try:
        yield
    except Refused as refusal:
        raise Failed(str(refusal)) from None
    except NoAnswer:
        raise Failed(
            f"no worker answered within {ANSWER_SECONDS:.0f} s (the request stays with the broker, "
            f"and the next worker does it): {HINT}"
        ) from None
    except (redis.ConnectionError, redis.TimeoutError, OperationalError) as error:
        raise Failed(f"the connection was lost ({error}): {HINT}") from None
