"""Other apps: one that only knows Celery, and whoever watches the fleet."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery

from tests.scenarios.conftest import Stage
from tests.waiting import wait_until

STRANGER = Path(__file__).with_name("stranger.py")
SECRET = "the stranger's secret"


def run_stranger(stage: Stage, folder: Path) -> list[Any]:
    """Run the other app outside of our checkout, so that it cannot import anything of ours."""
    script = folder / "stranger.py"
    script.write_text(STRANGER.read_text(encoding="utf-8"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-P", str(script), stage.redis_url],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


@contextmanager
def watching(stage: Stage) -> Iterator[list[dict[str, Any]]]:
    """Collect all of Celery's task events meanwhile, as Flower does."""
    seen: list[dict[str, Any]] = []
    app = Celery("watcher", broker=stage.redis_url)
    done = threading.Event()

    def watch() -> None:
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": seen.append})
            while not done.is_set():
                try:
                    for _ in receiver.consume(limit=None, timeout=0.5, wakeup=False):
                        if done.is_set():
                            break
                except TimeoutError:
                    continue

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    wait_until(lambda: seen, 30, "heartbeats of the workers")
    yield seen
    done.set()
    thread.join(10)


def test_an_app_that_knows_only_celery_is_served_and_understands_what_it_gets(
    stage: Stage, tmp_path: Path
) -> None:
    told, imported = run_stranger(stage, tmp_path)
    assert imported == []
    assert told["answer"]["state"] == "finished"
    assert told["answer"]["text"] == f"You said: {SECRET}"
    assert told["second"]["text"] == "You said: more"
    name, (reason, advice) = told["refusal"]
    assert name == "Rejected"
    assert "empty" in reason
    assert advice
    name, (sentence, kind, *_) = told["failure"]
    assert (name, kind) == ("TurnFailed", "auth")
    assert sentence.endswith(".")


def test_what_users_say_is_in_no_log_no_event_and_no_inspection(
    stage: Stage, tmp_path: Path
) -> None:
    with watching(stage) as seen:
        run_stranger(stage, tmp_path)
        wait_until(
            lambda: any(
                (e["type"] == "task-succeeded" and "rejoinder" in str(e)) or e.get("uuid")
                for e in seen
            )
        )
        turn = stage.client.create_chat(SECRET, owner="joe", model="scripted:long")
        inspected = wait_until(lambda: _active(stage), 20)
        stage.client.interrupt(turn.chat_id, wait=True)
    received = [e for e in seen if e["type"] == "task-received"]
    assert received
    assert any("…" in e["kwargs"] for e in received)
    for where in (seen, inspected, stage.logs()):
        assert "secret" not in str(where)
        assert "You said" not in str(where)


def _active(stage: Stage) -> Any:
    found = stage.client.app.control.inspect(timeout=2).active() or {}
    return found if any(found.values()) else None
