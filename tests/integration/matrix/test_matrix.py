"""The matrix: every status, with and without a queue, archived or not, meets every transition.

What must happen stands in `table.py`, in a literal of its own; what "happens" means, column by
column, in `expected.py`. A cell that nobody wrote fails here, and so does one that the literal and
`rejoinder/core/state.py` see differently.
"""

from __future__ import annotations

from itertools import product

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from models import machine
from models.machine import NewChat
from rejoinder.core.effects import Dispatch, EventKind
from rejoinder.core.errors import Refused, Rejected, Stale, StopRequested
from rejoinder.core.state import AT_REST, TABLE, Actor, Status, Transition, possible, targets
from tests.chats import World, words
from tests.integration.matrix import stage
from tests.integration.matrix.expected import EXPECTED, staged
from tests.integration.matrix.observed import Rows, check, check_unchanged
from tests.integration.matrix.table import (
    ALSO,
    CELLS,
    COLUMNS,
    IMPOSSIBLE,
    REFUSED,
    STATES,
    UNCHANGED,
    Cell,
    State,
    cells,
)

BY_WORD = {word: [c for c in cells() if c.word == word] for word in (REFUSED, UNCHANGED)}
ALLOWED = [cell for cell in cells() if cell.word not in BY_WORD]


def test_every_combination_has_a_cell() -> None:
    every = {State(*each) for each in product(Status, (False, True), (False, True))}
    assert set(STATES) | set(IMPOSSIBLE) == every
    assert set(CELLS) == set(Transition) - {Transition.CREATE}
    assert len(list(cells())) == len(CELLS) * len(STATES)
    assert set(EXPECTED) == set(CELLS)


def test_the_literal_and_the_core_agree_about_what_is_possible() -> None:
    for state in (*STATES, *IMPOSSIBLE):
        told = possible(state.status, queued=state.queued, archived=state.archived)
        assert told is (state in STATES), state


@pytest.mark.parametrize("transition", CELLS)
def test_the_literal_and_the_core_agree_about_every_move(transition: Transition) -> None:
    for cell in cells():
        if cell.transition is not transition:
            continue
        state = cell.state
        expected = set() if cell.word == REFUSED else {cell.target}
        expected |= ALSO.get((transition, cell.column), set())
        told = targets(transition, state.status, queued=state.queued, archived=state.archived)
        assert set(told) == expected | _repaired(cell), cell


def _repaired(cell: Cell) -> set[Status]:
    """An operator may find anything, in `error` too."""
    return {Status.ERROR} if cell.transition is Transition.RECONCILE else set()


@pytest.mark.parametrize("column", COLUMNS)
def test_the_stage_is_what_the_expectations_start_from(world: World, column: str) -> None:
    state = State.named(column)
    stage.set_up(world, state, Transition.SEND)
    rows, expected = Rows.of(world), staged(state)
    assert rows.chat["status"] == expected.status
    assert rows.chat["archived"] is expected.archived
    assert (rows.chat["attempt"], rows.chat["crashes"]) == (expected.attempt, expected.crashes)
    assert (rows.queue_words, rows.call_words) == (expected.queue, expected.calls)


@pytest.mark.parametrize("cell", ALLOWED, ids=str)
def test_an_allowed_transition_has_every_effect_and_no_other(world: World, cell: Cell) -> None:
    scene = stage.set_up(world, cell.state, cell.transition)
    before, expected = Rows.of(world), EXPECTED[cell.transition](cell.state)
    assert expected.status is cell.target
    if cell.transition is Transition.CLAIM:
        claimed = stage.claim(world, scene)
        after = Rows.of(world)
        assert claimed is not None
        assert claimed.fence.lease_id == after.chat["lease_id"]
        assert claimed.fence.history_version == after.chat["history_version"]
        assert claimed.snapshot_version == after.chat["snapshot_version"]
        assert claimed.crashes == after.chat["crashes"]
        assert after.chat["step_id"] not in (None, before.chat["step_id"])
        assert (claimed.turn_id, claimed.attempt) == (before.chat["turn_id"], expected.attempt)
        assert after.chat["worker_id"] == world.worker_id
        check(before, after, None, expected)
        return
    effects = stage.perform(world, scene, cell.transition)
    check(before, Rows.of(world), effects, expected)


