"""A few threads at a time; the others wait, but not for ever."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tasks import turnstile
from tasks.turnstile import Turnstile


@contextmanager
def somebody(inside: Turnstile, *, steps_out: bool = False) -> Iterator[threading.Event]:
    """A thread that comes in and stays for a while; the event says that it is in (or out)."""
    there, enough = threading.Event(), threading.Event()

    def stay() -> None:
        there.set()
        enough.wait(10)

    def come() -> None:
        with inside.inside():
            if steps_out:
                with inside.outside():
                    stay()
            else:
                stay()

    thread = threading.Thread(target=come)
    thread.start()
    yield there
    enough.set()
    thread.join()


def test_no_more_than_its_width_are_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turnstile, "PATIENCE_SECONDS", 10)
    gate = Turnstile(2)
    with somebody(gate) as first, ExitStack() as other:
        second = other.enter_context(somebody(gate))
        assert first.wait(5)
        assert second.wait(5)
        with somebody(gate) as third:
            assert not third.wait(0.1)
            other.close()
            assert third.wait(5)


def test_who_steps_out_lets_another_in_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turnstile, "PATIENCE_SECONDS", 10)
    gate = Turnstile(1)
    with somebody(gate, steps_out=True) as out:
        assert out.wait(5)
        with somebody(gate) as inside:
            assert inside.wait(5)
    with somebody(gate) as again:
        assert again.wait(5)
    assert gate._places.qsize() == 1


def test_if_those_inside_wait_for_long_the_others_pass_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turnstile, "PATIENCE_SECONDS", 0.05)
    gate = Turnstile(1)
    with somebody(gate) as first:
        assert first.wait(5)
        with somebody(gate) as second:
            assert second.wait(5)
    assert gate._places.qsize() == 1  # who passed by gives no place back


def test_who_is_not_inside_need_not_leave() -> None:
    gate = Turnstile(1)
    with gate.outside():
        assert gate._places.qsize() == 1
    assert gate._places.qsize() == 1
