"""Hints: a word over Redis pub/sub to the process that holds a lease, so that it stops at once.

A hint names a lease, and a lease belongs to one run of one step: an old hint can hit nobody else. A
lost one is harmless: the heartbeat looks at the rows, and is brought forward whenever this
connection had to be made anew.
"""

import json
import logging
import threading
from collections.abc import Callable
from uuid import UUID

import redis

from rejoinder.core.effects import Cause, Hint

log = logging.getLogger(__name__)

WAIT_SECONDS = 1.0
"""How long one look for hints takes."""
AGAIN_SECONDS = 0.2
"""How soon after a failure the next one comes."""

Heed = Callable[[UUID, Cause], None]


def channel_of(prefix: str, worker_id: UUID) -> str:
    """Where a process listens."""
    return f"{prefix}hints:{worker_id}"


def send(client: "redis.Redis", prefix: str, hint: Hint) -> None:
    """Tell the owner."""
    body = json.dumps([str(hint.lease_id), hint.cause])
    client.publish(channel_of(prefix, hint.worker_id), body)


class Listener:
    """Hears the hints for one process, in a thread of its own."""

    def __init__(
        self, client: "redis.Redis", channel: str, heed: Heed, look: Callable[[], None]
    ) -> None:
        """Take what to do with a hint, and what to do when some may have been missed."""
        self._client = client
        self._channel = channel
        self._heed = heed
        self._look = look
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hints", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening, soon."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001  # whatever it is: listen again
                if not self._stopping.wait(AGAIN_SECONDS):
                    log.warning("Hints were not heard for a moment: %s", error)

    def _listen(self) -> None:
        with self._client.pubsub() as pubsub:  # type: ignore[no-untyped-call]
            pubsub.subscribe(self._channel)
            while not self._stopping.is_set():
                message = pubsub.get_message(timeout=WAIT_SECONDS)
                if message is None:
                    continue
                if message["type"] == "subscribe":
                    self._look()
                elif message["type"] == "message":
                    self._take(message["data"])

    def _take(self, body: bytes) -> None:
        try:
            lease_id, cause = json.loads(body)
            self._heed(UUID(str(lease_id)), Cause(cause))
        except (ValueError, TypeError):
            log.warning("A hint could not be read: %r", body[:200])