@pytest.mark.parametrize("cell", BY_WORD[UNCHANGED], ids=str)
def test_a_polite_no_op_writes_nothing(world: World, cell: Cell) -> None:
    scene = stage.set_up(world, cell.state, cell.transition)
    before = Rows.of(world)
    effects = stage.perform(world, scene, cell.transition)
    check_unchanged(before, Rows.of(world), effects)


@pytest.mark.parametrize("cell", BY_WORD[REFUSED], ids=str)
def test_a_refused_transition_says_what_to_do_and_changes_nothing(world: World, cell: Cell) -> None:
    scene = stage.set_up(world, cell.state, cell.transition)
    before = world.dump()
    if cell.transition is Transition.CLAIM:
        assert stage.claim(world, scene) is None
    else:
        with pytest.raises(Refused) as refused:
            stage.perform(world, scene, cell.transition)
        assert type(refused.value) is _refusal(cell)
        assert refused.value.reason
        assert refused.value.advice
        assert refused.value.advice in str(refused.value)
        if cell.state.archived and type(refused.value) is Rejected:
            assert refused.value.advice == "unarchive it first"
    assert world.dump() == before


def _refusal(cell: Cell) -> type[Refused]:
    """By what the caller should do: an app asks differently, a worker leaves or stops."""
    by = TABLE[cell.transition].by
    if by[0] in (Actor.APP, Actor.OPERATOR, Actor.CALLBACK):
        return Rejected
    stopping = cell.state.status is Status.INTERRUPTING and Actor.WORKER in by
    return StopRequested if stopping else Stale


@pytest.mark.parametrize("state", IMPOSSIBLE, ids=str)
def test_an_impossible_combination_is_refused_by_postgres_itself(
    world: World, state: State
) -> None:
    near = State(state.status, queued=state.queued, archived=False)
    if near not in STATES:
        near = State(state.status, queued=False, archived=False)
    scene = stage.set_up(world, near, Transition.SEND)
    before = world.dump()
    check = "waiting_has_no_queue" if state.status in AT_REST else "archived_at_rest"
    update = text("UPDATE rejoinder.chats SET queue_length = :n, archived = :a WHERE id = :id")
    values = {"n": 2 if state.queued else 0, "a": state.archived, "id": scene.id}
    with (
        pytest.raises(IntegrityError, match=f"chats_{check}"),
        world.engine.begin() as connection,
    ):
        connection.execute(update, values)
    assert world.dump() == before


def test_create_makes_a_runnable_chat(world: World) -> None:
    assert targets(Transition.CREATE, None, queued=False) == (Status.PENDING,)
    assert targets(Transition.CREATE, None, queued=True) == ()
    system = words("Be brief.")
    effects = world.do(machine.create, NewChat("owner", words("hello"), system=system))
    rows = Rows.of(world)
    chat = rows.chat
    assert (chat["status"], chat["archived"], chat["queue_length"]) == ("pending", False, 0)
    assert [chat[f"{v}_version"] for v in ("snapshot", "history", "queue")] == [1, 1, 1]
    assert (chat["root_id"], chat["parent_id"]) == (chat["id"], None)
    assert (chat["attempt"], chat["crashes"], chat["dispatches"]) == (0, 0, 1)
    assert [(m["role"], m["visibility"], m["revision"]) for m in rows.messages.values()] == [
        ("system", "model", 1),
        ("user", "both", 1),
    ]
    (turn,) = rows.turns.values()
    assert (turn["state"], turn["kind"], turn["steps"]) == ("open", "message", 0)
    assert turn["message_id"] == max(rows.messages)
    assert effects.changed
    assert effects.turn_id == turn["id"] == chat["turn_id"]
    assert effects.dispatch == Dispatch(chat["id"], turn["id"], chat["step_id"])
    assert effects.message_ids == tuple(rows.messages)
    assert (effects.fence, effects.ended, effects.hints, effects.wake) == (None, (), (), None)
    assert [event.kind for event in effects.events] == [
        EventKind.MESSAGE,
        EventKind.MESSAGE,
        EventKind.STATUS,
    ]
