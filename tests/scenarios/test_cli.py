"""The command line, as a person and as a script use it, against a real worker."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from rejoinder import embedded
from rejoinder.client import Client
from rejoinder.core.state import Status
from scripts.fleet import Fleet, environment
from tests.owners import ROOT
from tests.owners import environment as bare_environment
from tests.programs import program
from tests.waiting import wait_until

NOBODY = "redis://127.0.0.1:1/0"
FAILS = {"steps": [{"fail": [{"kind": "auth", "times": None, "message": "The key is bad."}]}]}
STUMBLES = {
    "steps": [
        {
            "text": "Well, here it is.",
            "fail": [{"message": "Too much to do.", "after": 2}],
            "delay": 2,  # the reader is there when it fails
        }
    ]
}


@dataclass(frozen=True)
class Shell:
    """Where the commands are typed."""

    env: Mapping[str, str]
    client: Client

    def run(self, *arguments: str, code: int = 0, typed: str = "") -> str:
        """What `rejoinder …` says, both on stdout and on stderr."""
        return run(*arguments, env=self.env, code=code, typed=typed)

    def send(self, text: str, *arguments: str) -> str:
        """The id of a new chat."""
        return self.run("send", text, *arguments).strip()


def run(*arguments: str, env: Mapping[str, str], code: int = 0, typed: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rejoinder", *arguments],
        env=env,
        cwd=ROOT,
        input=typed,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert "Traceback" not in done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def shell(
    servers: embedded.Servers,
    make_database: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Shell]:
    with redis.Redis.from_url(servers.redis_url) as connection:
        connection.flushdb()
    scripts = {"FAILS": json.dumps(FAILS), "STUMBLES": json.dumps(STUMBLES)}
    env = environment(
        make_database(),
        servers.redis_url,
        REJOINDER_HEARTBEAT_SECONDS="0.5",
        REJOINDER_TOOLS="rejoinder.tools.examples",
        REJOINDER_MODEL="scripted:echo",
        **scripts,
    )
    with Fleet(env, tmp_path_factory.mktemp("logs")) as fleet:
        fleet.worker("one", concurrency=8)
        fleet.wait_until_ready()
        with Client(broker_url=servers.redis_url, timeout=30) as client:
            yield Shell(env, client)


def test_send_creates_a_chat_that_show_and_ls_then_find(shell: Shell) -> None:
    chat = shell.send("hello", "--owner", "ann")
    wait_until(lambda: shell.client.get_chat(chat)["status"] == Status.WAITING, 30)
    said = shell.run("show", chat)
    assert "› hello" in said  # noqa: RUF001
    assert "You said: hello" in said
    assert json.loads(shell.run("show", chat, "--json"))["messages"][1]["role"] == "assistant"
    listed = shell.run("ls", "--owner", "ann")
    assert listed.split()[:2] == [chat, "waiting"]
    found = json.loads(shell.run("ls", "--owner", "ann", "--status", "error", "--json"))
    assert found["chats"] == []


def test_a_chat_is_named_and_its_usage_and_budget_are_told(shell: Shell) -> None:
    chat = shell.send("hello", "--owner", "eve")
    wait_until(lambda: shell.client.get_chat(chat)["status"] == Status.WAITING, 30)
    assert shell.run("title", chat, "A greeting") == ""
    assert "A greeting" in shell.run("ls", "--owner", "eve")
    assert "A greeting" in shell.run("show", chat)
    assert shell.run("budget", chat, "--tokens", "1", "--cost", "2.5") == "waiting\n"
    said = shell.run("usage", chat)
    assert "this chat" in said
    assert "1 calls" in said
    assert "+ 1 calls without a price" in said
    assert "1 tokens, $2.50" in said
    assert json.loads(shell.run("usage", chat, "--json"))["budget"]["cost"] == "2.50"
    used = shell.run("usage", "--owner", "eve", "--since", "2026-01-01")
    assert "scripted:echo" in used
    assert "all" in used
    assert "no" not in shell.run("usage", "--owner", "eve", "--until", "2026-01-01")
    assert "leave CHAT out" in shell.run("usage", chat, "--owner", "eve", code=1)
    assert "or --none" in shell.run("budget", chat, code=2)


def test_a_chat_that_waits_for_its_budget_says_so_and_goes_on(shell: Shell) -> None:
    turn = shell.client.create_chat("hello", owner="eve", budget={"tokens": 1})
    wait_until(lambda: shell.client.get_chat(turn.chat_id)["action"] == "budget", 30)
    told = json.loads(shell.run("show", turn.chat_id, "--json"))
    assert (told["status"], told["action"]) == ("requires_action", "budget")
    assert shell.run("budget", turn.chat_id, "--none") == "pending\n"
    assert turn.get(timeout=30)["text"] == "You said: hello"
    shown = shell.run("tail", turn.chat_id, "--until-rest")
    assert "You said: hello" in shown


def test_send_waits_for_the_answer_and_prints_nothing_else(shell: Shell) -> None:
    assert shell.run("send", "hello", "--wait") == "You said: hello\n"


def test_send_follows_text_and_tools_as_they_come(shell: Shell) -> None:
    said = shell.run("send", "and?", "--follow", "--model", "scripted:weather-demo")
    order = ["› and?", "✻ Two cities", "→ weather", "✓ slow_lookup", "✓ calculate", "Between Bonn"]  # noqa: RUF001
    places = [said.index(words) for words in order]
    assert places == sorted(places)
    assert said.count("Between Bonn") == 1


def test_agents_of_a_chat_are_shown_with_it(shell: Shell) -> None:
    chat = shell.send("Shall we move?", "--agents", "--model", "scripted:agents-demo")
    assert "One reports: I found this" in shell.run("tail", chat, "--until-rest")
    said = shell.run("show", chat)
    assert said.count("  agent ") == 2
    assert "What speaks against?" in said
    refused = shell.run("send", "And now?", "--agents", "--chat", chat, code=1)
    assert "--agents are for new chats" in refused


def test_a_failed_turn_ends_with_its_sentence_and_exit_code_1(shell: Shell) -> None:
    model = ("--model", "scripted:env:FAILS")
    assert shell.run("send", "x", "--wait", *model, code=1) == "Error: The key is bad. (auth)\n"
    assert "✗ The key is bad.\n  kind: auth" in shell.run("send", "x", "--follow", *model, code=1)


def test_an_attempt_that_broke_off_is_marked_and_the_wait_is_told(shell: Shell) -> None:
    said = shell.run("send", "x", "--follow", "--model", "scripted:env:STUMBLES")
    assert "Well, here\n· the attempt above broke off" in said
    assert "↻ Too much to do. Attempt 2 of 25 in 1." in said
    assert "\nWell, here it is.\nGo on with: rejoinder send --chat " in said


def test_a_chat_is_summarised_on_request_and_a_reader_sees_how_it_goes(shell: Shell) -> None:
    chat = shell.send("hello")
    wait_until(lambda: shell.client.get_chat(chat)["status"] == Status.WAITING, 30)
    said = shell.run("compact", chat, "--follow")
    lines = said.splitlines()
    assert [line[:33] for line in lines] == [
        "· summarising the conversation, a",
        "· The conversation up to here was",
    ]
    assert shell.run("compact", chat, "--wait") == "finished\n"
    assert shell.run("send", "again", "--chat", chat, "--wait") == "You said: again\n"
    shown = shell.run("show", chat)
    assert "› hello" in shown  # noqa: RUF001
    assert shown.count("was summarised for the model, as you asked") == 2
    assert "A scripted summary" not in shown


def test_the_example_in_the_documentation_of_compaction_runs(shell: Shell) -> None:
    page = (ROOT / "docs" / "compaction.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    done = subprocess.run(
        [sys.executable, "-c", code], env=shell.env, cwd=ROOT, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "assistant The conversation up to here was summarised" in done.stdout


def test_tail_goes_on_after_a_cursor_without_a_hole_or_a_repetition(shell: Shell) -> None:
    chat = shell.send("hello")
    lines = shell.run("tail", chat, "--json", "--until-rest").splitlines()
    events = [json.loads(line) for line in lines]
    assert [e["data"]["role"] for e in events if e["kind"] == "message"] == ["user", "assistant"]
    everything = list(_events(shell, chat, "0-0"))
    middle = everything[len(everything) // 2]
    assert list(_events(shell, chat, middle["cursor"])) == everything[len(everything) // 2 + 1 :]


def _events(shell: Shell, chat: str, after: str) -> Iterator[dict[str, Any]]:
    said = shell.run("tail", chat, "--after", after, "--json", "--until-rest")
    return map(json.loads, said.splitlines())


def test_ctrl_c_ends_tail_and_tells_how_to_go_on(shell: Shell) -> None:
    chat = shell.send("hello")
    with program("-m", "rejoinder", "tail", chat, env=shell.env) as tail:
        tail.wait_for("You said: hello")
        tail.signal()
        assert tail.end() == 0
        assert f"Go on with: rejoinder tail {chat} --after " in tail.text
        assert "Traceback" not in tail.text


def test_interrupt_stops_a_chat_that_is_writing(shell: Shell) -> None:
    chat = shell.send("a story", "--model", "scripted:long")
    wait_until(lambda: shell.client.get_chat(chat)["status"] == Status.RUNNING, 30)
    assert shell.run("interrupt", chat, "--wait") == "waiting\n"
    assert shell.run("send", "x", "--chat", chat, "--when-busy", "reject").strip() == chat
    shell.run("interrupt", chat)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["show", "42"], "Error: The request does not fit: chat_id: "),
        (["show", "01a1e2d4-aa5e-745d-a4e2-c5cbb4835b8a"], "Error: There is no chat 01a1e2d4"),
        (["send", "x", "--model", "nobody:x"], "Error: There is no provider 'nobody': use one of"),
        (["send", " "], "Error: The message holds an empty text: say something"),
    ],
)
def test_a_refusal_is_one_sentence_and_exit_code_1(
    shell: Shell, arguments: list[str], sentence: str
) -> None:
    said = shell.run(*arguments, code=1)
    assert said.startswith(sentence)
    assert said.count("\n") == 1


def test_without_an_address_it_says_what_to_do() -> None:
    said = run("ls", env=bare_environment(), code=1)
    assert "REJOINDER_REDIS_URL is not set: is `make up` running? `. .rejoinder/env`" in said


def test_without_a_server_it_says_what_to_do() -> None:
    said = run("ls", env=bare_environment(REJOINDER_REDIS_URL=NOBODY), code=1)
    assert said.startswith("Error: Redis does not answer")
    assert "is `make up` running?" in said


def test_without_a_worker_it_says_what_to_do_and_sends_nothing(servers: embedded.Servers) -> None:
    alone = bare_environment(REJOINDER_REDIS_URL=servers.redis_url, REJOINDER_CELERY_PREFIX="no:")
    said = run("send", "hello", env=alone, code=1)
    assert said.startswith("Error: no worker answered within 10 s: is `make up` running?")
    with redis.Redis.from_url(servers.redis_url) as connection:
        assert connection.llen("no:rejoinder.control") == 0


def test_chat_on_a_pipe_answers_line_by_line(shell: Shell) -> None:
    said = shell.run("chat", "--model", "scripted:echo", typed="one\n\ntwo\n")
    assert said.startswith("A new chat with scripted:echo (as you said).\n")
    turns = "› one\nYou said: one\n\n› two\nYou said: two\nCome back with: rejoinder chat "  # noqa: RUF001
    assert turns in said


def test_ctrl_c_on_a_pipe_stops_the_turn_and_the_next_one_leaves(shell: Shell) -> None:
    arguments = ("-m", "rejoinder", "chat", "--model", "scripted:long")
    with program(*arguments, env=shell.env) as chat:
        chat.type("a story\n")
        chat.wait_for("This is sentence 2")
        chat.signal()
        chat.wait_for("stopped; what was written stays")
        chat.signal()
        assert chat.end() == 0
        assert "Come back with: rejoinder chat" in chat.text
        assert "Traceback" not in chat.text


def test_the_terminal_chat_streams_queues_stops_and_leaves(shell: Shell) -> None:
    arguments = ("-m", "rejoinder", "chat", "--model", "scripted:long")
    with program(*arguments, env=shell.env, terminal=True) as chat:
        chat.wait_for("Ctrl-C stops an answer")
        chat.type("a story\r")
        chat.wait_for("writing")
        chat.wait_for("This is sentence 1")
        chat.type("another\r")
        chat.wait_for("1 queued")
        chat.type("\x03")
        chat.wait_for("stopped; what was written stays")
        chat.wait_for("writing", times=2)
        chat.type("\x03")
        chat.wait_for("stopped; what was written stays", times=2)
        chat.type("\x04")
        assert chat.end() == 0
        assert "Come back with: rejoinder chat" in chat.text
        assert "Traceback" not in chat.text


def test_a_second_ctrl_c_leaves_the_terminal_chat_at_once(shell: Shell) -> None:
    slow = {**shell.env, "REJOINDER_HEARTBEAT_SECONDS": "5"}
    arguments = ("-m", "rejoinder", "chat", "--model", "scripted:long")
    with program(*arguments, env=slow, terminal=True) as chat:
        chat.wait_for("Ctrl-C stops an answer")
        chat.type("a story\r")
        chat.wait_for("This is sentence 1")
        chat.type("\x03\x03")
        assert chat.end() == 0
        assert "Come back with: rejoinder chat" in chat.text


def test_help_is_help() -> None:
    said = run("--help", env=dict(os.environ))
    for command in ("chat", "send", "tail", "show", "ls", "interrupt"):
        assert f"\n  {command} " in said


def test_a_signal_to_end_is_heeded_on_a_terminal(shell: Shell) -> None:
    with program("-m", "rejoinder", "chat", env=shell.env, terminal=True) as chat:
        chat.wait_for("Ctrl-C stops an answer")
        chat.signal(signal.SIGTERM)
        assert chat.end() in (-signal.SIGTERM, 143)
