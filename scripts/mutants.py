"""make mutants: break the machine on purpose, one line at a time, and see that some test fails.

Each mutant is applied to a copy of the sources; the tests named with it run against that copy. A
mutant that survives, or whose line is no longer there, fails the command. ARGS=NAME runs one.
`tests/arch` checks that every line still exists, so that the list cannot rot.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
COPIED = ("models", "rejoinder", "tasks", "tests", "scripts", "celeryconfig.py", "pyproject.toml")
MATRIX, RACES = "tests/integration/matrix", "tests/integration/test_races.py"
SWEEPS = "tests/integration/test_races_sweeps.py"
LEAVING = ("tests/integration/test_leaving.py",)
STOPPING = ("tests/scenarios/test_stopping_matrix.py",)
OTHERS = tuple(f"tests/integration/test_{n}.py" for n in ("calls", "turns", "sending", "trees"))
AGENTS = ("tests/integration/test_agents.py",)
BUDGETS = ("tests/integration/test_budgets.py",)
OWNER = ("tests/integration/test_owner.py",)
AT_ONCE = 2
TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Mutant:
    """One deliberate fault, and the tests that have to notice it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = (MATRIX,)
    only: str = ""
    """Which of them, as pytest's -k takes it."""


_M = "models/machine/"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "the fence ignores the lease",
        _M + "change.py",
        "if fence is not None and (chat.lease_id, chat.history_version) != (",
        "if fence is not None and (fence.lease_id, chat.history_version) != (",
        (SWEEPS,),
    ),
    Mutant(
        "the fence ignores history",
        _M + "change.py",
        "if fence is not None and (chat.lease_id, chat.history_version) != (",
        "if fence is not None and (chat.lease_id, fence.history_version) != (",
        OTHERS,
    ),
    Mutant(
        "no new version",
        _M + "change.py",
        "chat.snapshot_version = self.version",
        "chat.snapshot_version = max(chat.snapshot_version, 1)",
    ),
    Mutant(
        "history changes in silence",
        _M + "change.py",
        "chat.history_version = self.version",
        "chat.history_version = chat.history_version",
    ),
    Mutant(
        "the promotion is forgotten",
        _M + "queue.py",
        "    if change.chat.queue_length:\n        promote_head(change)",
        "    if change.chat.queue_length:\n        clear_queue(change)",
    ),
    Mutant(
        "the newest is promoted",
        _M + "queue.py",
        ".order_by(QueuedMessage.position)\n        .limit(1)",
        ".order_by(QueuedMessage.position.desc())\n        .limit(1)",
    ),
    Mutant(
        "a stop leaves calls open",
        _M + "calls.py",
        "    for call in unanswered(calls):\n        started",
        "    for call in unanswered(calls)[:-1]:\n        started",
    ),
    Mutant(
        "results in the wrong order",
        _M + "calls.py",
        "for call in calls if call.result is not None)",
        "for call in reversed(calls) if call.result is not None)",
    ),
    Mutant(
        "the turn never ends",
        _M + "history.py",
        ".values(state=state, ended_at=change.now, answer_id=answer_id, error=error)",
        ".values(answer_id=answer_id)",
    ),
    Mutant(
        "a crash runs every call again",
        _M + "calls.py",
        "if call.delivery is Delivery.IDEMPOTENT:",
        "if call.delivery in Delivery:",
        OTHERS,
    ),
    Mutant(
        "deploys count as crashes",
        _M + "by_worker.py",
        "        _answer(change, results, untouched)\n        queue.go_on(change)",
        "        _answer(change, results, untouched)\n        change.chat.crashes += 1\n"
        "        queue.go_on(change)",
    ),
    Mutant(
        "crashes are not counted",
        _M + "by_sweeper.py",
        "chat.crashes += 1",
        "chat.crashes += 0",
    ),
    Mutant(
        "recovery takes any lease",
        _M + "by_sweeper.py",
        "if chat.lease_id != lease_id:",
        "if chat.lease_id is None:",
        (*OTHERS, SWEEPS),
    ),
    Mutant(
        "an early wake-up is lost",
        _M + "by_worker.py",
        "if woken or not outside:",
        "if not outside:",
        OTHERS,
    ),
    Mutant(
        "the error stays",
        _M + "change.py",
        "chat.last_error = failure.to_json() if failure else None",
        "chat.last_error = failure.to_json() if failure else chat.last_error",
    ),
    Mutant(
        "the dead may claim",
        "models/machine/claim.py",
        "AND w.seen_at > clock_timestamp() - CAST(%(dead_after)s AS interval)",
        "AND CAST(%(dead_after)s AS interval) >= interval '0'",
        ("tests/integration/test_second_thoughts.py",),
    ),
    Mutant(
        "an owner writes over others",
        _M + "one_statement.py",
        "AND snapshot_version = %(expected)s",
        "AND snapshot_version >= %(expected)s",
        OWNER,
    ),
    Mutant(
        "a claim trusts old news",
        _M + "claim.py",
        "fresh = row.version_before == row.snapshot_version - 1",
        "fresh = row.version_before < row.snapshot_version",
        OWNER,
    ),
    Mutant(
        "sweepers do not skip",
        "models/claims.py",
        " LIMIT :limit\n   FOR NO KEY UPDATE OF w, c SKIP LOCKED",
        " LIMIT :limit\n   FOR NO KEY UPDATE OF w, c",
        (SWEEPS,),
    ),
    Mutant(
        "the heartbeat looks too early",
        "models/claims.py",
        "UPDATE rejoinder.workers SET seen_at = clock_timestamp() WHERE id = :worker_id;\n"
        "SELECT w.id AS worker_id, c.id AS chat_id, c.lease_id, c.step_id, c.history_version,"
        " c.status\n"
        "  FROM rejoinder.workers AS w LEFT JOIN",
        "WITH w AS (UPDATE rejoinder.workers SET seen_at = clock_timestamp()"
        " WHERE id = :worker_id RETURNING id)\n"
        "SELECT w.id AS worker_id, c.id AS chat_id, c.lease_id, c.step_id, c.history_version,"
        " c.status\n"
        "  FROM w LEFT JOIN",
        (SWEEPS,),
    ),
    Mutant(
        "a child is born into a closing tree",
        _M + "by_app.py",
        'with_for_update={"key_share": True}, populate_existing=True',
        "populate_existing=True",
        (RACES,),
    ),
    Mutant(
        "a queued message overtakes the backlog",
        _M + "by_app.py",
        "        if change.chat.queue_length:\n            queue.promote_head",
        "        if change.chat.queue_length > 99:\n            queue.promote_head",
    ),
    Mutant(
        "the leaving are interrupted",
        "tasks/runtime.py",
        "        self.cancel_all(Cause.SHUTDOWN)\n",
        "        self.cancel_all(Cause.INTERRUPT)\n",
        STOPPING,
        "SIGTERM and threads and not remapped",
    ),
    Mutant(
        "the leaving drop what they were asked",
        "tasks/step.py",
        "        ring_again(self.request, chat_id)\n",
        "",
        ("tests/scenarios/test_shutdowns.py",),
        "rolling and threads",
    ),
    Mutant(
        "a late claim is kept",
        "tasks/runtime.py",
        "if stopping.this.asked:  # the claim",
        "if stopping.this.asked and not self:  # the claim",
        LEAVING,
    ),
    Mutant(
        "an early hint is lost",
        "tasks/runtime.py",
        "if (early := self._early.pop(lease_id, None)) is not None:",
        "if (early := self._early.pop(chat_id, None)) is not None:",
        LEAVING,
    ),
    Mutant(
        "hints are not sent",
        "tasks/dispatch.py",
        "        if hint.worker_id == runtime.worker_id:",
        "        if hint.worker_id:",
        ("tests/scenarios/test_hints.py",),
    ),
    Mutant(
        "a revoked step is only forgotten",
        "tasks/lost.py",
        "for step in claims.by_step(runtime.engine, ids)\n        if",
        "for step in claims.by_step(runtime.engine, [])\n        if",
        STOPPING,
        "step and threads",
    ),
    Mutant(
        "a suspect is never alone",
        "models/machine/claim.py",
        "AND (c.crashes < CAST(%(suspect_at)s AS integer) OR CAST(%(suspects)s AS boolean))",
        "AND (c.crashes < CAST(%(suspect_at)s AS integer) OR %(suspects)s IS NOT NULL)",
        LEAVING,
    ),
    Mutant(
        "words of an old attempt are kept",
        "tasks/live.py",
        "        elif _is_boundary(event):",
        "        elif _is_boundary(event) and not found and not history_version:",
        ("tests/integration/test_live.py",),
    ),
    Mutant(
        "a budget that was raised meanwhile is missed",
        _M + "by_worker.py",
        "    if allowed != budget:",
        "    if allowed is budget:",
        BUDGETS,
    ),
    Mutant(
        "nobody waits for who changes the budget",
        "models/trees.py",
        "        .with_for_update(key_share=True)\n    ).one_or_none()",
        "    ).one_or_none()",
        BUDGETS,
    ),
    Mutant(
        "an answer that is not kept is free",
        _M + "history.py",
        "    count(change, message and replace(message, runtime_ms=None))",
        "    return",
        BUDGETS,
    ),
    Mutant(
        "a model renames what a person has named",
        _M + "by_app.py",
        "if source is TitleSource.MODEL and chat.title_source is not TitleSource.WORDS:",
        "if source is TitleSource.MODEL and chat.title_source is TitleSource.MODEL:",
        BUDGETS,
    ),
    Mutant(
        "a deadline is taken for a theft",
        "tasks/runtime.py",
        "step.cancellation.cancel(Cause.DEADLINE)",
        "step.cancellation.cancel(Cause.LEASE_LOST)",
        LEAVING,
    ),
    Mutant(
        "a tree is changed without its root's lock",
        _M + "trees.py",
        "    tx.execute(select(Chat.id).where(Chat.id == root_id).with_for_update(key_share=True))",
        "    del root_id",
        ("tests/integration/test_giving_way.py",),
        "circle",
    ),
    Mutant(
        "a turn gives way alone",
        _M + "trees.py",
        "if own.changed and (stopped or edited):",
        "if own.changed and edited:",
        ("tests/integration/test_giving_way.py",),
        "stops_all_below",
    ),
    Mutant(
        "a stopped turn goes on spawning",
        _M + "agents.py",
        "or chat.turn_id != caller.turn_id or chat.status is not Status.RUNNING",
        "",
        AGENTS,
        "slips",
    ),
    Mutant(
        "a repeated spawn is another one",
        _M + "agents.py",
        "if (before := keys.used(tx, parent.owner, caller.key)) is not None:",
        "if (before := keys.used(tx, parent.owner, 'no such key')) is not None:",
        AGENTS,
        "repeated_spawn",
    ),
    Mutant(
        "nobody wakes a parent",
        _M + "by_sweeper.py",
        "return all(busy.intersection(call.waits_for or ()) for call in awaited)",
        "return bool(awaited) or bool(busy)",
        AGENTS,
        "last_of_several",
    ),
    Mutant(
        "a lost wake-up stays lost",
        "models/sweep.py",
        "(recover, expire, wake, redispatch) if",
        "(recover, expire, redispatch) if",
        AGENTS,
        "lost",
    ),
)


