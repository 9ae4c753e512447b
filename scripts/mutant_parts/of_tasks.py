"""Faults in `tasks/` around steps: causes, hints, heartbeat, recovery, sweeps, dispatch."""

from scripts.mutant_parts.mutant import Mutant

LEAVING = ("tests/integration/test_leaving.py",)
STOPPING = ("tests/scenarios/test_stopping_matrix.py",)
HINTS = ("tests/integration/test_hints.py",)
HEARTBEAT = ("tests/integration/test_runtime.py",)

OF_TASKS: tuple[Mutant, ...] = (
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
)
