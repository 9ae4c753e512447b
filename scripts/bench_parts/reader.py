"""Who reads streams, in a process of its own: all of a run's with one XREAD, or a few by `Client`.

A line of its input names streams; once each has come to rest, it says when the first and the last
words of each came, how many words there were, and when the rest was seen. `many` reads all streams
with one command, at most every 5 ms: 300 blocking readers would be a contender themselves.
`clients` has a `Client.stream` and a thread for each, as an app would. `channels` hears what is
published, for who has no streams.
"""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import redis

from rejoinder.client import Client
from scripts.bench_parts.processes import stand_apart

PAUSE_SECONDS = 0.005
Came: TypeAlias = tuple[float, float, int, float, float]
"""When the first and last words came, how many, when the end was seen, and the middle word."""


def read_many(url: str, names: list[str]) -> dict[str, Came]:
    """Read all of these to their ends, with one command at a time."""
    client = redis.Redis.from_url(url, protocol=2, socket_timeout=None)
    cursors: dict[Any, Any] = dict.fromkeys(names, "0-0")
    bodies: dict[str, list[tuple[float, bytes]]] = {name: [] for name in names}
    while cursors:
        began = time.monotonic()
        found: Any = client.xread(cursors, block=1000)
        now = time.time()
        for key, rows in found:
            name = key.decode()
            for identity, fields in rows:
                cursors[name] = identity
                bodies[name].append((now, fields[b"e"]))
            if any(_is_rest(body) for _, body in bodies[name][-len(rows) :]):
                del cursors[name]
        time.sleep(max(0.0, began + PAUSE_SECONDS - time.monotonic()))
    client.close()
    return {name: _came([(at, *json.loads(b)) for at, b in bodies[name]]) for name in names}


def read_by_client(url: str, names: list[str]) -> dict[str, Came]:
    """Read these with a client and a thread each."""

    def read(name: str) -> Came:
        events: list[tuple[float, str, dict[str, Any]]] = []
        with Client(broker_url=url) as client:
            # Shorter than redis-py's own patience with a socket, which is 5 s.
            for event in client.stream(name.rpartition(":")[2], idle_seconds=1.0):
                if event is None:
                    continue
                events.append((time.time(), event.kind, dict(event.data)))
                if event.kind == "status" and event.data["status"] in ("waiting", "error"):
                    break
        return _came(events)

    with ThreadPoolExecutor(max_workers=max(1, len(names))) as pool:
        return dict(zip(names, pool.map(read, names), strict=True))


def hear_channels(url: str, names: list[str]) -> dict[str, Came]:
    """Hear the first word on each of these channels."""
    client: Any = redis.Redis.from_url(url, protocol=2, socket_timeout=None)
    came: dict[str, Came] = {}
    with client.pubsub(ignore_subscribe_messages=True) as channels:
        channels.subscribe(*names)
        while len(came) < len(names):
            message = channels.get_message(timeout=1.0)
            if message is not None:
                now = time.time()
                came.setdefault(message["channel"].decode(), (now, now, 1, now, now))
    client.close()
    return came


HOW = {"many": read_many, "clients": read_by_client, "channels": hear_channels}


def _is_rest(body: bytes) -> bool:
    return body.startswith(b'["status"') and (b'"waiting"' in body or b'"error"' in body)


def _came(events: list[tuple[float, str, dict[str, Any]]]) -> Came:
    words = [
        (at, int(data["n"]))
        for at, kind, data in events
        if kind == "part" and data.get("of") == "text"
    ]
    if not words:
        return 0.0, 0.0, 0, events[-1][0], 0.0
    each = [at for at, n in words for _ in range(n)]
    return each[0], each[-1], len(each), events[-1][0], each[len(each) // 2]


def main(how: str) -> None:
    """Serve lines until there are no more."""
    stand_apart()
    url = os.environ["BENCH_REDIS_URL"]
    print("ready", flush=True)
    for line in sys.stdin:
        names = json.loads(line)
        print("done", json.dumps(HOW[how](url, names)), flush=True)


if __name__ == "__main__":
    main(os.environ["BENCH_READS"])
