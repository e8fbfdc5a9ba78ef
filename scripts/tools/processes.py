"""What a command and all processes that it starts take of the machine."""

import os
import resource
import subprocess
import time
from collections.abc import Sequence
from typing import Any


def core_seconds() -> float:
    """User and system time of all ended children of this process."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def timed(command: Sequence[str], **options: Any) -> tuple[subprocess.CompletedProcess, dict[str, float]]:
    """Run a command from the start of its interpreter to its end; the core-seconds and seconds that it took."""
    before, began = core_seconds(), time.perf_counter()
    done = subprocess.run(command, **options)
    used, seconds = core_seconds() - before, time.perf_counter() - began
    return done, {"core_seconds": round(used, 1), "seconds": round(seconds, 1)}


def one_chain_a_core() -> dict[str, str]:
    """The environment in which JAX, and so bde, runs a chain on each core."""
    return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={os.cpu_count()}", **os.environ}
