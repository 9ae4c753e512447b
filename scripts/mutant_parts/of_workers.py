"""Faults of a worker process: heartbeat, hints, shutdown, timers, local dispatch, live parts."""

from scripts.mutant_parts.mutant import Mutant

LEAVING = ("tests/integration/test_leaving.py",)
STOPPING = ("tests/scenarios/test_stopping_matrix.py",)
HINTS = ("tests/integration/test_hints.py",)
HEARTBEAT = ("tests/integration/test_runtime.py",)
LOCAL = ("tests/unit/test_local_dispatch.py",)
SUSPECTS = ("tests/integration/test_suspects.py",)

OF_WORKERS: tuple[Mutant, ...] = (
    Mutant(
        "the leaving are interrupted",
        "tasks/runtime.py",
        "        self.cancel_all(Cause.SHUTDOWN)\n",
        "        self.cancel_all(Cause.INTERRUPT)\n",
        STOPPING,
        "SIGTERM and threads and not remapped",
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
        "words of an old attempt are kept",
        "tasks/live.py",
        "        elif _is_boundary(event):",
        "        elif _is_boundary(event) and not found and not history_version:",
        ("tests/integration/test_live.py",),
    ),
    Mutant(
        "a deadline is taken for a theft",
        "tasks/heartbeat.py",
        "step.cancellation.cancel(Cause.DEADLINE)",
        "step.cancellation.cancel(Cause.LEASE_LOST)",
        LEAVING,
    ),
    Mutant(
        "missed hints are not looked for",
        "tasks/hints.py",
        "                    self._look()\n",
        "                    continue\n",
        HINTS,
    ),
    Mutant(
        "who lost the connection hears no more hints",
        "tasks/hints.py",
        "                if not self._stopping.wait(AGAIN_SECONDS):\n",
        """                return
                if error:
""",
        HINTS,
    ),
    Mutant(
        "an unreadable hint stops the listener",
        "tasks/hints.py",
        "        except (ValueError, TypeError):\n",
        "        except ZeroDivisionError:\n",
        HINTS,
    ),
    Mutant(
        "what comes after a hole is told",
        "tasks/live.py",
        '        if part["seq"] - part["n"] != said:\n',
        "        if not part:\n",
        ("tests/integration/test_live.py",),
    ),
    Mutant(
        "two attempts become one answer",
        "tasks/live.py",
        '            if found and part["attempt"] != found[-1]["attempt"]:\n',
        "            if not part:\n",
        ("tests/integration/test_live.py",),
    ),
    Mutant(
        "the heartbeat takes a stop for a theft",
        "tasks/heartbeat.py",
        "                step.cancellation.cancel(Cause.INTERRUPT)\n",
        "                step.cancellation.cancel(Cause.LEASE_LOST)\n",
        HEARTBEAT,
    ),
    Mutant(
        "the heartbeat leaves a stolen chat at work",
        "tasks/heartbeat.py",
        "                step.cancellation.cancel(Cause.LEASE_LOST)\n",
        "                continue\n",
        HEARTBEAT,
    ),
    Mutant(
        "a claim on its way back is handed back",
        "tasks/heartbeat.py",
        "in without & (self._orphans | runtime.unwritten.keys()):",
        "in without:",
        HEARTBEAT,
    ),
    Mutant(
        "leases without a step stay",
        "tasks/heartbeat.py",
        "        self._orphans = without\n",
        "        self._orphans = set()\n",
        HEARTBEAT,
    ),
    Mutant(
        "who was swept away is not back",
        "tasks/heartbeat.py",
        """                self._register()
            leases""",
        """                pass
            leases""",
        HEARTBEAT,
    ),
    Mutant(
        "the deaf judge others",
        "tasks/heartbeat.py",
        "                self._failed_at = time.monotonic()\n",
        "",
        LEAVING,
    ),
    Mutant(
        "children are not told that the worker goes",
        "tasks/stopping.py",
        "            self._tell_children(0)\n",
        "",
        LEAVING,
        "children",
    ),
    Mutant(
        "children are not told to hurry",
        "tasks/stopping.py",
        "            self._tell_children(1)\n",
        "",
        LEAVING,
        "children",
    ),
    Mutant(
        "who starts in a leaving worker is not told",
        "tasks/stopping.py",
        """        if self.asked:
            drain()
""",
        "",
        LEAVING,
    ),
    Mutant(
        "who goes waits for background jobs",
        "tasks/stopping.py",
        "            self._orders.put(self._begin)\n",
        "            self._errands.put(self._begin)\n",
        LEAVING,
    ),
    Mutant(
        "one failed timer is the last",
        "tasks/timers.py",
        """        except Exception:
            log.exception(""",
        """        except ZeroDivisionError:
            log.exception(""",
        ("tests/unit/test_timers.py",),
    ),
    Mutant(
        "a later timer holds up an earlier one",
        "tasks/timers.py",
        "        _lock.notify()\n",
        "",
        ("tests/unit/test_timers.py",),
    ),
    Mutant(
        "a fork inherits its parent's timers",
        "tasks/timers.py",
        "    _lock, _waiting, _thread = threading.Condition(), [], None\n",
        "    _lock = threading.Condition()\n",
        ("tests/unit/test_timers.py",),
    ),
    Mutant(
        "a claim is taken by another step",
        "tasks/local_dispatch.py",
        "    if claim is None or claim.step_id != step_id:\n",
        "    if claim is None:\n",
        LOCAL,
    ),
    Mutant(
        "a claim that was not taken is forgotten",
        "tasks/local_dispatch.py",
        "        if received is None or _thread.claim is not None:\n",
        "        if received is None:\n",
        LOCAL,
    ),
    Mutant(
        "load never evens out",
        "tasks/local_dispatch.py",
        "root_id, _in_a_row(request) + 1, claim)",
        "root_id, _in_a_row(request), claim)",
        LOCAL,
    ),
    Mutant(
        "a leaving worker offers itself steps",
        "tasks/local_dispatch.py",
        " < MOST_IN_A_ROW and not stopping.this.asked",
        " < MOST_IN_A_ROW",
        LOCAL,
    ),
    Mutant(
        "a full worker takes one more",
        "tasks/local_dispatch.py",
        "return len(state.reserved_requests) < int(",
        "return len(state.reserved_requests) <= int(",
        LOCAL,
    ),
    Mutant(
        "what a child offers in vain is forgotten",
        "tasks/local_dispatch.py",
        "        stopping.this.errand(partial(local.fall_back, made))\n",
        "        log.info(made)\n",
        LOCAL,
    ),
    Mutant(
        "what Celery gives back is forgotten",
        "tasks/local_dispatch.py",
        "    if requeue and this is not None:\n",
        "    if requeue and this is None:\n",
        LOCAL,
    ),
    Mutant(
        "the plain way takes the fast one",
        "tasks/local_dispatch.py",
        "(settings.fast and takes_steps and",
        "(takes_steps and",
        LOCAL,
    ),
    Mutant(
        "an old history passes for a new one",
        "tasks/histories.py",
        "kept is not None and kept[0] == version else None",
        "kept is not None else None",
        ("tests/unit/test_histories.py",),
    ),
    Mutant(
        "background jobs keep a worker",
        "tasks/background.py",
        "            self._over = True\n",
        "",
        ("tests/unit/test_background.py",),
    ),
    Mutant(
        "a failed background job ends the loop",
        "tasks/background.py",
        "    except BaseException as error:  # noqa: BLE001  # see above\n",
        "    except ZeroDivisionError as error:\n",
        ("tests/unit/test_background.py",),
    ),
    Mutant(
        "a suspect that was left is forgotten",
        "tasks/claiming.py",
        "    after(LEFT_SECONDS, partial(_pass_on, runtime, to.chat_id))\n",
        "",
        SUSPECTS,
    ),
    Mutant(
        "the leaving keep the suspects that they left",
        "tasks/runtime.py",
        "partial(pass_on_all, self)",
        "partial(print, self)",
        SUSPECTS,
    ),
    Mutant(
        "two suspects in one process",
        "tasks/claiming.py",
        "    elif runtime.suspects.acquire(blocking=False):\n",
        "    elif runtime.suspects.acquire(blocking=False) or runtime.left is not None:\n",
        (*SUSPECTS, *LEAVING),
    ),
    Mutant(
        "without beat nobody sweeps",
        "tasks/heartbeat.py",
        "sweep = partial(sweep_once, self._runtime)",
        "sweep = partial(print, self._runtime)",
        HEARTBEAT,
    ),
)
