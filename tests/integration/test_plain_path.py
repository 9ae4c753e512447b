"""REJOINDER_FAST=off: a step knows nothing but its lease, and says what it says in full."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from models import claims, machine
from rejoinder.core.cancellation import Cancellation
from rejoinder.core.settings import Settings
from tasks import held as held_module
from tasks.claiming import claiming
from tasks.held import Held
from tasks.runtime import Runtime
from tasks.timeline import Timeline
from tests.chats import World, said
from tests.integration.test_owner import statements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import RedisSpace


@pytest.fixture(params=[True, False], ids=["fast", "plain"])
def runtime(
    request: pytest.FixtureRequest, database_url: str, redis_space: RedisSpace
) -> Iterator[Runtime]:
    settings = Settings(database_url=database_url, redis_url=redis_space.url)
    made = Runtime(replace(settings, fast=request.param))
    claims.register_worker(made.engine, made.worker_id, "this process")
    yield made
    made.engine.dispose()
    made.redis.close()


def test_the_switch_takes_the_locked_store_and_no_cache(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_module, "publish", lambda *_, **__: None)
    fast = runtime.settings.fast
    chat = World(runtime.engine).new()
    with statements(runtime.engine) as heard, claiming(runtime, chat.id, chat.id) as claim:
        assert claim is not None
        held = Held(runtime, claim, Cancellation(), Timeline(0.0))
        held.load()
        held.write(machine.commit, message=said("So far."))
    assert (claim.known is not None) is fast
    assert any("FOR NO KEY UPDATE" in each for each in heard) is not fast
    assert any(each.startswith("EXECUTE") for each in heard) is fast
    version = World(runtime.engine).row(chat.id)["history_version"]
    assert (runtime.histories.take(chat.id, version) is not None) is fast
