"""Celery's settings. Every line is one that differs from Celery's default, with its reason.

It imports nothing of ours, so that it can be read, and loaded, on its own.
"""

import os
import sys
from itertools import pairwise

from kombu import Queue  # type: ignore[attr-defined]  # kombu says so only by use

_redis_url = os.environ.get("REJOINDER_REDIS_URL") or "redis://127.0.0.1:6379/0"

# One Redis carries messages and results; a broker of another kind (RabbitMQ) can be named apart.
broker_url = os.environ.get("REJOINDER_BROKER_URL") or _redis_url
result_backend = _redis_url
_on_redis = broker_url.startswith(("redis", "rediss", "sentinel"))

# JSON only: any app can call us, and no message can run code (pickle could).
task_serializer = "json"
result_serializer = "json"
accept_content = ["json"]

# Said, because beat's schedules depend on it.
timezone = "UTC"
enable_utc = True

imports = ("tasks.step", "tasks.front_door", "tasks.callbacks", "tasks.sweeping", "tasks.edges")

# Two queues: a front-door call (create, send, stop) never waits behind a slow step. A worker serves
# both unless it is told otherwise with -Q; `make up` and compose run one for control alone.
task_queues = tuple(map(Queue, ("rejoinder.control", "rejoinder.steps")))
task_default_queue = "rejoinder.control"
task_routes = {"rejoinder.step": {"queue": "rejoinder.steps"}}

# Steps wait for the network most of the time. Threads share one event loop, one provider client and
# one connection pool; 500 of them cost less than 100 MB.
# (Celery reads `--pool=prefork` as "the configured one", so that has to be the one asked for.)
_asked = " ".join(sys.argv).replace("=", " ").split()
_prefork = any(pair in {("-P", "prefork"), ("--pool", "prefork")} for pair in pairwise(_asked))
worker_pool = "prefork" if _prefork or "-Pprefork" in _asked else "threads"
_places = (os.cpu_count() or 1) if worker_pool == "prefork" else 100
worker_concurrency = int(os.environ.get("REJOINDER_CONCURRENCY") or _places)

# A step's message is a doorbell: the lease in Postgres decides who works, and the sweep repeats
# what is lost. So it is acknowledged early, and nothing is held back behind a busy slot. A
# command's message is the only copy of what a user said: those tasks acknowledge late, on every
# broker, and give the message back if their process dies (COMMAND in tasks/requests.py).
task_acks_late = not _on_redis
worker_prefetch_multiplier = 1
worker_disable_prefetch = _on_redis  # exact on Redis; other brokers have late acks instead

# Flower shows, and can terminate, only what sends events.
worker_send_task_events = True

# Start-up waits for a broker that is not there yet, as under docker compose; a lost one is waited
# for as long as it takes.
broker_connection_retry_on_startup = True
broker_connection_max_retries = None

# A prefix keeps apart several fleets on one Redis database; apps that call us then need the same
# one, so there is none by default.
_prefix = os.environ.get("REJOINDER_CELERY_PREFIX") or ""

# What a killed worker had taken from Redis and not acknowledged is given to another one after this
# time. It may be short: a step acknowledges as it begins, and a command takes milliseconds unless
# the database is away; whatever then comes twice is done once, by its task id. Every worker looks
# every few seconds (kombu's default is every 100).
_visibility = float(os.environ.get("REJOINDER_VISIBILITY_SECONDS") or 30)
_redis_options = {
    "global_keyprefix": _prefix,
    "visibility_timeout": _visibility,
    "unacked_restore_interval": min(5.0, _visibility),
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 10,  # a worker that dies as it looks keeps others from it for so long
    # Our own: by kombu's names we would restore the long tasks of other apps on this database.
    "unacked_key": "rejoinder.unacked",
    "unacked_index_key": "rejoinder.unacked_index",
    "unacked_mutex_key": "rejoinder.unacked_mutex",
    "socket_keepalive": True,  # dead connections are noticed
    "health_check_interval": 30,
}
broker_transport_options = _redis_options if _on_redis else {}
result_backend_transport_options = {
    "global_keyprefix": _prefix,
    # A result that cannot be stored is stored by the sweep: nobody waits 20 s for Redis.
    "retry_policy": {
        "max_retries": 3,
        "interval_start": 0,
        "interval_step": 0.2,
        "interval_max": 0.5,
    },
}
redis_socket_keepalive = True
redis_backend_health_check_interval = 30

# An answer can be fetched for a day; after that it stands in Postgres.
result_expires = 24 * 3600

beat_schedule = {
    "rejoinder.sweep": {
        "task": "rejoinder.sweep",
        "schedule": 5.0,
    },
}
