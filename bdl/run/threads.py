"""How many CPU threads torch has while bdl samples, evaluates or reports: one rule for every door."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral

import torch

from bdl.errors import ConfigError
from bdl.run.config import usable_cores


def thread_count(threads: int | None = 1, processes: int = 1) -> int:
    """How many one of `processes` on this machine takes; None shares all cores among them.

    One is the default: kernels of a small network are too small to be divided, and where other work keeps the cores
    busy each kernel waits for its slowest part. Raises ConfigError for less than one.
    """
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, Integral) or threads < 1):
        raise ConfigError(f"threads must be a whole number >= 1, or None for all cores, got {threads!r}")
    return int(threads or 0) or max(1, usable_cores() // processes)


@contextmanager
def on_threads(threads: int | None = 1) -> Iterator[None]:
    """Inside, torch has `thread_count(threads)` threads, and afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(thread_count(threads))
    try:
        yield
    finally:
        torch.set_num_threads(before)
