"""What `make chaos` holds against processes: words in their logs, how and when they ended."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.chaos_parts.audit_processes import (
    exits_are_clean,
    logs_are_clean,
    readers_see_history,
)
from scripts.chaos_parts.crew import Life
from scripts.chaos_parts.journal import Journal, Outage
from scripts.chaos_parts.picture import Message, Picture
from scripts.chaos_parts.schedule import Kind
from scripts.fleet import Member

NOW = 1_700_000_000.0
LOST = """Traceback (most recent call last):
  File "x.py", line 1, in <module>
redis.exceptions.ConnectionError: Error 111 connecting to 127.0.0.1:6379. Connection refused."""
BUG = """Traceback (most recent call last):
  File "x.py", line 1, in <module>
KeyError: 'chat'"""


def line(words: str, at: float = NOW, level: str = "ERROR") -> str:
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return f"[{moment},000: {level}/MainProcess] {words}\n"


def life(path: Path, *lines: str, leaving: str | None = None, took: float = 1.0) -> Life:
    log = path / "worker.log"
    log.write_text("".join(lines))
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    made = Life(Member("worker", process, log, " ready."), "step")
    if leaving is not None:
        made.leaving, made.told_at, made.ended_at, made.code = leaving, NOW, NOW + took, 0
    return made


def found(one: Life, *outages: Outage) -> list[str]:
    return [finding.rule for finding in logs_are_clean([one], Journal(outages=list(outages)))]


def test_a_quiet_log_is_clean(tmp_path: Path) -> None:
    assert found(life(tmp_path, line("Task rejoinder.step received", level="INFO"))) == []


def test_a_lost_connection_is_excused_by_an_outage_and_by_nothing_else(tmp_path: Path) -> None:
    one = life(tmp_path, line(f"Could not publish\n{LOST}"))
    assert found(one) == ["log: traceback"]
    assert found(one, Outage("valkey", NOW - 100, NOW - 90)) == ["log: traceback"]
    assert found(one, Outage("valkey", NOW - 1, NOW + 1)) == []


def test_another_failure_is_not_excused_by_an_outage(tmp_path: Path) -> None:
    one = life(tmp_path, line(f"Could not publish\n{BUG}"))
    assert found(one, Outage("valkey", NOW - 1, NOW + 1)) == ["log: traceback"]


@pytest.mark.parametrize("words", ["the step failed", "Unrecoverable error"])
def test_some_words_are_never_excused(tmp_path: Path, words: str) -> None:
    one = life(tmp_path, line(f"{words}\n{LOST}"))
    assert found(one, Outage("valkey", NOW - 1, NOW + 1)) == [f"log: {words}"]


def test_a_traceback_belongs_to_the_line_before_it(tmp_path: Path) -> None:
    early, late = line("all is well", level="INFO"), line(f"oh\n{LOST}", NOW + 60)
    one = life(tmp_path, early, late, early)
    assert found(one, Outage("valkey", NOW + 59, NOW + 61)) == []
    assert found(one, Outage("valkey", NOW - 1, NOW + 1)) == ["log: traceback"]


def test_a_killed_child_is_excused_where_one_was_killed(tmp_path: Path) -> None:
    words = "Task handler raised error: WorkerLostError('Worker exited prematurely: signal 9 (SIGK"
    one = life(tmp_path, line(f"{words}ILL) Job: 3.')\n{BUG}"))
    assert found(one) == ["log: traceback"]
    journal = Journal()
    journal.fault(Kind.CHILD_KILL, "worker/17")
    assert list(logs_are_clean([one], journal)) == []


def test_a_child_without_a_parent_has_nobody_to_report_to(tmp_path: Path) -> None:
    words = "Pool process <Worker object> error: BrokenPipeError(32, 'Broken pipe')"
    broken = f"{words}\n{BUG}"
    assert found(life(tmp_path, line(broken), leaving=Kind.PARENT_KILL)) == []
    assert found(life(tmp_path, line(broken), leaving=Kind.WORKER_TERM)) == ["log: traceback"]


def exits(one: Life) -> list[str]:
    return [finding.rule for finding in exits_are_clean([one])]


def test_a_worker_that_leaves_in_time_with_code_0_is_fine(tmp_path: Path) -> None:
    assert exits(life(tmp_path, leaving=Kind.WORKER_TERM)) == []


def test_slow_failed_missing_and_unasked_ends_are_found(tmp_path: Path) -> None:
    assert exits(life(tmp_path, leaving=Kind.WORKER_TERM, took=26)) == ["slow exit"]
    failed = life(tmp_path, leaving=Kind.CONTROL_SHUTDOWN)
    failed.code = 1
    assert exits(failed) == ["exit code"]
    cold = life(tmp_path, leaving=Kind.WORKER_QUIT)
    cold.code = -11
    assert exits(cold) == ["exit code"]
    there = life(tmp_path, leaving=Kind.WORKER_TERM)
    there.ended_at = None
    assert exits(there) == ["no exit"]
    unasked = life(tmp_path)
    unasked.ended_at, unasked.code = NOW, 1
    assert exits(unasked) == ["unexpected exit"]


def test_a_killed_worker_need_not_end_well(tmp_path: Path) -> None:
    killed = life(tmp_path, leaving=Kind.WORKER_KILL)
    killed.code = -9
    assert exits(killed) == []


class Reader:
    """A client that shows these messages, two on a page."""

    def __init__(self, *ids: int) -> None:
        self.ids = ids

    def get_messages(self, chat_id: str, *, after: int, limit: int) -> dict[str, object]:
        assert chat_id
        assert limit
        left = [each for each in self.ids if each > after]
        more = left[1] if len(left) > 2 else None
        return {"messages": [{"id": each} for each in left[:2]], "next": more}


def test_everything_but_what_is_deleted_or_for_the_model_can_be_read() -> None:
    def message(number: int, visibility: str = "both", *, deleted: bool = False) -> Message:
        return Message(number, "chat", None, "user", visibility, False, deleted, 1, [], None, None)  # noqa: FBT003

    history = [message(n) for n in (1, 2, 5, 6, 7)]
    picture = Picture(messages=[*history, message(3, "model"), message(4, deleted=True)])

    def unread(*ids: int) -> list[str]:
        found = readers_see_history(picture, Reader(*ids))  # type: ignore[arg-type]
        return [finding.rule for finding in found]

    assert unread(1, 2, 5, 6, 7) == []
    for ids in ((5, 6, 7), (1, 2, 3, 5, 6, 7), (1, 2, 4, 5, 6, 7), (1, 2, 5, 6)):
        assert unread(*ids) == ["history cannot be read"]
