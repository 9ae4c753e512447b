"""Programs of ours as a person runs them: on a pipe or on a terminal, typed at, interrupted."""

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import psutil

from tests.owners import ROOT, environment, is_alive
from tests.waiting import wait_until

PATIENCE = 60.0


class Program:
    """A running program and everything it has said so far."""

    def __init__(
        self, arguments: Sequence[str], env: Mapping[str, str] | None, *, terminal: bool
    ) -> None:
        """Start `python …` from the root, in a process group of its own."""
        self._said = bytearray()
        ours, theirs = pty.openpty() if terminal else (None, subprocess.PIPE)
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs if terminal else subprocess.STDOUT,
            env={"COLUMNS": "100", "LINES": "40", "TERM": "xterm", **(env or environment())},
            cwd=ROOT,
            process_group=0,
        )
        if ours is None:
            assert self._process.stdin
            assert self._process.stdout
            self._write, self._read = self._process.stdin.fileno(), self._process.stdout.fileno()
        else:
            os.close(theirs)
            self._write = self._read = ours
        self._terminal = terminal
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        return bytes(self._said).decode("utf-8", "replace")

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, words: str, times: int = 1) -> None:
        """Wait until it has said this (so often)."""

        def said() -> bool:
            ended = self._process.poll() is not None
            assert not ended or words in self.text, self.text
            return self.text.count(words) >= times

        try:
            wait_until(said, PATIENCE)
        except AssertionError as error:
            raise AssertionError(f"{words!r} is not in {self.text[-3000:]}") from error

    def type(self, words: str) -> None:
        os.write(self._write, words.encode())

    def close_input(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()

    def signal(self, number: signal.Signals = signal.SIGINT) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Its exit code, once it has ended by itself."""
        code = self._process.wait(PATIENCE)
        self._reader.join(5)
        return code

    def family(self) -> list[psutil.Process]:
        """Every process that it started, and those that they started."""
        return list(psutil.Process(self.pid).children(recursive=True))

    def close(self) -> None:
        if self._process.poll() is None:
            family = self.family()
            self._process.kill()
            for each in family:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        self._process.wait()
        self._reader.join(5)
        if self._terminal:
            os.close(self._read)
        else:
            assert self._process.stdin
            assert self._process.stdout
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.stdout.close()

    def _listen(self) -> None:
        with suppress(OSError):  # a terminal's end
            while data := os.read(self._read, 65536):
                self._said += data


@contextmanager
def program(
    *arguments: str, env: Mapping[str, str] | None = None, terminal: bool = False
) -> Iterator[Program]:
    """A program of ours; whatever is left of it is ended."""
    running = Program(arguments, env, terminal=terminal)
    try:
        yield running
    finally:
        running.close()


def assert_gone(processes: Sequence[psutil.Process]) -> None:
    wait_until(
        lambda: not [each for each in processes if is_alive(each)],
        30,
        f"the end of {[each for each in processes if is_alive(each)]}",
    )
