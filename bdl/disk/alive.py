"""Whether a process of this machine is alive, and when it started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ENDED = "ended"  # the start of a process that has ended and that its parent has not asked about


def is_alive(pid: int) -> bool:
    """Whether a process of this number runs. One that has ended, but that its parent has not asked about, does not.

    Where a container's first process asks about no orphan, as a shell does, a killed worker keeps its number for ever.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    return start_of(pid) != ENDED


def start_of(pid: int) -> str | None:
    """The boot of the machine and the process's start after it, in clock ticks; ENDED; None if that cannot be found."""
    if not Path("/proc/self/stat").exists():
        ps = subprocess.run(["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True)
        state, _, started = ps.stdout.strip().partition(" ")
        return ENDED if state.startswith("Z") else started.strip() or None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ENDED if fields[0] in "ZX" else f"{boot} {fields[19]}"
