"""torch's switches for all of a process.

Not in the scripts: submitit pickles a script's functions with the modules that they name, and these can't be pickled.
"""

from __future__ import annotations

import torch


def allow_tf32(allowed: bool) -> None:
    """fp32 products of 10 bits' precision; cuDNN allows them by default, unlike matrix products."""
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def leave_new_memory_unfilled() -> None:
    """Have deterministic runs not fill every new tensor with NaN first: 500 kernels more in a step of ResNet20."""
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
