"""A stop reaches the process that owns the chat by a hint, not by waiting for its heartbeat."""

from tests.scenarios.house import House, noted
from tests.waiting import wait_until

LONG = 60.0


def test_a_hint_stops_a_step_long_before_the_next_heartbeat(house: House) -> None:
    slow = {"REJOINDER_HEARTBEAT_SECONDS": "60", "REJOINDER_DEAD_AFTER_SECONDS": "180"}
    worker = house.worker(env=slow)
    step = house.tool("hold_async", 50)
    turn = house.start(step)
    wait_until(lambda: noted(step), LONG)
    assert house.client.interrupt(turn.chat_id, wait=True, timeout=20) == "waiting"
    worker.stop()
