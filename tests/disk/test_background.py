"""Tests of `bdl.disk.background`."""

import threading

import pytest

from bdl.disk.background import Background
from bdl.errors import StoreError


def test_calls_are_made_in_their_order_and_by_another_thread():
    background, made = Background(2), []
    for i in range(20):
        background.run(lambda i=i: made.append((i, threading.current_thread())))
    background.wait()
    assert [i for i, _ in made] == list(range(20))
    assert {thread for _, thread in made}.isdisjoint({threading.current_thread()}) and len({t for _, t in made}) == 1
    background.close()
    assert not made[0][1].is_alive()


def test_no_more_calls_are_pending_than_the_bound():
    """While the first call is held, the second waits, and a third has no room until the first has returned."""
    background, held, third = Background(2), threading.Event(), threading.Event()
    made: list[int] = []
    background.run(held.wait)
    background.run(lambda: made.append(2))

    def add() -> None:
        background.run(lambda: made.append(3))
        third.set()

    caller = threading.Thread(target=add)
    caller.start()
    assert not third.wait(0.1) and made == []
    held.set()
    caller.join()
    background.wait()
    assert made == [2, 3]
    background.close()


def fail() -> None:
    raise StoreError("the disk is full")


def test_an_error_ends_all_and_is_raised_by_every_later_method():
    background, made, held = Background(3), [], threading.Event()
    background.run(lambda: held.wait() and fail())
    background.run(lambda: made.append(1))
    held.set()
    for method in (background.wait, lambda: background.run(fail), background.wait):
        with pytest.raises(StoreError, match="^the disk is full$"):
            method()
    background.close()
    assert made == []


def test_an_error_is_raised_before_the_bound_is_reached():
    background = Background(100)
    background.run(fail)
    with pytest.raises(StoreError):
        for _ in range(99):
            background.run(threading.Event().set)
            background._pending[-1].exception(10) if background._pending else None
    background.close()
