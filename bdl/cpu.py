"""What Linux says of the CPU."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """The entries of the first CPU, such as "model name", "vendor_id" and "flags"; empty on other systems."""
    try:
        lines = cpuinfo.read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
