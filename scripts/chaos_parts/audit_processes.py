"""Rules about what no row shows: logs, exits, what Celery keeps, what readers see.

A broken connection is no fault of a worker while its server is away; anything else that it
complains about is. A log line belongs to the moment that it names.
"""

import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime

from celery.result import AsyncResult

from rejoinder.client import Client
from scripts.chaos_parts.crew import AT_THE_END, Life
from scripts.chaos_parts.evidence import Finding
from scripts.chaos_parts.journal import Journal, Outage
from scripts.chaos_parts.ledger import SAY_STACKS
from scripts.chaos_parts.picture import Picture
from scripts.chaos_parts.schedule import Kind

EXIT_SECONDS = 25.0
SLACK_SECONDS = 15.0
"""How long after an outage a process may still stumble over it."""
# The second signal may meet a process that has left already, and is only tidying up.
CODES = {
    **dict.fromkeys((Kind.WORKER_TERM, Kind.OTHER_TERM, Kind.CONTROL_SHUTDOWN, AT_THE_END), (0,)),
    Kind.WORKER_QUIT: (0, 1),
    Kind.WORKER_INT_TWICE: (0, 1, -signal.SIGINT),
}
"""With which codes a worker may leave."""
KILLED_CHILD = "WorkerLostError('Worker exited prematurely: signal 9 (SIGKILL)"
ORPHAN = "error: BrokenPipeError(32"
TRACEBACK = "Traceback (most recent call last)"
BAD_WORDS = ("the step failed", "Unrecoverable error")
_HEAD = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}): (\w+)/")
_LOST = re.compile(
    r"^(redis\.exceptions|kombu\.exceptions\.OperationalError|psycopg2\.|sqlalchemy\.exc\."
    r"(OperationalError|InterfaceError|DBAPIError|PendingRollbackError)|ConnectionResetError"
    r"|ConnectionRefusedError|BrokenPipeError|OSError|EOFError|TimeoutError)"
)


def logs_are_clean(lives: Sequence[Life], journal: Journal) -> Iterator[Finding]:
    """No complaint that no outage explains."""
    for life in lives:
        for at, words in _records(life.member.text()):
            if KILLED_CHILD in words and _lost_a_child(life, journal):
                continue
            if life.leaving == Kind.PARENT_KILL and ORPHAN in words:
                continue  # a child that has nobody to report to
            first, last = words.splitlines()[0][:200], _last(words)[:200]
            if bad := next((bad for bad in BAD_WORDS if bad in words), None):
                yield Finding(f"log: {bad}", f"{life.member.name}: {first} … {last}")
            elif TRACEBACK in words and not (_connection(words) and _during(at, journal.outages)):
                yield Finding("log: traceback", f"{life.member.name}: {first} … {last}")


def _lost_a_child(life: Life, journal: Journal) -> bool:
    """Whether a child of this worker was killed: Celery says so with a traceback."""
    victims = (fault.victim for fault in journal.faults if fault.kind == Kind.CHILD_KILL)
    return any(victim.startswith(f"{life.member.name}/") for victim in victims)


def _records(text: str) -> Iterator[tuple[float, str]]:
    """The log's entries with their moments; what has no head belongs to the one before."""
    at, lines = 0.0, list[str]()
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            if lines:
                yield at, "\n".join(lines)
            moment = datetime.strptime(head[1], "%Y-%m-%d %H:%M:%S").astimezone()
            at, lines = moment.timestamp() + int(head[2]) / 1000, []
        lines.append(line)
    if lines:
        yield at, "\n".join(lines)


def _last(words: str) -> str:
    """The last line of the last traceback."""
    flush = [line for line in words.splitlines() if line and not line.startswith((" ", "["))]
    return flush[-1] if flush else ""


def _connection(words: str) -> bool:
    lines = [line for line in words.splitlines() if line and line[0].isalpha()]
    return any(_LOST.match(line) for line in lines)


def _during(at: float, outages: Sequence[Outage]) -> bool:
    return any(each.began - 1 <= at <= each.ended + SLACK_SECONDS for each in outages)


def exits_are_clean(lives: Sequence[Life]) -> Iterator[Finding]:
    """Nobody ended unasked; who was asked to left in time, with code 0."""
    for life in lives:
        name = life.member.name
        if life.leaving is None:
            if life.ended_at is not None:
                yield Finding("unexpected exit", f"{name} ended by itself, code {life.code}")
            continue
        if life.leaving not in CODES:
            continue
        if life.ended_at is None:
            yield Finding("no exit", f"{name} is still here after {life.leaving}")
            continue
        took = life.ended_at - (life.told_at or life.ended_at)
        if took > EXIT_SECONDS:
            yield Finding("slow exit", f"{name} took {took:.1f} s after {life.leaving}")
        if life.code not in CODES[life.leaving]:
            yield Finding("exit code", f"{name}: {life.code} after {life.leaving}")


def results_are_kept(
    picture: Picture, journal: Journal, client: Client
) -> tuple[list[Finding], int, int]:
    """Every turn that ended since Valkey last lost everything has its result, and it is right.

    Returns the findings, and how many results are there and gone.
    """
    wiped = max((wipe.ended for wipe in journal.wipes), default=0.0)
    texts = {(m.chat_id, m.id): m.words for m in picture.messages}
    findings, kept, gone = [], 0, 0
    for turn in picture.turns:
        if turn.ended_at is None:
            continue
        stored = AsyncResult(turn.id, app=client.app)
        state = stored.state
        if state == "PENDING":
            gone += 1
            if turn.ended_at > wiped:
                findings.append(Finding("result lost", f"turn {turn.id}", turn.chat_id))
            continue
        kept += 1
        value = stored.result
        right = (turn.state, texts.get((turn.chat_id, turn.answer_id or 0)))
        if isinstance(value, dict) and (value["state"], value["text"]) != right:
            findings.append(Finding("wrong result stored", f"turn {turn.id}", turn.chat_id))
    return findings, kept, gone


def readers_see_history(picture: Picture, client: Client) -> Iterator[Finding]:
    """Whoever reads a chat gets all that people may see, once and in order, summarised or not."""
    for chat_id, messages in picture.by_chat().items():
        there = [m.id for m in messages if not m.deleted and m.visibility != "model"]
        seen: list[int] = []
        after: int | None = 0
        while after is not None:
            page = client.get_messages(chat_id, after=after, limit=100)
            seen += [message["id"] for message in page["messages"]]
            after = page["next"]
        if seen != there:
            yield Finding("history cannot be read", f"{there} are there, {seen} are seen", chat_id)


def wait_for_exits(lives: Sequence[Life], seconds: float = EXIT_SECONDS) -> None:
    """Give those who are leaving the time they may take; who is still there says what it does."""
    end = time.monotonic() + seconds
    for life in lives:
        while life.leaving and life.ended_at is None and time.monotonic() < end:
            time.sleep(0.05)
    stuck = [life for life in lives if life.leaving and life.ended_at is None]
    for pid in (pid for life in stuck for pid in life.family):
        with suppress(ProcessLookupError):
            os.kill(pid, SAY_STACKS)  # it goes to its log
    if stuck:
        time.sleep(1.0)
