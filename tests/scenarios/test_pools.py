"""The pool that is asked for is the pool that runs, although Celery would give another one."""

import signal
from pathlib import Path

import pytest

from rejoinder import embedded
from rejoinder.client import Client
from scripts.fleet import Fleet, FleetError, environment
from tests.scenarios.conftest import QUICK
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("options", "implementation"),
    [
        ([], "tasks.local_dispatch:ServingPool"),
        (["--pool=prefork"], "tasks.celery_patches.pools:PreforkPool"),
        (["--pool", "prefork"], "tasks.celery_patches.pools:PreforkPool"),
        (["-P", "prefork"], "tasks.celery_patches.pools:PreforkPool"),
        (["-Pprefork"], "tasks.celery_patches.pools:PreforkPool"),
        (["--pool=threads"], "tasks.local_dispatch:ServingPool"),
        (["-P", "solo"], "celery.concurrency.solo:TaskPool"),
    ],
    ids=lambda param: " ".join(param) if isinstance(param, list) else "",
)
def test_the_pool_that_is_asked_for_runs(
    options: list[str],
    implementation: str,
    database_url: str,
    servers: embedded.Servers,
    tmp_path: Path,
) -> None:
    env = environment(database_url, servers.redis_url, **QUICK)
    with Fleet(env, tmp_path) as fleet, Client(broker_url=servers.redis_url) as client:
        fleet.worker("only", concurrency=2, options=options)
        fleet.wait_until_ready()
        inspect = client.app.control.inspect(timeout=3, limit=1)
        (worker,) = wait_until(inspect.stats, 30, "an answer").values()
        assert worker["pool"]["implementation"] == implementation


def test_tools_that_cannot_be_loaded_are_told_of_at_the_start(
    database_url: str, servers: embedded.Servers, tmp_path: Path
) -> None:
    env = environment(database_url, servers.redis_url, **QUICK | {"REJOINDER_TOOLS": "no.such"})
    with Fleet(env, tmp_path) as fleet:
        fleet.worker("only")
        with pytest.raises(FleetError, match=r"no\.such.*REJOINDER_TOOLS"):
            fleet.wait_until_ready()


def test_a_solo_worker_heeds_a_stop_and_a_shutdown(
    database_url: str, servers: embedded.Servers, tmp_path: Path
) -> None:
    env = environment(database_url, servers.redis_url, **QUICK, REJOINDER_DRAIN_SECONDS="0.5")
    with Fleet(env, tmp_path) as fleet, Client(broker_url=servers.redis_url, timeout=30) as client:
        fleet.worker("control", queues=["rejoinder.control"], concurrency=4)
        solo = fleet.worker("solo", pool="solo", queues=["rejoinder.steps"])
        fleet.wait_until_ready()
        first = client.create_chat("Talk.", owner="joe", model="scripted:long")
        wait_until(lambda: client.get_chat(first.chat_id)["status"] == "running", 30)
        assert client.interrupt(first.chat_id, wait=True) == "waiting"
        second = client.create_chat("Talk.", owner="joe", model="scripted:long")
        wait_until(lambda: client.get_chat(second.chat_id)["status"] == "running", 30)
        solo.signal(signal.SIGTERM)
        assert solo.wait(25) == 0
        assert client.get_chat(second.chat_id)["status"] == "pending"
