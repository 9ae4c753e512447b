"""Celery's settings. Every line is one that differs from Celery's default, with its reason.

It imports nothing of ours, so that it can be read, and loaded, on its own.
"""

from __future__ import annotations

import os

_redis_url = os.environ.get("REJOINDER_REDIS_URL", "redis://127.0.0.1:6379/0")

# One Redis carries messages and results; a broker of another kind (RabbitMQ) can be named apart.
broker_url = os.environ.get("REJOINDER_BROKER_URL", _redis_url)
result_backend = _redis_url

# JSON only: any app can call us, and no message can run code (pickle could).
task_serializer = "json"
result_serializer = "json"
accept_content = ["json"]

# Celery's default is UTC as well, unless the machine's zone is asked for; said here since beat's
# schedules depend on it.
timezone = "UTC"
enable_utc = True

# What has no route of its own is a front-door call: never behind a slow step.
task_default_queue = "rejoinder.control"

# Start-up waits for a broker that is not there yet, as under docker compose. (Celery warns that its
# old setting will stop to cover this.)
broker_connection_retry_on_startup = True
