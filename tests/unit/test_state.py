"""The table itself: complete, closed, and nobody can get lost in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rejoinder.core import state
from rejoinder.core.state import (
    AT_REST,
    BUSY,
    LEASED,
    MEANING,
    PARKED,
    TABLE,
    Actor,
    Status,
    Transition,
    possible,
    targets,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet


def test_every_transition_has_a_rule_and_every_status_a_meaning() -> None:
    assert set(TABLE) == set(Transition)
    assert set(MEANING) == set(Status)
    for rule in TABLE.values():
        assert rule.by
        assert set(rule.by) <= set(Actor)
        assert rule.says
        assert rule.otherwise
        assert rule.moves


def test_the_groups_of_statuses_do_not_overlap() -> None:
    assert set(Status) == AT_REST | BUSY
    assert not AT_REST & BUSY
    assert not LEASED & PARKED
    assert LEASED | PARKED < BUSY


def test_only_create_starts_from_nothing() -> None:
    assert [t for t, rule in TABLE.items() if None in rule.moves] == [Transition.CREATE]
    assert set(TABLE[Transition.CREATE].moves) == {None}


def test_an_accepted_no_op_leads_nowhere_else() -> None:
    for rule in TABLE.values():
        for source, move in rule.moves.items():
            if move.unchanged:
                assert move.empty == move.filled == (source,)


def test_a_chat_without_a_queue_or_owner_never_turns_into_an_impossible_one() -> None:
    for transition, rule in TABLE.items():
        for source, move in rule.moves.items():
            if source is Status.WAITING or transition is Transition.RECONCILE:
                continue
            assert Status.WAITING not in move.filled, "a message would be stranded in its queue"


def test_only_what_makes_sense_at_rest_is_allowed_on_archived_chats() -> None:
    for transition, rule in TABLE.items():
        for status in AT_REST:
            told = targets(transition, status, queued=False, archived=True)
            assert told == (targets(transition, status, queued=False) if rule.on_archived else ())
            assert set(told) <= AT_REST, "an archived chat never gets busy"


def test_only_the_worker_acts_on_its_lease_and_claim_is_the_only_way_to_one() -> None:
    ways_in = {t for s, t, target in state.edges() if target is Status.RUNNING}
    assert ways_in == {Transition.CLAIM}
    for transition, rule in TABLE.items():
        if rule.by == (Actor.WORKER,) and transition is not Transition.CLAIM:
            assert set(rule.moves) <= LEASED


def test_every_status_can_be_reached_and_every_chat_can_come_to_rest() -> None:
    edges = list(state.edges())
    assert _closure({None}, edges) - {None} == set(Status)
    backwards = [(target, transition, source) for source, transition, target in edges]
    assert _closure(AT_REST, backwards) >= set(Status)
    stops = (Transition.INTERRUPT, Transition.RECOVER, Transition.FINISH_INTERRUPT)
    to_stop = [edge for edge in edges if edge[1] in stops]
    backwards = [(target, transition, source) for source, transition, target in to_stop]
    assert _closure(AT_REST, backwards) >= BUSY, "a stop stops, whatever the chat does"


def _closure(
    start: AbstractSet[Status | None],
    edges: Iterable[tuple[Status | None, Transition, Status | None]],
) -> set[Status | None]:
    reached, edges = set(start), list(edges)
    while new := {target for source, _, target in edges if source in reached} - reached:
        reached |= new
    return reached


def test_the_edges_are_the_moves_that_change_the_status() -> None:
    edges = list(state.edges())
    assert len(edges) == len(set(edges))
    for source, transition, target in edges:
        assert source is not target
        told = (targets(transition, source, queued=queued) for queued in (False, True))
        assert any(target in each for each in told)
    assert (Status.PENDING, Transition.CLAIM, Status.RUNNING) in edges
    assert (None, Transition.CREATE, Status.PENDING) in edges


@pytest.mark.parametrize("status", Status)
def test_what_is_possible_is_what_the_design_says(status: Status) -> None:
    assert possible(status, queued=False, archived=False)
    assert possible(status, queued=True, archived=False) is (status is not Status.WAITING)
    assert possible(status, queued=False, archived=True) is (status in AT_REST)
    assert possible(status, queued=True, archived=True) is (status is Status.ERROR)


def test_what_the_table_does_not_name_is_refused() -> None:
    assert targets(Transition.SUBMIT_RESULTS, Status.WAITING, queued=False) == ()
    assert targets(Transition.CLAIM, None, queued=False) == ()
    assert targets(Transition.SEND, Status.WAITING, queued=False, archived=True) == ()
