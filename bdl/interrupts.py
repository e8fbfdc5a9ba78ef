"""Ctrl-C: during work of a library that swallows it, with a word on what it leaves behind; signals in words."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def signal_in_words(signum: int) -> str:
    """What a person calls a signal.

    >>> signal_in_words(2), signal_in_words(15)
    ('Ctrl-C (SIGINT)', 'SIGTERM')
    """
    if signum == signal.SIGINT:
        return "Ctrl-C (SIGINT)"
    try:
        return signal.Signals(signum).name
    except ValueError:  # a real-time signal
        return f"signal {signum}"


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt once the work inside has ended, whatever it has made of one that came meanwhile.

    The CSV parser of pandas reads a file by Python's code, drops the exception that Ctrl-C raises there, and calls the
    file damaged; or goes on as if nothing had been.
    """
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception as error:
        if came:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    if came and before is signal.default_int_handler:
        raise KeyboardInterrupt


@contextmanager
def explained(kept: Callable[[], str]) -> Iterator[None]:
    """A KeyboardInterrupt of the work inside says what is kept, without the traceback of what it met."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(kept()) from None
