"""A cancellation keeps its first cause, and tells everybody once, whenever they ask to be told."""

import threading

import pytest

from rejoinder.core.cancellation import Cancellation, Cancelled
from rejoinder.core.effects import Cause


def test_the_first_cause_is_kept() -> None:
    cancellation = Cancellation()
    assert cancellation.cancel(Cause.SHUTDOWN)
    assert not cancellation.cancel(Cause.INTERRUPT)
    assert cancellation.cause is Cause.SHUTDOWN


def test_listeners_are_told_once_also_when_they_come_late() -> None:
    cancellation, told = Cancellation(), list[Cause]()
    cancellation.on_cancel(told.append)
    cancellation.cancel(Cause.INTERRUPT)
    cancellation.cancel(Cause.SHUTDOWN)
    cancellation.on_cancel(told.append)
    assert told == [Cause.INTERRUPT, Cause.INTERRUPT]


def test_who_no_longer_listens_is_not_told() -> None:
    cancellation, told = Cancellation(), list[Cause]()
    forget = cancellation.on_cancel(told.append)
    forget()
    forget()
    cancellation.cancel(Cause.INTERRUPT)
    assert told == []


def test_nobodys_except_exception_keeps_a_cancellation() -> None:
    cancellation = Cancellation()
    cancellation.raise_if_cancelled()
    cancellation.cancel(Cause.DEADLINE)
    with pytest.raises(Cancelled) as caught:
        cancellation.raise_if_cancelled()
    assert caught.value.cause is Cause.DEADLINE
    assert not isinstance(caught.value, Exception)


def test_one_of_many_threads_wins() -> None:
    cancellation, barrier, won = Cancellation(), threading.Barrier(8), list[Cause]()

    def race(cause: Cause) -> None:
        barrier.wait()
        if cancellation.cancel(cause):
            won.append(cause)

    threads = [threading.Thread(target=race, args=(cause,)) for cause in [*Cause] * 2][:8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [cancellation.cause]
