"""What the worker's edges refuse, and what they read out of Celery's commands."""

from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery.worker.control import Panel

from tasks import celery_patches, edges, lost
from tasks.celery_patches import control


@pytest.fixture(autouse=True)
def _nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celery_patches, "_installed", [None])


def a_worker(pool: str) -> SimpleNamespace:
    """A worker as far as it is looked at when it begins."""
    return SimpleNamespace(pool_cls=pool, should_use_eventloop=lambda: False)


@pytest.mark.parametrize("pool", ["gevent", "celery.concurrency.eventlet"])
def test_a_green_pool_is_refused_with_the_reason(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REJOINDER_GREEN_POOLS", raising=False)
    with pytest.raises(SystemExit, match="--pool=threads") as refused:
        edges._look_at_the_pool(a_worker(pool))
    assert "REJOINDER_GREEN_POOLS=allow" in str(refused.value)


def test_a_green_pool_can_be_insisted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REJOINDER_GREEN_POOLS", "allow")
    edges._look_at_the_pool(a_worker("gevent"))


@pytest.mark.parametrize("pool", ["threads", "solo", "celery.concurrency.thread"])
def test_other_pools_are_welcome(pool: str) -> None:
    edges._look_at_the_pool(a_worker(pool))


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("revoke", {"task_id": "X"}),
        ("revoke", {"task_id": ["X"], "terminate": True, "signal": "SIGKILL"}),
        ("terminate", {"signal": "KILL", "task_id": ["X"]}),
        ("revoke_by_stamped_headers", {"headers": {"turn_id": "X", "other": ["Y"]}}),
        ("revoke_by_stamped_headers", {"headers": {"turn_id": ["X"]}, "terminate": True}),
        ("revoke_by_stamped_headers", {"headers": ["turn_id=X", "other=Y"]}),
    ],
)
def test_every_way_to_revoke_means_our_turns(command: str, arguments: dict[str, object]) -> None:
    wanted = str(uuid4())
    stopped: list[str] = []
    given: Any = {k: _put(v, wanted) for k, v in arguments.items()}
    both = control.also(
        lambda *_args, **_options: "done",
        control.IDS_IN[command],
        lambda ids: stopped.extend(map(str, ids)),
    )
    assert both(None, **given) == "done"
    assert stopped == [wanted]


def test_the_commands_of_celery_are_ours_too(monkeypatch: pytest.MonkeyPatch) -> None:
    control.tell_of_revoked(monkeypatch.setattr, lost.stop_revoked)
    for name in ("revoke", "terminate", "revoke_by_stamped_headers"):
        assert Panel.data[name].__module__ == control.__name__
        assert Panel.data[name].__doc__


def _put(value: object, wanted: str) -> object:
    match value:
        case str():
            return value.replace("X", wanted) if value in ("X", "turn_id=X") else value
        case list():
            return [_put(item, wanted) for item in value]
        case dict():
            return {key: _put(item, wanted) for key, item in value.items()}
        case _:
            return value
