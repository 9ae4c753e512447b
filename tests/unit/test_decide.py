"""`decide` is total, and looks at nothing but its snapshot."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rejoinder.core.decide import (
    Action,
    Call,
    Compact,
    Entry,
    Finish,
    Generate,
    Park,
    Policy,
    RunTools,
    Snapshot,
    StopAtLimit,
    decide,
)
from rejoinder.core.messages import Approval, CallKind, CallState, Role, TurnKind
from rejoinder.core.model import StopReason
from rejoinder.core.parts import Part, Text, ToolCall, ToolResult

POLICY = Policy(max_steps=10)
USER = Entry(1, Role.USER, (Text("hello"),))


def entry(role: Role, *parts: Part, stop: str | None = None) -> Entry:
    return Entry(2, role, parts, stop=stop)


def call(kind: CallKind, state: CallState = CallState.REQUESTED, call_id: str = "c") -> Call:
    return Call(call_id, "look_up", {}, kind, state)


def decided(*history: Entry, calls: tuple[Call, ...] = (), steps: int = 0) -> Action:
    return decide(Snapshot(TurnKind.MESSAGE, steps, history, calls), POLICY)


def test_a_users_message_is_answered() -> None:
    assert decided(USER) == Generate()


def test_a_finished_answer_ends_the_turn_without_another_model_call() -> None:
    assert decided(USER, entry(Role.ASSISTANT, Text("hi"), stop=StopReason.END)) == Finish()


def test_a_paused_answer_goes_on() -> None:
    assert decided(USER, entry(Role.ASSISTANT, Text("…"), stop=StopReason.PAUSE)) == Generate()


def test_results_of_tools_are_shown_to_the_model() -> None:
    asked = entry(Role.ASSISTANT, ToolCall("c", "look_up", {}))
    assert decided(USER, asked, entry(Role.TOOL, ToolResult("c", "ok"))) == Generate()


def test_local_calls_are_run_before_anybody_is_waited_for() -> None:
    local = call(CallKind.LOCAL)
    client = call(CallKind.CLIENT, call_id="d")
    task = call(CallKind.EXTERNAL, CallState.STARTED, "e")
    assert decided(USER, calls=(client, task, local)) == RunTools((local,))
    done = call(CallKind.LOCAL, CallState.FINISHED)
    assert decided(USER, calls=(client, task, done)) == Park(CallKind.CLIENT)
    answered = call(CallKind.CLIENT, CallState.FINISHED, "d")
    assert decided(USER, calls=(answered, task, done)) == Park(CallKind.EXTERNAL)


def test_another_apps_task_is_started_before_anybody_is_waited_for() -> None:
    client, task = call(CallKind.CLIENT, call_id="d"), call(CallKind.EXTERNAL, call_id="e")
    assert decided(USER, calls=(client, task)) == RunTools((task,))


def test_what_wants_approval_is_not_run_but_asked_about() -> None:
    local = call(CallKind.LOCAL)
    wanted = replace(call(CallKind.LOCAL, call_id="d"), approval=Approval.WANTED)
    granted = replace(wanted, approval=Approval.GRANTED)
    assert decided(USER, calls=(wanted, local)) == RunTools((local,))
    assert decided(USER, calls=(wanted,)) == Park(CallKind.CLIENT)
    assert decided(USER, calls=(granted,)) == RunTools((granted,))
    external = replace(call(CallKind.EXTERNAL), approval=Approval.WANTED)
    assert decided(USER, calls=(external,)) == Park(CallKind.CLIENT)


def test_children_are_waited_for_asleep() -> None:
    assert decided(USER, calls=(call(CallKind.CHILDREN),)) == Park(CallKind.EXTERNAL)


def test_a_turn_that_does_not_end_is_stopped_at_the_limit() -> None:
    assert decided(USER, steps=9) == Generate()
    assert decided(USER, steps=10) == StopAtLimit(10)
    assert decided(USER, entry(Role.ASSISTANT, Text("hi")), steps=10) == Finish()


def test_a_turn_for_compaction_compacts() -> None:
    assert decide(Snapshot(TurnKind.COMPACTION, 0, (USER,)), POLICY) == Compact()


texts = st.builds(Text, st.text(max_size=3))
calls = st.builds(ToolCall, st.sampled_from("abc"), st.just("t"), st.just({}), st.booleans())
results = st.builds(ToolResult, st.sampled_from("abc"), st.text(max_size=3))
entries = st.builds(
    Entry,
    st.integers(1, 9),
    st.sampled_from(Role),
    st.lists(texts | calls | results, max_size=3).map(tuple),
    stop=st.sampled_from([None, *map(str, StopReason), "unheard-of"]),
)
snapshots = st.builds(
    Snapshot,
    st.sampled_from(TurnKind),
    st.integers(0, 12),
    st.lists(entries, max_size=4).map(tuple),
    st.lists(
        st.builds(
            lambda approval, *given: replace(call(*given), approval=approval),
            st.sampled_from([None, *Approval]),
            st.sampled_from(CallKind),
            st.sampled_from(CallState),
        ),
        max_size=4,
    ).map(tuple),
)


@given(snapshots)
def test_every_snapshot_has_one_answer_that_keeps_the_rules(snapshot: Snapshot) -> None:
    action = decide(snapshot, POLICY)
    assert action == decide(snapshot, POLICY)
    unanswered = [c for c in snapshot.calls if not c.answered]
    assert isinstance(action, RunTools | Park) == bool(snapshot.calls)
    if isinstance(action, RunTools):
        assert bool(action.calls) == bool(unanswered)
        assert all(c in unanswered and not c.asks for c in action.calls)
    if isinstance(action, Park):
        assert (action.waits_for is CallKind.CLIENT) == any(c.asks for c in unanswered)
        assert not any(c.kind is CallKind.LOCAL and not c.asks for c in unanswered)
    if isinstance(action, Generate):
        assert snapshot.steps < POLICY.max_steps
