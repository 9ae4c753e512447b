"""Faults in `models/`: transitions, fences, claims, sweeps."""

from scripts.mutant_parts.mutant import Mutant

RACES = "tests/integration/test_races.py"
SWEEPS = "tests/integration/test_races_sweeps.py"
LEAVING = ("tests/integration/test_leaving.py",)
OTHERS = tuple(f"tests/integration/test_{n}.py" for n in ("calls", "turns", "sending", "trees"))
AGENTS = ("tests/integration/test_agents.py",)
BUDGETS = ("tests/integration/test_budgets.py",)
OWNER = ("tests/integration/test_owner.py",)
_M = "models/machine/"

OF_MACHINE: tuple[Mutant, ...] = (
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
        "turn_id, state=state, ended_at=change.now, answer_id=answer_id, error=error",
        "turn_id, state='open', ended_at=None, answer_id=answer_id, error=error",
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
        "a version is as good as a lease",
        _M + "one_statement.py",
        " AND lease_id = %(lease_id)s",
        "",
        OWNER,
        "failover",
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
        '        if not connection.execute(_HEARTBEAT, {"worker_id": worker_id}).rowcount:\n'
        "            return None\n"
        '        rows = connection.execute(_LEASES, {"worker_id": worker_id}).all()\n',
        '        rows = connection.execute(_LEASES, {"worker_id": worker_id}).all()\n'
        '        if not connection.execute(_HEARTBEAT, {"worker_id": worker_id}).rowcount:\n'
        "            return None\n",
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
        "a suspect is never alone",
        "models/machine/claim.py",
        "AND (c.crashes < CAST(%(suspect_at)s AS integer) OR CAST(%(suspects)s AS boolean))",
        "AND (c.crashes < CAST(%(suspect_at)s AS integer) OR %(suspects)s IS NOT NULL)",
        LEAVING,
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
        "tx, parent.owner, caller.key, request, lambda: _spawn",
        "tx, parent.owner, str(id(caller)), request, lambda: _spawn",
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
        "(recover, expire, wake, redispatch, purge)",
        "(recover, expire, redispatch, purge)",
        AGENTS,
        "lost",
    ),
)
