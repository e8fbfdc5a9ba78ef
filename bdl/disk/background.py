"""Calls that a thread makes while its caller goes on, such as calls that write samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """Makes calls in their order, by one thread. At most `most` calls are pending; further calls wait.

    The first call that raises is the last one: later calls are not made, and `run` and `wait` raise its error.
    """

    def __init__(self, most: int):
        self.most = most
        self._thread: ThreadPoolExecutor | None = None
        self._pending: deque[Future[None]] = deque()
        self._failed = False

    def run(self, call: Callable[[], object]) -> None:
        """Have a call made, once there is room for it."""
        self._wait(self.most - 1)
        self._thread = self._thread or ThreadPoolExecutor(1, "bdl-background")
        self._pending.append(self._thread.submit(self._make, call))

    def wait(self) -> None:
        """Return when all calls have been made."""
        self._wait(0)

    def close(self) -> None:
        """Return when all calls have been made, and the thread has ended. It raises nothing."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _wait(self, left: int) -> None:
        while self._pending and (len(self._pending) > left or self._pending[0].done()):
            self._pending[0].result()
            self._pending.popleft()

    def _make(self, call: Callable[[], object]) -> None:
        if not self._failed:
            self._failed = True  # unless the call returns
            call()
            self._failed = False
