"""`make up` and `make chat`: everything on one machine, and nothing left of it afterwards."""

import os
import signal
import socket
import stat
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path

import psutil

from rejoinder.cli.talk import default_model
from scripts.stack import free_port
from tests.owners import ROOT, environment
from tests.programs import Program, assert_gone, program
from tests.waiting import wait_until

UP, CHAT = "scripts/up.py", "scripts/chat.py"


def in_a_shell(home: Path, command: str) -> str:
    """What another shell says after it has sourced the file."""
    return subprocess.run(
        ["/bin/sh", "-c", f". {home}/env && {command}"],
        cwd="/",
        env={"PATH": os.defpath},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def flower_of(up: Program) -> str:
    (line,) = [line for line in up.text.splitlines() if line.startswith("Flower")]
    return line.split()[1]


def test_up_serves_other_shells_refuses_a_second_and_leaves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with program(UP, "--home", str(home)) as up:
        up.wait_for("Ctrl-C stops everything.")
        family = up.family()
        assert stat.S_IMODE((home / "env").stat().st_mode) == 0o600
        status = in_a_shell(home, "celery -A tasks status")
        assert "steps@" in status
        assert "control@" in status
        assert "2 nodes online" in status
        url = f"{flower_of(up)}/api/tasks"
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310  # http
            assert answer.status == 200  # its buttons work without a password
        with program(UP, "--home", str(home)) as second:
            assert second.end() == 1
            assert f"already running here, as process {up.pid}" in second.text
        with program(CHAT, "--home", str(home), "--model", "scripted:echo") as chat:
            chat.type("hello\n")
            chat.wait_for("You said: hello")
            chat.close_input()
            assert chat.end() == 0
            assert "Using what `make up` runs." in chat.text
        up.signal(signal.SIGINT)
        assert up.end() == 0
        assert up.text.endswith("Stopped.\n")
        assert "rejoinder.create_chat" in up.text
        assert "hello" not in up.text
    assert not (home / "env").exists()
    assert_gone(family)


def test_up_ends_with_exit_code_1_when_a_process_dies(tmp_path: Path) -> None:
    with program(UP, "--home", str(tmp_path)) as up:
        up.wait_for("Ctrl-C stops everything.")
        family = up.family()
        (beat,) = running(up, "beat")
        beat.kill()
        assert up.end() == 1
        assert "make up: beat ended by itself (killed by SIGKILL)." in up.text
    assert_gone(family)


def test_two_that_start_at_once_choose_different_ports() -> None:
    with free_port() as one, free_port() as other, socket.socket() as taking:
        assert one != other
        # As Flower does: connections to one that is gone do not keep the port.
        taking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taking.bind(("127.0.0.1", one))


def test_whoever_kills_up_leaves_no_process(tmp_path: Path) -> None:
    with program(UP, "--home", str(tmp_path)) as up:
        wait_until(lambda: len(running(up, "worker")) == 2, 60, "two workers")
        family = up.family()
        up.signal(signal.SIGKILL)
        assert up.end() == -signal.SIGKILL
    assert_gone(family)


def running(up: Program, what: str) -> list[psutil.Process]:
    """Its `celery -A tasks WHAT` processes. Others of the family come and go meanwhile."""
    found = []
    for each in up.family():
        with suppress(psutil.Error):
            if {"celery", what} <= set(each.cmdline()):
                found.append(each)
    return found


def test_chat_starts_what_it_needs_keeps_the_chat_and_leaves_nothing(tmp_path: Path) -> None:
    env = environment(REJOINDER_MODEL="scripted:echo")
    with program(CHAT, "--home", str(tmp_path), env=env) as chat:
        chat.type("hello\n")
        chat.wait_for("You said: hello")
        family = chat.family()
        chat.close_input()
        assert chat.end() == 0
        assert "A new chat with scripted:echo (REJOINDER_MODEL says so)." in chat.text
        chat_id = chat.text.partition("make chat ARGS=")[2].split()[0]
    assert_gone(family)
    with program(CHAT, "--home", str(tmp_path), chat_id, env=env) as again:
        again.wait_for("You said: hello")
        again.close_input()
        assert again.end() == 0


def test_without_a_key_the_model_is_the_scripted_one_and_it_says_so() -> None:
    assert default_model({})[0] == "scripted:weather-demo"
    assert default_model({"ANTHROPIC_API_KEY": "k"})[0].startswith("anthropic:claude-")
    assert default_model({"ANTHROPIC_API_KEY": "k", "REJOINDER_MODEL": "x:y"})[0] == "x:y"


def test_the_targets_are_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target, script in (("up", UP), ("chat", CHAT), ("demo", "scripts/demo.py")):
        assert f"\n{target}: setup  ## " in makefile
        assert f"$(PYTHON_BIN) {script} $(ARGS)" in makefile
