"""Ctrl-C and SIGTERM: one rule of how they end the work, a script and a command; what they leave behind, in words.

Ctrl-C is a KeyboardInterrupt, which Python itself ends with status 130. In a command and under `bdl.sample` SIGTERM is
`Terminated`, which passes wherever a KeyboardInterrupt does, and ends with status 143. Elsewhere it is the caller's.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from bdl.errors import Stopped, printable


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


class Terminated(KeyboardInterrupt):
    """SIGTERM came. What cleans up after Ctrl-C does so after this too."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C came, and the error says what is kept. A script ends by it in one line, as by `Terminated`."""


def signal_of(error: BaseException) -> int | None:
    """The number of the signal that an error stands for; None for another error."""
    if isinstance(error, Stopped):
        return error.signum
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
    return None


@contextmanager
def terminable() -> Iterator[None]:
    """In the block SIGTERM raises `Terminated`, where it would have ended the process without a word.

    From then on a script that ends by `Stopped`, `Interrupted` or `Terminated` ends with one line and 128 + the number
    of the signal.
    """
    _end_scripts_as_signals_do()
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    handler = _Terminate()
    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Terminate:
    """The handler of one process. In a fork of it, such as a worker, SIGTERM does as it always did."""

    def __init__(self) -> None:
        self.process = os.getpid()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self.process:
            raise Terminated
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _end_scripts_as_signals_do() -> None:
    """Python itself ends so at a KeyboardInterrupt, and at none of its subclasses."""
    before: Callable[..., Any] = sys.excepthook
    if getattr(before, "of_bdl", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        number = signal_of(error)
        if number is None or kind is KeyboardInterrupt:
            before(kind, error, trace)
            return
        print(printable(f"bdl: {line_of(error)}"), file=sys.stderr)
        sys.exit(128 + number)  # Python takes the status from a hook too

    hook.of_bdl = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def line_of(error: BaseException, kept: str = "") -> str:
    """What a person is told of an interruption. kept: what it leaves behind, where the error does not say it."""
    if isinstance(error, Stopped):
        return str(error)
    word = "stopped by SIGTERM" if isinstance(error, Terminated) else "interrupted"
    return "; ".join(filter(None, (word, str(error) or kept)))


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise the interruption once the work inside has ended, whatever it has made of one that came meanwhile.

    The CSV parser of pandas reads a file by Python's code, drops the exception that Ctrl-C raises there, and calls the
    file damaged; or goes on as if nothing had been.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    kinds: dict[int, type[KeyboardInterrupt]] = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}
    noted: dict[int, Any] = {
        number: handler for number, handler in handlers.items()
        if isinstance(handler, _Terminate) or number == signal.SIGINT and callable(handler)
    }  # fmt: skip
    if not noted or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        noted[number](number, frame)

    for number in noted:
        signal.signal(number, note)
    try:
        yield
    except Exception as error:
        if came:
            raise kinds[came[0]] from error
        raise
    finally:
        for number, handler in noted.items():
            signal.signal(number, handler)
    ours = [n for n in came if noted[n] is signal.default_int_handler or isinstance(noted[n], _Terminate)]
    if ours:
        raise kinds[ours[0]]


@contextmanager
def explained(kept: Callable[[], str]) -> Iterator[None]:
    """An interruption of the work inside says what is kept, without the traceback of what it met."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise (Terminated if isinstance(error, Terminated) else Interrupted)(kept()) from None
