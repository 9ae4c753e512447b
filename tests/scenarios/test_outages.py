"""Servers, connections, beat and clocks fail under workers at work: they live, and chats go on.

The servers are this module's own: they are restarted. Where it makes no difference to the test, a
worker of each pool takes part in the same scene.
"""

import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text

from models.migrate import upgrade
from rejoinder import embedded
from rejoinder.client import Client, Turn
from rejoinder.core.state import AT_REST
from scripts.fleet import ROOT, Member
from tests.integration.invariants import assert_invariants
from tests.scenarios.plays import CONTROL, LONG, STEPS, WORDS, Begin, Play, play, sweeping
from tests.waiting import wait_until

POOLS = pytest.mark.parametrize("pool", ["threads", "prefork"])
DONE = {"text": "Done."}


@pytest.fixture(scope="module")
def own() -> Iterator[embedded.Servers]:
    """Servers that nobody else uses."""
    with embedded.servers() as running:
        yield running


@pytest.fixture
def begin(own: embedded.Servers, tmp_path: Path) -> Begin:
    """A function that begins a play on a database of its own."""

    def start(**settings: str) -> AbstractContextManager[Play]:
        name = f"outage_{secrets.token_hex(6)}"
        engine = create_engine(own.database_url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        url = make_url(own.database_url).set(database=name).render_as_string(hide_password=False)
        upgrade(url)
        return play(own, url, tmp_path, **settings)

    return start


def both_pools(on: Play, **options: object) -> list[Member]:
    """A worker of each pool for steps, and one for the front door."""
    members = [
        on.worker(pool, pool=pool, concurrency=3, queues=[STEPS], **options)  # type: ignore[arg-type]
        for pool in ("threads", "prefork")
    ]
    members.append(on.worker("control", queues=[CONTROL]))
    on.ready()
    return members


def assert_untroubled(on: Play, members: list[Member], *turns: Turn) -> None:
    """The same processes are there, and nothing went wrong with the chats."""
    assert all(member.alive for member in members)
    for turn in turns:
        row = on.row(turn)
        assert (row["status"], row["last_error"], row["crashes"]) == ("waiting", None, 0)
        assert on.turn_state(turn) == "finished"
    assert_invariants(on.world.engine)


def test_messages_that_are_lost_with_the_broker_are_sent_again(
    begin: Begin, own: embedded.Servers
) -> None:
    with begin() as on, sweeping(own):
        members = both_pools(on)
        talks = [on.start({"text": WORDS, "pace": 0.2}) for _ in range(6)]
        wait_until(lambda: all(on.live(turn) for turn in talks), 30)
        queued = [on.start({"text": "At last."}) for _ in range(4)]
        assert on.redis.llen(STEPS) == 4
        own.restart("valkey")
        assert on.redis.llen(STEPS) == 0
        on.rest(*talks, *queued)
        assert_untroubled(on, members, *talks, *queued)
        assert [on.answers(turn) for turn in talks] == [[WORDS]] * 6
        assert [on.answers(turn) for turn in queued] == [["At last."]] * 4


def test_a_retry_comes_though_its_process_and_all_messages_are_gone(
    begin: Begin, own: embedded.Servers
) -> None:
    with begin() as on, sweeping(own):
        first = on.worker("first", queues=[STEPS])
        on.worker("control", queues=[CONTROL])
        on.ready()
        overloaded = {"kind": "overloaded", "times": 1, "retry_after": 3}
        turn = on.start({"fail": [overloaded], "text": "Retried."})
        wait_until(lambda: on.row(turn)["run_after"] is not None, 30)
        first.kill()
        own.restart("valkey")
        on.worker("second", queues=[STEPS])
        on.rest(turn)
        assert on.answers(turn) == ["Retried."]
        assert_untroubled(on, [], turn)


def test_a_turn_finishes_and_its_readers_see_it_though_redis_forgets_everything(
    begin: Begin,
) -> None:
    with begin() as on:
        members = both_pools(on)
        turns = [on.start({"text": WORDS, "pace": 0.1}) for _ in range(4)]
        seen: dict[str, list[str]] = {turn.chat_id: [] for turn in turns}

        def follow(turn: Turn) -> None:
            with Client(broker_url=on.servers.redis_url, timeout=30) as client:
                for event in client.follow(turn.chat_id, idle_seconds=1):
                    if event is not None and event.kind == "message":
                        seen[turn.chat_id].append(
                            "".join(part.get("text", "") for part in event.data["parts"])
                        )
                    if event is not None and event.kind == "status":
                        seen[turn.chat_id].append(event.data["status"])
                        if event.data["status"] in AT_REST:
                            return

        readers = [threading.Thread(target=follow, args=(turn,)) for turn in turns]
        for reader in readers:
            reader.start()
        wait_until(lambda: all(on.live(turn) for turn in turns), 30)
        on.redis.flushall()
        for reader in readers:
            reader.join(LONG)
        assert not any(reader.is_alive() for reader in readers)
        for told in seen.values():
            assert [words for words in told if " " in words] == [WORDS]
            assert told[-1] == "waiting"
        assert_untroubled(on, members, *turns)
        assert on.start(DONE).get(timeout=LONG)["text"] == "Done."


def test_a_question_that_redis_forgot_is_asked_again(begin: Begin) -> None:
    with begin() as on:
        door = on.worker("door")
        on.ready()
        turn = on.start(DONE)
        on.rest(turn)
        door.stop()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(on.client.get_chat, turn.chat_id)
            wait_until(lambda: on.redis.llen(CONTROL) == 1, 5)
            on.redis.flushall()
            on.worker("next")
            assert answer.result(LONG)["status"] == "waiting"


@POOLS
def test_a_worker_outlives_the_loss_of_its_connections_though_it_holds_a_message(
    begin: Begin, own: embedded.Servers, pool: str
) -> None:
    # Hearts beat seldom: only a hint can be quick.
    slow = {"REJOINDER_HEARTBEAT_SECONDS": "20", "REJOINDER_DEAD_AFTER_SECONDS": "60"}
    with begin(**slow) as on:
        steps = on.worker("steps", pool=pool, queues=[STEPS, "spare"])
        control = on.worker("control", pool=pool, queues=[CONTROL])
        on.ready()
        talks = on.start({"text": WORDS, "pace": 0.2})
        for queue in ("spare", CONTROL):
            on.client.app.send_task(
                "rejoinder.get_chat", kwargs={"chat_id": talks.chat_id}, queue=queue, countdown=60
            )
        wait_until(lambda: on.live(talks) and _held(on) == 2, 30, "two messages that are held")
        for _ in range(3):
            for kind in ("normal", "pubsub"):
                on.redis.client_kill_filter(_type=kind, skipme=True)
            wait_until(lambda: _listeners(on) >= 2, 15, "hints are heard again")
        wait_until(lambda: _held(on) == 2, 30, "they are held again")
        own.restart("valkey")
        wait_until(lambda: _listeners(on) >= 2, 15, "hints are heard again")
        on.rest(talks)
        assert on.answers(talks) == [WORDS]
        assert_untroubled(on, [steps, control], talks)
        with Client(broker_url=on.servers.redis_url, timeout=30) as client:
            stopped = client.create_chat("Talk.", owner="joe", model="scripted:long")
            wait_until(lambda: on.live(stopped), 30)
            began = time.monotonic()
            client.interrupt(stopped.chat_id)
            wait_until(lambda: on.status(stopped) == "waiting", 10)
            assert time.monotonic() - began < 5
        assert on.turn_state(stopped) == "interrupted"
        assert steps.alive
        assert control.alive


def _held(on: Play) -> int:
    return on.redis.hlen("rejoinder.unacked")


def _listeners(on: Play) -> int:
    return len(on.redis.pubsub_channels("rejoinder:hints:*"))


@pytest.mark.parametrize("away", [1.0, 6.0], ids=["for a moment", "for longer than a lease"])
def test_turns_finish_though_the_database_was_away(
    begin: Begin, own: embedded.Servers, away: float
) -> None:
    # Often: after the outage a sweep comes before most hearts have beaten.
    with begin(REJOINDER_DEAD_AFTER_SECONDS="4") as on, sweeping(own, every=0.2):
        members = both_pools(on)
        turns = [
            on.start({"text": WORDS, "pace": 0.1}),
            on.start({"text": WORDS, "pace": (away + 2) / 20}),  # ends after it
            on.start(on.using("hold", "sync", seconds=2), DONE),
            on.start(on.using("hold_async", "async", seconds=2), DONE),
            *(on.start(*[_adding(n) for n in range(12)], DONE) for _ in range(2)),
        ]
        wait_until(lambda: on.noted("sync") and on.noted("async"), 30)
        wait_until(lambda: on.live(turns[0]) and on.live(turns[1]), 30)
        own.restart("postgres", down_seconds=away)
        on.rest(*turns)
        assert_untroubled(on, members, *turns)
        assert [on.answers(turn) for turn in turns[:2]] == [[WORDS]] * 2
        for turn in turns[2:4]:
            assert on.history(turn)[2:] == [("tool", "✓held"), ("assistant", "Done.")]
        for turn in turns[4:]:
            assert on.answers(turn)[-1] == "Done."
        assert [on.noted(name) for name in ("sync", "async")] == [["begin", "end"]] * 2
        assert on.start(DONE).get(timeout=LONG)["text"] == "Done."


def _adding(number: int) -> dict[str, object]:
    return {"text": "And", "calls": [{"name": "add", "arguments": {"a": number, "b": 1}}]}


def test_a_killed_workers_chat_waits_for_beat_and_two_beats_recover_it_once(
    begin: Begin, tmp_path: Path
) -> None:
    with begin(REJOINDER_DEAD_AFTER_SECONDS="2") as on:
        victim = on.worker("victim", queues=[STEPS])
        other = on.worker("other", queues=[CONTROL])
        on.ready()
        beats = [_beat(on, tmp_path, "beat-0")]
        on.ready()
        turn = on.start(on.using("hold", "tool"), {"text": "Done.", "delay": 2})
        wait_until(lambda: on.noted("tool"), 30)
        beats[0].kill()
        victim.kill()
        died = time.monotonic()
        wait_until(lambda: time.monotonic() - died > 4, 10)
        assert on.status(turn) == "running", "nobody is there to see that its owner is dead"
        on.takes_steps(other)
        beats += [_beat(on, tmp_path, f"beat-{number}") for number in (1, 2)]
        wait_until(lambda: on.row(turn)["crashes"] == 1, 30, "a recovery")
        on.rest(turn)
        wait_until(lambda: all("Sending due task" in beat.text() for beat in beats[1:]), 30)
        assert on.history(turn)[1:] == [
            ("assistant", "Look. | →hold"),
            ("tool", on.history(turn)[2][1]),
            ("assistant", "Done."),
        ]
        assert "outcome is unknown" in on.history(turn)[2][1]
        statuses = [e.data["status"] for e in on.events(turn) if e.kind == "status"]
        assert statuses == ["pending", "running", "pending", "running", "waiting"]


def _beat(on: Play, folder: Path, name: str) -> Member:
    schedule = folder / f"{name}.schedule"
    arguments = ["beat", "--loglevel=INFO", f"--schedule={schedule}", "--pidfile="]
    return on.fleet.start(name, arguments, ready_when="beat: Starting")


SKEW = """
import datetime, time
_time = time.time
time.time = lambda: _time() + {seconds}
class Skewed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)
    @classmethod
    def utcnow(cls):
        return cls.fromtimestamp(time.time(), datetime.timezone.utc).replace(tzinfo=None)
datetime.datetime = Skewed
"""


def customised(folder: Path, source: str) -> dict[str, str]:
    """The environment of a process that runs this first."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(source, encoding="utf-8")
    return {"PYTHONPATH": f"{ROOT}:{folder}"}


@pytest.mark.parametrize("hours", [1, -1], ids=["ahead", "behind"])
def test_a_worker_whose_clock_is_wrong_works_as_any_other(
    begin: Begin, own: embedded.Servers, tmp_path: Path, hours: int
) -> None:
    env = customised(tmp_path / "site", SKEW.format(seconds=hours * 3600))
    with begin(REJOINDER_DEAD_AFTER_SECONDS="3") as on:
        skewed = on.worker("skewed", queues=[CONTROL], env=env)
        right = on.worker("right", queues=[STEPS])
        on.ready()
        logged = time.strptime(skewed.text()[1:14], "%Y-%m-%d %H")
        assert logged[:4] == time.localtime(time.time() + hours * 3600)[:4]
        with sweeping(own, every=0.5):
            # Its sweeps take nobody for dead who lives …
            talks = on.start({"text": WORDS, "pace": 0.2})
            on.rest(talks)
            assert_untroubled(on, [skewed, right], talks)
            # … and see who is dead.
            turn = on.start(on.using("hold_async", "tool"), {"text": "Done.", "delay": 1})
            wait_until(lambda: on.noted("tool"), 30)
            right.kill()
            on.takes_steps(skewed)
            wait_until(lambda: on.row(turn)["crashes"] == 1, 15, "a recovery")
            on.rest(turn)
            assert on.history(turn)[2:] == [("tool", "✓held"), ("assistant", "Done.")]
            # What it does itself is in time, too.
            fail = [{"kind": "overloaded", "times": 1, "retry_after": 1}]
            began = time.monotonic()
            assert on.start({"fail": fail, "text": "Again."}).get(timeout=LONG)["text"] == "Again."
            assert 1 <= time.monotonic() - began < 10
            stopped = on.start({"text": WORDS, "pace": 0.5})
            wait_until(lambda: on.live(stopped), 30)
            on.client.interrupt(stopped.chat_id)
            wait_until(lambda: on.status(stopped) == "waiting", 5)
            assert on.turn_state(stopped) == "interrupted"
            assert_invariants(on.world.engine)


MUTE = """
import redis
def publish(self, channel, message, **_):
    if "hints:" in str(channel):
        with open({note!r}, "a") as file:
            file.write("unheard\\n")
        return 0
    return self.execute_command("PUBLISH", channel, message)
redis.Redis.publish = publish
"""


@POOLS
def test_an_interrupt_whose_hint_is_lost_lands_with_the_next_heartbeat(
    begin: Begin, tmp_path: Path, pool: str
) -> None:
    with begin() as on:
        env = customised(tmp_path / "site", MUTE.format(note=on.note("hints")))
        on.worker("control", queues=[CONTROL], env=env)
        on.worker("steps", pool=pool, queues=[STEPS])
        on.ready()
        talks = on.start({"text": WORDS, "pace": 0.5})
        uses = on.start(on.using("watch_async", "tool"))
        wait_until(lambda: on.live(talks) and on.noted("tool"), 30)
        for turn in (talks, uses):
            on.client.interrupt(turn.chat_id)
        on.rest(talks, uses, seconds=5)
        assert [on.turn_state(turn) for turn in (talks, uses)] == ["interrupted"] * 2
        assert on.noted("hints") == ["unheard"] * 2
        assert on.noted("tool") == ["begin", "interrupt"]
        (words,) = on.answers(talks)
        assert WORDS.startswith(words)
        assert_invariants(on.world.engine)
