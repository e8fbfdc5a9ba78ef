"""WorkProgress: how much of a long computation is done."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # rich is slow to import
    from rich.progress import Progress

LINES = 10  # lines at most where there is no terminal


class WorkProgress:
    """Shows the share that is done and the remaining time: a bar on a terminal, up to 10 lines in a log file.

    It shows nothing of work that ends sooner than `seconds`.

        with WorkProgress("evaluating") as progress:
            posterior.evaluate_all(loaders, progress)

    Args:
        name: of the work, as the lines begin.
        seconds: time until the first line, or the bar.
    """

    def __init__(self, name: str, seconds: float = 2.0):
        self.name, self.seconds = name, seconds
        self._started, self._lines = False, 0

    def __enter__(self) -> WorkProgress:
        self._bar = _bar(self.name)
        self._task = self._bar.add_task(self.name)
        self._began = time.perf_counter()
        return self

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` is done, in any unit."""
        seconds = time.perf_counter() - self._began
        if seconds < self.seconds:
            return
        if self._bar.console.is_terminal:
            self._bar.update(self._task, completed=done, total=total)
            self._bar.start()  # does nothing if the bar has started
            self._started = True
        elif (line := LINES * done // total) > self._lines:
            self._lines = line
            left = seconds / done * (total - done)
            print(f"{self.name}: {done / total:.0%}, {seconds:.0f} s, {left:.0f} s left", flush=True)

    def __exit__(self, *_: object) -> None:
        if self._started:
            self._bar.stop()


def _bar(name: str) -> Progress:
    """rich's progress bar, imported here because rich is slow to import."""
    from rich import progress as rich

    return rich.Progress(
        rich.TextColumn(name), rich.BarColumn(), rich.TaskProgressColumn(), rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(), refresh_per_second=2,
    )  # fmt: skip
