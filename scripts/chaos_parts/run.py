"""One run: everything up, drivers and faults together, then rest, audit, and everything gone."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from models.migrate import upgrade
from rejoinder import embedded
from rejoinder.client import Client
from scripts.chaos_parts import audit_processes, ledger, picture, recovery, report, trail
from scripts.chaos_parts.audit import audit
from scripts.chaos_parts.audit_commands import commands_are_done_once
from scripts.chaos_parts.commands import Commander
from scripts.chaos_parts.crew import Crew
from scripts.chaos_parts.drawing import ALL, Mix
from scripts.chaos_parts.drivers import CALL_SECONDS, Driver, drivers
from scripts.chaos_parts.evidence import Evidence, Finding
from scripts.chaos_parts.faults import Faults, Lasting
from scripts.chaos_parts.journal import Journal
from scripts.chaos_parts.office import clerks
from scripts.chaos_parts.report import Report
from scripts.chaos_parts.schedule import ENABLED, GAP, Kind, draw
from scripts.fleet import ROOT, TETHERED, Fleet, Signals, environment, repeatedly

REST_SECONDS = 180.0
"""How long the fleet may take to bring every chat to rest after the last fault."""
STRAGGLER_SECONDS = 60.0
"""How long a command may take to be done that was in the hands of somebody who fell."""
QUICK = {
    "REJOINDER_HEARTBEAT_SECONDS": "0.5",
    "REJOINDER_DEAD_AFTER_SECONDS": "3",
    "REJOINDER_DRAIN_SECONDS": "2",
}
QUICK_LASTING = Lasting((1.0, 6.0), (0.0, 1.5), (4.0, 4.0), (3.0, 5.0))
SWEEP_EVERY = 1.0
LEDGER, MODEL_LOG = "ledger.jsonl", "model.jsonl"
JOURNAL, TRAIL, ROWS = "journal.jsonl", "trail.jsonl", "rows.jsonl"
_NOT_AT_REST = text("SELECT count(*) FROM rejoinder.chats WHERE status NOT IN ('waiting', 'error')")
_GIVEN_UP = text(
    "SELECT id::text FROM rejoinder.chats"
    " WHERE status = 'error' AND last_error ->> 'kind' = 'worker_lost'"
)
_UNTOLD = text("SELECT count(*) FROM rejoinder.turns WHERE ended_at IS NOT NULL AND NOT announced")


@dataclass(frozen=True)
class Options:
    """What a run is asked to be."""

    seconds: float = 60.0
    seed: int = 1
    pool: str = "threads"
    chats: int = 40
    quick: bool = False
    only: frozenset[Kind] = ENABLED
    gap: float = GAP
    mix: frozenset[Mix] = ALL


class Run:
    """The pieces of one run, put together."""

    def __init__(self, options: Options, folder: Path, signals: Signals) -> None:
        """Keep everything that is written in this folder."""
        self.options = options
        self.folder = folder
        self.journal = Journal(logs=folder)
        self.signals = signals
        for name in (LEDGER, MODEL_LOG):  # of an earlier run in the same folder
            (folder / name).unlink(missing_ok=True)

    def go(self) -> Report:
        """Start, harm, wait, audit, stop."""
        _say(f"Starting servers, a model and a fleet of {self.options.pool} workers …")
        with ExitStack() as stack:
            servers = stack.enter_context(embedded.servers(environ={}))
            upgrade(servers.database_url)
            engine = create_engine(servers.database_url, poolclass=NullPool)
            trail.keep_commits(engine)
            trail.install(engine)
            model_url = stack.enter_context(self._model())
            fleet = stack.enter_context(
                Fleet(self._environment(servers, model_url), self.folder, signals=self.signals)
            )
            crew = Crew(fleet, self.options.pool, self.folder)
            stack.callback(crew.kill_leftovers)
            crew.complete()
            crew.wait_until_ready()
            stack.enter_context(crew.watching())
            self._client_url = servers.redis_url
            client = stack.enter_context(self._make_client())
            stack.enter_context(self._office())
            stack.enter_context(self._commander())
            if self.options.quick:
                stack.enter_context(_sweeping(client))
            lasting = QUICK_LASTING if self.options.quick else Lasting()
            faults = Faults(crew, servers, engine, client, self.journal, lasting=lasting)
            stack.callback(faults.finish, 10.0)  # before the fleet ends, also when we are stopped
            self._harm(faults)
            return self._judge(crew, engine, client)

    def _make_client(self) -> Client:
        return Client(broker_url=self._client_url, timeout=CALL_SECONDS)

    @contextmanager
    def _office(self) -> Iterator[None]:
        """People who are asked; they stay until every chat is at rest."""
        self.office = clerks(self._make_client, self.journal)
        for clerk in self.office:
            clerk.thread.start()
        try:
            yield
        finally:
            for clerk in self.office:
                clerk.close()

    @contextmanager
    def _commander(self) -> Iterator[None]:
        """Somebody who gives commands and goes away; interrupts until every chat is at rest."""
        self.commander = Commander(self._make_client, self.journal, self.options.seed)
        if Mix.COMMANDS in self.options.mix:
            self.commander.thread.start()
        try:
            yield
        finally:
            self.commander.close()

    def _harm(self, faults: Faults) -> None:
        """Let drivers and faults loose, until both have finished."""
        asked = self.options
        team = drivers(self._make_client, self.journal, asked.seed, asked.chats, asked.mix)
        for driver in team:
            driver.thread.start()
        began = time.monotonic()
        _say(f"{self.options.chats} chats, and a fault every two or three seconds:")
        for fault in draw(asked.seed, asked.seconds, asked.pool, asked.only, asked.gap):
            time.sleep(max(0.0, began + fault.at - time.monotonic()))
            _say(f"  {fault.at:5.1f} s  {fault.kind}")
            faults.begin(fault)
        time.sleep(max(0.0, began + self.options.seconds - time.monotonic()))
        for driver in team:
            driver.close()
        self.commander.finish()
        faults.finish()
        self._collect(team, faults)

    def _collect(self, team: list[Driver], faults: Faults) -> None:
        """Get the fleet complete again, and the drivers' last answers."""
        faults.crew.complete()
        faults.crew.wait_until_ready()
        deadline = time.monotonic() + 5 * CALL_SECONDS
        for driver in team:
            driver.thread.join(max(0.0, deadline - time.monotonic()))
        for driver in team:
            driver.give_up()
        for driver in team:
            driver.thread.join(2 * CALL_SECONDS)
        self.troubles = sum((Counter(d.tally.troubles) for d in team), Counter[str]())
        self.repeated = sum(d.tally.repeated for d in team)

    def _judge(self, crew: Crew, engine: Engine, client: Client) -> Report:
        _say("No more faults; waiting until every chat is at rest …\n")
        ended = time.monotonic()
        at_rest = _wait_for_none(engine, _NOT_AT_REST, REST_SECONDS)
        if self._wait_for_stragglers(engine):
            at_rest = _wait_for_none(engine, _NOT_AT_REST, REST_SECONDS)
        given_up = _retry_given_up(engine, client)
        if given_up:
            at_rest = _wait_for_none(engine, _NOT_AT_REST, REST_SECONDS)
        rest_seconds = time.monotonic() - ended
        if at_rest:
            _wait_for_none(engine, _UNTOLD, 45.0)
        taken = picture.take(engine)
        unread = list(audit_processes.readers_see_history(taken, client)) if at_rest else []
        crew.dismiss()
        audit_processes.wait_for_exits(crew.lives)
        evidence = Evidence(taken, self.journal, ledger.read(self.folder / LEDGER))
        lives = list(crew.lives)
        lost, kept, gone = audit_processes.results_are_kept(taken, self.journal, client)
        findings: list[Finding] = [
            *audit(evidence),
            *unread,
            *lost,
            *audit_processes.exits_are_clean(lives),
            *audit_processes.logs_are_clean(lives, self.journal),
        ]
        requests = self._requests()
        report.write_journal(self.journal, self.folder / JOURNAL)
        report.write_trail(taken, self.folder / TRAIL)
        report.write_rows(taken, self.folder / ROWS)
        return Report(
            self.options.seed,
            self.options.pool,
            self.options.seconds,
            report.counts(evidence, requests)
            | {
                "office: budgets raised": sum(clerk.raised.total() for clerk in self.office),
                "chats given up and retried": given_up,
                "results kept": kept,
                "results gone with Valkey": gone,
            }
            | {"requests repeated by drivers": self.repeated}
            | {f"drivers saw {name}": number for name, number in sorted(self.troubles.items())},
            report.faults(self.journal),
            dict(sorted(Counter(self.journal.skipped).items())),
            recovery.measure(self.journal, taken.moves(), lives),
            rest_seconds if at_rest else None,
            findings,
        )

    def _wait_for_stragglers(self, engine: Engine) -> bool:
        """Whether commands were missing: a dead worker's come back after a while."""
        waited, end = False, time.monotonic() + STRAGGLER_SECONDS
        while time.monotonic() < end:
            evidence = Evidence(picture.take(engine), self.journal, ())
            if not any(f.rule == "command lost" for f in commands_are_done_once(evidence)):
                break
            waited = True
            time.sleep(1.0)
        return waited

    def _environment(self, servers: embedded.Servers, model_url: str) -> dict[str, str]:
        settings = {
            "REJOINDER_TOOLS": "scripts.chaos_parts.ledger",
            "ANTHROPIC_BASE_URL": model_url,
            "ANTHROPIC_API_KEY": "test",
            "REJOINDER_TITLE_MODEL": "off",
            ledger.VARIABLE: str(self.folder / LEDGER),
            **(QUICK if self.options.quick else {}),
        }
        return environment(servers.database_url, servers.redis_url, **settings)

    @contextmanager
    def _model(self) -> Iterator[str]:
        """The model server, ready; gone afterwards."""
        command = [sys.executable, "-m", "scripts.chaos_parts.model_server"]
        arguments = [str(self.folder / MODEL_LOG), str(self.options.seed)]
        process = subprocess.Popen(
            [sys.executable, "-S", TETHERED, str(os.getpid()), *command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
            text=True,
        )
        try:
            yield cast("IO[str]", process.stdout).readline().strip()
        finally:
            process.kill()
            process.wait()
            cast("IO[str]", process.stdout).close()

    def _requests(self) -> list[dict[str, Any]]:
        path = self.folder / MODEL_LOG
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]


def _say(words: str) -> None:
    print(words, flush=True)


def _retry_given_up(engine: Engine, client: Client) -> int:
    """Do what a person does with a chat that was given up after too many kills: try again.

    Its queue waits for that, by design. An error of any other kind is left as it is, to be found.
    """
    with engine.connect() as connection:
        lost = connection.execute(_GIVEN_UP).scalars().all()
    for chat_id in lost:
        client.retry(chat_id)
    return len(lost)


def _wait_for_none(engine: Engine, query: Any, seconds: float) -> bool:
    """Whether a count came down to 0 in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(SQLAlchemyError), engine.connect() as connection:
            if connection.execute(query).scalar_one() == 0:
                return True
        time.sleep(0.1)
    return False


def _sweeping(client: Client) -> AbstractContextManager[None]:
    """What beat does every 5 s, more often."""

    def sweep() -> None:
        with suppress(Exception):  # the broker may be away
            client.app.send_task("rejoinder.sweep", queue="rejoinder.control", expires=5)

    return repeatedly(SWEEP_EVERY, sweep, "sweeping")
