"""Costs, budgets and titles with real workers, on threads and on prefork."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from rejoinder import embedded
from rejoinder.client import StreamEvent, Turn, TurnFailed
from rejoinder.core.state import Status
from tests.integration.invariants import assert_invariants
from tests.scenarios.claude import ANSWER_MICROS, MODEL, TITLE_MICROS, Claude, claude_nearby
from tests.scenarios.conftest import QUICK
from tests.scenarios.house import House, open_house
from tests.waiting import wait_until

LONG = 60.0
PAGE = Path(__file__).parents[2] / "docs/accounts.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
USAGE = {"input_tokens": 9_000, "output_tokens": 1_000}
PRICES = {"scripted:*": {"input": 1, "output": 5}}
STEP_MICROS = 9_000 + 5_000
ADD = {"text": "I add.", "calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}], "usage": USAGE}
DONE = {"text": "Done.", "usage": USAGE}


@dataclass
class Scene:
    """A house with one worker for steps, and Claude nearby."""

    house: House
    claude: Claude
    redis_url: str

    def ask(self, words: str, **more: Any) -> Turn:
        """A chat with Claude."""
        return self.house.client.create_chat(words, owner="joe", model=MODEL, **more)

    def play(self, *steps: Mapping[str, Any], **more: Any) -> Turn:
        """A chat with a script."""
        given = {"extra": {"script": list(steps)}}
        return self.house.client.create_chat(
            "Go.", owner="sue", model="scripted:inline", options=given, **more
        )

    def chat(self, turn: Turn) -> dict[str, Any]:
        return self.house.client.get_chat(turn.chat_id)

    def until(self, turn: Turn, status: Status) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            chat = self.chat(turn)
            return chat if chat["status"] == status else None

        return wait_until(there, LONG, f"chat {turn.chat_id} is {status}") or {}


@pytest.fixture(scope="module", params=["threads", "prefork"])
def scene(
    request: pytest.FixtureRequest,
    servers: embedded.Servers,
    make_database: object,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    database_url = make_database()  # type: ignore[operator]
    folder = tmp_path_factory.mktemp("accounts")
    with claude_nearby() as claude:
        settings = {**QUICK, **claude.env, "REJOINDER_PRICES": json.dumps(PRICES)}
        with open_house(request.param, database_url, servers.redis_url, folder, settings) as house:
            house.worker()
            yield Scene(house, claude, servers.redis_url)
            assert_invariants(house.world.engine)


def fresh(words: str) -> str:
    """These words as nobody has said them before: what Claude was asked is counted by them."""
    return f"{words} ({uuid4().hex})"


def events(scene: Scene, turn: Turn, *kinds: str) -> list[StreamEvent]:
    seen: list[StreamEvent] = []
    for event in scene.house.client.stream(turn.chat_id, idle_seconds=0.2):
        if event is None:
            return seen
        if event.kind in kinds:
            seen.append(event)
    raise AssertionError


def test_a_call_its_chat_and_its_owner_tell_the_same_cost(scene: Scene) -> None:
    before = datetime.now(UTC)
    turn = scene.ask("What is this?", title="Costs")
    turn.get(timeout=LONG)
    _, answer = scene.house.client.get_messages(turn.chat_id)["messages"]
    assert answer["usage"]["cost_micros"] == ANSWER_MICROS == 11_000
    assert answer["usage"]["cost"] == "0.011"
    chat = scene.chat(turn)
    assert chat["usage"] == chat["tree_usage"]
    assert (chat["usage"]["calls"], chat["usage"]["tokens"]) == (1, 8_300)
    assert (chat["usage"]["cost_micros"], chat["usage"]["unpriced_calls"]) == (ANSWER_MICROS, 0)
    told = scene.house.client.get_usage("joe", since=before)
    assert told["models"][MODEL]["cost"] == told["usage"]["cost"] == "0.011"
    assert scene.house.client.get_usage("joe", since=before, until=before)["models"] == {}


def test_an_interrupted_answer_counts_what_the_provider_has_told(scene: Scene) -> None:
    turn = scene.ask("Tell me [slow]ly.", title="Slow")
    wait_until(lambda: events(scene, turn, "part"), LONG, "words come")
    assert scene.house.client.interrupt(turn.chat_id, wait=True) == Status.WAITING
    usage = scene.chat(turn)["usage"]
    assert (usage["calls"], usage["input_tokens"], usage["cache_read_tokens"]) == (1, 1_000, 5_000)
    assert usage["cost_micros"] == 8_000 + 10, "the prompt, and the one token that was told"


def test_an_answer_that_breaks_off_is_paid_for_twice(scene: Scene) -> None:
    words = fresh("Will it [break] once?")
    turn = scene.ask(words, title="Broken")
    assert turn.get(timeout=LONG)["text"] == "Hello"
    assert scene.claude.asked(words) == 2
    usage = scene.chat(turn)["usage"]
    assert (usage["calls"], usage["input_tokens"]) == (2, 2_000)
    assert usage["cost_micros"] == ANSWER_MICROS + 8_000 + 10


def test_a_chat_without_money_parks_before_the_model_is_asked_and_goes_on(scene: Scene) -> None:
    words = fresh("A poor question.")
    turn = scene.ask(words, budget={"cost": "0.0001"})
    chat = scene.until(turn, Status.REQUIRES_ACTION)
    assert chat["action"] == "budget"
    assert chat["budget"]["cost"] == "0.0001"
    assert chat["deadline"] > datetime.now(UTC).isoformat()
    assert scene.claude.asked(words) == 0
    assert scene.claude.asked(words, title=True) == 0, "a title costs, too"
    (told,) = events(scene, turn, "action_required")
    assert told.data["kind"] == "budget"
    assert told.data["budget"]["cost_micros"] == 100
    assert told.data["needs"]["cost_micros"] > 100
    assert scene.house.client.set_budget(turn.chat_id, cost="0.0002")["status"] == "pending"
    scene.until(turn, Status.REQUIRES_ACTION)  # that was not enough: it looked, and parked again
    assert scene.claude.asked(words) == 0
    scene.house.client.set_budget(turn.chat_id, cost=1)
    assert turn.get(timeout=LONG)["text"] == "Hello"
    assert scene.claude.asked(words) == 1


def test_a_budget_that_runs_out_between_steps_loses_nothing(scene: Scene) -> None:
    turn = scene.play(ADD, DONE, budget={"tokens": 9_500})
    chat = scene.until(turn, Status.REQUIRES_ACTION)
    assert (chat["action"], chat["usage"]["calls"], chat["open_calls"]) == ("budget", 1, [])
    assert chat["usage"]["cost_micros"] == STEP_MICROS
    roles = [m["role"] for m in scene.house.client.get_messages(turn.chat_id)["messages"]]
    assert roles == ["user", "assistant", "tool"]
    scene.house.client.set_budget(turn.chat_id, tokens=50_000)
    assert turn.get(timeout=LONG)["text"] == "Done."
    assert scene.chat(turn)["usage"]["tokens"] == 20_000


def test_the_money_of_a_script_with_a_price_runs_out_too(scene: Scene) -> None:
    turn = scene.play(ADD, DONE, budget={"cost": "0.01401"})
    assert scene.until(turn, Status.REQUIRES_ACTION)["usage"]["cost"] == "0.014"
    scene.house.client.set_budget(turn.chat_id)
    assert turn.get(timeout=LONG)["text"] == "Done."
    assert scene.chat(turn)["budget"] is None


def test_a_parked_chat_can_be_stopped_and_spoken_to(scene: Scene) -> None:
    turn = scene.play(DONE, budget={"tokens": 1})
    scene.until(turn, Status.REQUIRES_ACTION)
    assert scene.house.client.interrupt(turn.chat_id) == Status.WAITING
    assert turn.get(timeout=LONG)["state"] == "interrupted"
    again = scene.house.client.send_message(turn.chat_id, "And now?")
    scene.until(again, Status.REQUIRES_ACTION)
    scene.house.client.set_budget(turn.chat_id, tokens=50_000)
    assert again.get(timeout=LONG)["text"] == "Done."


def test_children_share_the_budget_and_exceed_it_by_a_call_each_at_most(scene: Scene) -> None:
    root = scene.play(DONE, budget={"tokens": 22_000})
    root.get(timeout=LONG)
    slow = {**ADD, "delay": 0.3}
    children = [scene.play(slow, slow, DONE, parent_id=root.chat_id) for _ in range(2)]
    for child in children:
        assert scene.until(child, Status.REQUIRES_ACTION)["action"] == "budget"
    spent = scene.chat(root)["tree_usage"]["tokens"]
    assert 20_000 <= spent <= 22_000 + 2 * 10_000
    scene.house.client.set_budget(root.chat_id, tokens=1_000_000)
    for child in children:
        assert child.get(timeout=LONG)["text"] == "Done."
    assert scene.chat(root)["tree_usage"]["tokens"] == 70_000


def test_a_budget_in_money_needs_a_price(scene: Scene) -> None:
    words = fresh("Priceless?")
    turn = scene.house.client.create_chat(
        words, owner="joe", model="anthropic:claude-nobody-knows", budget={"cost": 5}
    )
    with pytest.raises(TurnFailed, match="price"):
        turn.get(timeout=LONG)
    error = scene.chat(turn)["last_error"]
    assert error["kind"] == "config"
    assert "REJOINDER_PRICES" in error["detail"]
    assert scene.claude.asked(words) == 0
    scene.house.client.set_budget(turn.chat_id, tokens=100_000)
    assert scene.house.client.retry(turn.chat_id).get(timeout=LONG)["text"] == "Hello"
    assert scene.chat(turn)["usage"]["unpriced_calls"] >= 1


def test_the_title_comes_while_the_chat_works_and_readers_are_told(scene: Scene) -> None:
    words, more = fresh("How do I bake bread?"), fresh("And cake?")
    turn = scene.ask(words)
    turn.get(timeout=LONG)
    wait_until(lambda: scene.chat(turn)["title_source"] == "model", LONG, "the title")
    chat = scene.chat(turn)
    assert chat["title"] == "A fine title"
    assert (chat["usage"]["calls"], chat["usage"]["cost_micros"]) == (
        2,
        ANSWER_MICROS + TITLE_MICROS,
    )
    wait_until(lambda: events(scene, turn, "title"), LONG, "the event")
    (told,) = events(scene, turn, "title")
    assert told.data["title"] == "A fine title"
    (row,) = [
        chat for chat in scene.house.client.list_chats("joe")["chats"] if chat["id"] == turn.chat_id
    ]
    assert row["title"] == "A fine title"
    second = scene.house.client.send_message(turn.chat_id, more)
    second.get(timeout=LONG)
    assert scene.claude.asked(words, title=True) == 1, "a chat is named once"
    assert scene.claude.asked(more, title=True) == 0


def test_a_slow_title_delays_nothing_and_a_persons_title_stays(scene: Scene) -> None:
    scene.claude.hold()
    words = fresh("[held]")
    turns = [scene.ask(f"Number {n} {words}") for n in range(12)]  # more than the worker has slots
    for turn in turns:
        assert turn.get(timeout=LONG)["text"] == "Hello"
    wait_until(lambda: scene.claude.asked(words, title=True) == 12, LONG, "all are asked for")
    assert {scene.chat(turn)["title_source"] for turn in turns} == {"words"}
    scene.house.client.set_title(turns[0].chat_id, "Mine")
    scene.claude.let_go()
    for turn in turns[1:]:
        wait_until(
            lambda turn=turn: scene.chat(turn)["title"] == "A fine title",  # type: ignore[misc]
            LONG,
            "the title, late",
        )
    wait_until(lambda: scene.chat(turns[0])["usage"]["calls"] == 2, LONG, "its call is counted")
    assert scene.chat(turns[0])["title"] == "Mine"


def test_a_title_that_fails_leaves_the_first_words_and_a_line_in_the_log(scene: Scene) -> None:
    turn = scene.ask("Why is it [broken] today?")
    assert turn.get(timeout=LONG)["text"] == "Hello"
    line = f"The title of chat {turn.chat_id} failed"
    wait_until(lambda: line in scene.house.fleet.members[-1].text(), LONG, line)
    chat = scene.chat(turn)
    assert (chat["title"], chat["title_source"]) == ("Why is it [broken] today?", "words")
    assert chat["status"] == Status.WAITING


def test_neither_children_nor_scripts_nor_named_chats_are_given_a_title(scene: Scene) -> None:
    above, below = fresh("The parent."), fresh("The child.")
    root = scene.ask(above, title="Named")
    root.get(timeout=LONG)
    child = scene.ask(below, parent_id=root.chat_id)
    child.get(timeout=LONG)
    played = scene.play(DONE)
    played.get(timeout=LONG)
    assert scene.claude.asked(above, title=True) == 0
    assert scene.claude.asked(below, title=True) == 0
    assert scene.chat(played)["title_source"] == "words"
    assert scene.chat(played)["usage"]["calls"] == 1


@pytest.mark.parametrize(
    ("mark", "printed"),
    [
        ("Where is order 17?", ["$0.011 of $0.50", "'cost_micros': 11000"]),
        ("Where is order 18?", ["budget 0 of 10", "finished"]),
        ("get_usage", [MODEL, "in all: "]),
    ],
)
def test_the_examples_in_the_documentation_run(
    scene: Scene, mark: str, printed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = [block for block in EXAMPLES if mark in block]
    exec(block.replace("redis://…", scene.redis_url), {})  # noqa: S102  # our own words
    said = capsys.readouterr().out
    assert [words for words in printed if words not in said] == []


def test_nobody_raises_the_budget_in_time(scene: Scene) -> None:
    scene.house.fleet.members[-1].stop()
    scene.house.worker(env={"REJOINDER_BUDGET_SECONDS": "0.2"})  # also for the tests below
    turn = scene.play(DONE, budget={"tokens": 1})

    def given_up() -> bool:
        scene.house.client.app.send_task(
            "rejoinder.sweep", queue="rejoinder.control", ignore_result=True
        )
        return bool(scene.chat(turn)["status"] == Status.ERROR)

    wait_until(given_up, LONG, "the deadline passes")
    with pytest.raises(TurnFailed, match="budget"):
        turn.get(timeout=LONG)
    assert scene.chat(turn)["last_error"]["kind"] == "budget"
    scene.house.client.set_budget(turn.chat_id, tokens=50_000)
    assert scene.house.client.retry(turn.chat_id).get(timeout=LONG)["text"] == "Done."


def test_a_title_that_hangs_keeps_no_worker_from_going(scene: Scene) -> None:
    scene.claude.hold()
    words = fresh("The last one, [held]")
    turn = scene.ask(words)
    assert turn.get(timeout=LONG)["text"] == "Hello"
    wait_until(lambda: scene.claude.asked(words, title=True), LONG, "it is asked for")
    began = time.monotonic()
    assert scene.house.fleet.members[-1].stop(seconds=25) == 0
    assert time.monotonic() - began < 9, "neither the title's time nor the drain's"
    scene.claude.let_go()
    assert scene.chat(turn)["title_source"] == "words"


def test_a_worker_that_goes_has_closed_its_connections_to_the_model(scene: Scene) -> None:
    worker = scene.house.worker()
    for _ in range(4):
        scene.ask("Hello.").get(timeout=LONG)
    assert worker.stop() == 0
    assert "Unclosed" not in worker.text()
