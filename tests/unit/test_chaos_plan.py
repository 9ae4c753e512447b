"""Plans, schedules and figures of `make chaos`: the same seed gives the same run."""

import json
import random
from itertools import pairwise
from typing import Any

from scripts.chaos_parts.conversation import Due, asks_for_summary, due
from scripts.chaos_parts.drawing import ALL, OWN_TOOLS, Mix, draw
from scripts.chaos_parts.journal import Journal, Stop
from scripts.chaos_parts.ledger import CLIENT_TOOLS, TOOLS
from scripts.chaos_parts.picture import Move
from scripts.chaos_parts.plan import SPAWN, WAIT, Plan, found_in
from scripts.chaos_parts.recovery import Figures, figures, measure
from scripts.chaos_parts.schedule import MOST_RESTARTS, ONLY_PREFORK, RESTARTS, Kind
from scripts.chaos_parts.schedule import draw as draw_faults

A, B = draw("c0-t1", random.Random(1)), draw("c0-t2", random.Random(2))


def user(*texts: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


def results(*texts: str) -> dict[str, Any]:
    given: dict[str, Any] = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}
    return {"role": "user", "content": [given, *user(*texts)["content"]]}


def assistant() -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": "…"}]}


def test_a_plan_survives_its_way_through_a_message() -> None:
    assert found_in(A.text) == A
    assert found_in("Hello.") is None
    assert draw("c0-t1", random.Random(1)) == A


def test_the_model_is_at_the_last_plan_and_counts_the_results_since() -> None:
    assert due([user(A.text)]) == Due(A, 0)
    assert due([user(A.text), assistant(), results()]) == Due(A, 1)
    assert due([user(A.text), assistant(), results(), assistant(), results()]) == Due(A, 2)
    assert due([user(A.text), assistant(), results(B.text)]) == Due(B, 0)
    assert due([user(A.text, B.text), assistant(), results()]) == Due(B, 1)
    assert due([user(f"{A.text}\n\n{B.text}")]) == Due(B, 0)
    assert due([user("Hello.")]) is None


def test_a_plan_goes_on_behind_a_summary() -> None:
    before = due([user(A.text), assistant(), results()])
    assert before is not None
    told = user(before.summary, f"The newest message: {A.text}")
    assert due([told]) == Due(A, 1, fresh=True)
    assert due([told, assistant(), results()]) == Due(A, 2)
    assert due([told, user(B.text)]) == Due(B, 0)
    assert due([user(before.summary, A.text, B.text)]) == Due(B, 0)


def test_a_summary_is_asked_for_at_the_end() -> None:
    ask = "Stop here, and write a summary of this conversation. It will stand"
    assert asks_for_summary([user(A.text), assistant(), results(ask)])
    assert not asks_for_summary([user(A.text, ask), assistant(), results()])


def test_the_chats_below_are_known_from_the_results_and_from_summaries() -> None:
    one, two = (f"{n}2345678-1234-1234-1234-123456789012" for n in (1, 2))
    made = json.dumps({"chat_id": one, "status": "pending"})
    asks = {"type": "tool_use", "id": "toolu_1", "name": SPAWN, "input": {}}
    answer = {"type": "tool_result", "tool_use_id": "toolu_1", "content": made}
    other = {"type": "tool_result", "tool_use_id": "toolu_2", "content": f'"chat_id": "{two}"'}
    seen = due(
        [
            user(A.text),
            {"role": "assistant", "content": [asks]},
            {"role": "user", "content": [answer, other]},
        ]
    )
    assert seen == Due(A, 1, (one,))
    assert due([user(seen.summary)]) == Due(A, 1, (one,), fresh=True)


def test_every_plan_has_an_answer_and_names_of_its_own() -> None:
    drawn = [draw(f"c0-t{n}", random.Random(n)) for n in range(50)]
    plans = [plan for each in drawn for plan in (each, *each.children)]
    assert len({plan.answer for plan in plans}) == len(plans) > len(drawn)
    names = [_names(plan) for plan in plans]
    assert len({name for each in names for name in each}) == sum(map(len, names))


def _names(plan: Plan) -> list[str]:
    return [plan.nonce(s, c) for s, step in enumerate(plan.steps) for c in range(len(step))]


def test_plans_hold_what_is_in_the_mix_and_nothing_else() -> None:
    def tools(mix: frozenset[Mix]) -> set[str]:
        plans = [draw(f"c0-t{n}", random.Random(n), mix) for n in range(300)]
        return {call.tool for plan in plans for step in plan.steps for call in step}

    assert tools(frozenset()) == set(OWN_TOOLS)
    assert tools(frozenset({Mix.TASKS})) == {*OWN_TOOLS, "task_once", "task_again"}
    own = {each.name for each in TOOLS} | {each["name"] for each in CLIENT_TOOLS}
    assert tools(ALL) == own | {SPAWN, WAIT}


def test_a_seed_gives_the_same_faults_again() -> None:
    assert draw_faults(7, 60, "prefork") == draw_faults(7, 60, "prefork")
    assert draw_faults(7, 60, "prefork") != draw_faults(8, 60, "prefork")


def test_faults_come_every_two_or_three_seconds_and_servers_fall_at_most_twice() -> None:
    for seed in range(30):
        planned = draw_faults(seed, 300, "threads")
        gaps = [b.at - a.at for a, b in pairwise(planned)]
        assert all(2 <= gap <= 3 for gap in gaps)
        assert sum(each.kind in RESTARTS for each in planned) <= MOST_RESTARTS
        assert not {each.kind for each in planned} & ONLY_PREFORK


def test_every_kind_of_fault_comes_up() -> None:
    drawn = {each.kind for seed in range(20) for each in draw_faults(seed, 120, "prefork")}
    assert drawn == set(Kind)


def test_figures_of_a_sample() -> None:
    assert figures([]) is None
    assert figures([3.0, 1.0, 2.0]) == Figures(3, 2.0, 3.0, 3.0)


def move(at: float, old: str, new: str, lease: str | None = None, pid: int = 1) -> Move:
    before, after = (None, lease) if new == "running" else (lease, None)
    return Move(int(at * 10), at, "chat", "turn", old, new, 1, 2, before, after, f"host:{pid}")


def test_a_kill_is_measured_until_another_lease_runs() -> None:
    journal = Journal()
    journal.fault(Kind.WORKER_KILL, "step1", ["chat"]).at = 10.0
    moves = [
        move(9, "pending", "running", "one"),
        move(25, "running", "pending", "one"),
        move(26, "pending", "running", "two", pid=2),
    ]
    (figure,) = measure(journal, {"chat": moves}, []).values()
    assert figure.longest == 16.0


def test_a_release_is_measured_until_another_process_runs_it() -> None:
    journal = Journal()
    journal.fault(Kind.WORKER_TERM, "step1", ["chat"], [1]).at = 10.0
    moves = [
        move(9, "pending", "running", "one"),
        move(20, "running", "pending", "one"),
        move(20.5, "pending", "running", "two", pid=2),
    ]
    (figure,) = measure(journal, {"chat": moves}, []).values()
    assert figure.longest == 0.5


def test_a_stop_is_measured_until_the_chat_is_free() -> None:
    journal = Journal(stops=[Stop("chat", "turn", 10.0, "driver")])
    moves = [
        move(9, "pending", "running", "one"),
        move(10.1, "running", "interrupting", "one"),
        move(10.3, "interrupting", "waiting", "one"),
    ]
    (figure,) = measure(journal, {"chat": moves}, []).values()
    assert round(figure.longest, 3) == 0.3
