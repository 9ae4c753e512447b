"""Faults of what arrives and leaves: commands, dispatch, recovery, sweeps, database errors."""

from scripts.mutant_parts.mutant import Mutant

LEAVING = ("tests/integration/test_leaving.py",)
STOPPING = ("tests/scenarios/test_stopping_matrix.py",)
PUBLISHING = ("tests/integration/test_publishing.py",)
COMMANDS = ("tests/scenarios/test_commands.py",)
ONCE = ("tests/integration/test_commands_once.py",)
DATABASE = ("tests/integration/test_db_errors.py",)
LADDER = ("tests/integration/test_step_ladder.py",)
LOST = ("tests/integration/test_lost.py",)
SWEEP = ("tests/integration/test_sweep_task.py",)

OF_TASKS: tuple[Mutant, ...] = (
    Mutant(
        "the leaving drop what they were asked",
        "tasks/step.py",
        "        ring_again(self.request, chat_id)\n",
        "",
        ("tests/scenarios/test_shutdowns.py",),
        "rolling and threads",
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
        "who stops a step here does not tell it",
        "tasks/dispatch.py",
        "            runtime.cancel(hint.lease_id, hint.cause)\n",
        "            continue\n",
        PUBLISHING,
        "this_process",
    ),
    Mutant(
        "hints go nowhere",
        "tasks/dispatch.py",
        "            _safely(hints.send, runtime.redis, runtime.settings.redis_prefix, hint)\n",
        "            continue\n",
        PUBLISHING,
        "another_process",
    ),
    Mutant(
        "what cannot be published fails its caller",
        "tasks/dispatch.py",
        """    except Exception:
        log.exception("Could not publish""",
        """    except ZeroDivisionError:
        log.exception("Could not publish""",
        PUBLISHING,
        "fails_nobody",
    ),
    Mutant(
        "a result that was not stored is announced",
        "tasks/dispatch.py",
        "if _safely(store_result, chat_id, end)]",
        "if [_safely(store_result, chat_id, end)]]",
        PUBLISHING,
        "announced",
    ),
    Mutant(
        "a retry does not wait",
        "tasks/dispatch.py",
        """    if to.delay_seconds > 0:
        after""",
        """    if to.delay_seconds < 0:
        after""",
        PUBLISHING,
        "not_due",
    ),
    Mutant(
        "a claim that falls back is kept",
        "tasks/dispatch.py",
        "        _release(current(), claim)\n",
        "        dispatch(to)\n",
        PUBLISHING,
        "falls_back",
    ),
    Mutant(
        "nobody wakes who waits above",
        "tasks/dispatch.py",
        "        _safely(wake, runtime, effects.wake)\n",
        "        return\n",
        PUBLISHING,
        "parent",
    ),
    Mutant(
        "steps cannot be found by their turn",
        "tasks/dispatch.py",
        "        turn_id=str(to.turn_id),\n",
        "        turn_id=str(to.step_id),\n",
        PUBLISHING,
        "by_its_turn",
    ),
    Mutant(
        "a command is acknowledged before it is done",
        "tasks/requests.py",
        '    "acks_late": True,\n',
        '    "acks_late": False,\n',
        COMMANDS,
        "lost_with_its_worker and threads",
    ),
    Mutant(
        "a command is lost with its child",
        "tasks/requests.py",
        '    "reject_on_worker_lost": True,\n',
        '    "reject_on_worker_lost": False,\n',
        COMMANDS,
        "killed_child",
    ),
    Mutant(
        "a command that comes twice is done twice",
        "tasks/front_door.py",
        "request.key or _key_of(task.request.id)",
        "request.key or _key_of(None)",
        ONCE,
    ),
    Mutant(
        "a given key counts for nothing",
        "tasks/front_door.py",
        "key = request.key or _key_of(task.request.id)",
        "key = _key_of(task.request.id)",
        ONCE,
    ),
    Mutant(
        "a long task id is too long for a key",
        "tasks/front_door.py",
        "return key if len(key) <= MOST_KEY else",
        "return key if key else",
        ONCE,
    ),
    Mutant(
        "two deadlocked are an error",
        "models/db_errors.py",
        '    "40",  # transaction',
        '    "49",  # transaction',
        DATABASE,
    ),
    Mutant(
        "connections to a standby are kept",
        "models/db_errors.py",
        '"57P05", "25006", "25P03")',
        '"57P05", "25P03")',
        DATABASE,
    ),
    Mutant(
        "what can never be done is tried again",
        "models/db_errors.py",
        "    return is_disconnect(error) or _state(error).startswith(TRANSIENT)\n",
        "    return True\n",
        DATABASE,
    ),
    Mutant(
        "what could not be written is not handed back",
        "tasks/step.py",
        "        held.leave()\n",
        "        held.left = True\n",
        LADDER,
    ),
    Mutant(
        "a revoked turn goes on",
        "tasks/lost.py",
        "            all_effects = machine.interrupt_tree(tx, chat_id, turn_id=turn_id)\n",
        "            all_effects = ()\n",
        LOST,
    ),
    Mutant(
        "a revoked turn that waits stops the one at work",
        "tasks/lost.py",
        "        if queued_id is not None:\n",
        "        if queued_id is not None and not chat_id:\n",
        LOST,
    ),
    Mutant(
        "who died takes its words along",
        "tasks/lost.py",
        "step.lease_id, partial=partial)",
        "step.lease_id, partial=None)",
        LOST,
    ),
    Mutant(
        "whose process is gone waits for the sweep",
        "tasks/lost.py",
        """            publish(runtime, effects)


def rebuild""",
        """            log.info(effects)


def rebuild""",
        LOST,
    ),
    Mutant(
        "a message lost with its process is not sent again",
        "tasks/lost.py",
        "            if step.turn_id is not None:  # gone",
        "            if step.turn_id is None:  # gone",
        LEAVING,
        "before_it_has",
    ),
    Mutant(
        "the deaf bury the living",
        "tasks/sweeping.py",
        "recovering=runtime.heartbeat.may_judge",
        "recovering=runtime is not None",
        SWEEP,
    ),
    Mutant(
        "a sweep recovers and tells nobody",
        "tasks/sweeping.py",
        """    for effects in swept.effects:
        publish(runtime, effects)
""",
        """    for effects in swept.effects:
        log.info(effects)
""",
        SWEEP,
    ),
    Mutant(
        "a lost message stays lost",
        "tasks/sweeping.py",
        "    dispatch_all(swept.dispatches)\n",
        "",
        SWEEP,
    ),
    Mutant(
        "an end that nobody told stays untold",
        "tasks/sweeping.py",
        "    announce(runtime, swept.ended)\n",
        "",
        SWEEP,
    ),
    Mutant(
        "answers that got lost are not looked for",
        "tasks/sweeping.py",
        "    look_for_answers(runtime)\n",
        "",
        SWEEP,
    ),
    Mutant(
        "sweeps pile up",
        "tasks/sweeping.py",
        "        if now - _last < NOT_AGAIN_WITHIN:\n",
        "        if now < _last:\n",
        SWEEP,
    ),
    Mutant(
        "a sweep without a database is an error",
        "tasks/sweeping.py",
        """        if not is_transient(error):
            raise
        log.warning("The database went away during""",
        """        if is_transient(error):
            raise
        log.warning("The database went away during""",
        SWEEP,
    ),
)