def apply(mutant: Mutant, root: Path) -> None:
    """Write the fault into a copy of the sources."""
    path = root / mutant.file
    source = path.read_text(encoding="utf-8")
    if source.count(mutant.old) != 1:
        found = source.count(mutant.old)
        raise LookupError(f"{mutant.name}: its line is in {mutant.file} {found} times")
    path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")


def survives(mutant: Mutant | None) -> bool:
    """Whether the tests pass although the code is broken (or, for None, as it is)."""
    with tempfile.TemporaryDirectory(prefix="rejoinder-mutant-") as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
        tests: tuple[str, ...] = (MATRIX, *OTHERS, RACES)
        only: tuple[str, ...] = ()
        if mutant is not None:
            apply(mutant, copy)
            tests = mutant.tests
            only = ("-k", mutant.only) if mutant.only else ()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests, *only],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            capture_output=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
    if done.returncode not in (0, 1):  # neither passed nor failed: it did not run
        raise RuntimeError(done.stdout.decode() + done.stderr.decode())
    return done.returncode == 0


def main(names: list[str]) -> int:
    """Try the mutants, print a line for each."""
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    if not chosen:
        print(f"no such mutant; there are: {', '.join(mutant.name for mutant in MUTANTS)}")
        return 2
    if not names and not survives(None):
        print("the tests fail without any fault; mend that first")
        return 1
    alive = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for mutant, survived in zip(chosen, pool.map(survives, chosen), strict=True):
            alive += survived
            print(f"{'SURVIVED' if survived else 'caught':9} {mutant.name}", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} faults noticed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
