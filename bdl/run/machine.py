"""Process-wide settings of torch and of the C library, and compiled networks.

The scripts import these functions instead of naming torch's modules: submitit pickles the functions of a script
together with the modules that they name, and some modules of torch cannot be pickled.
"""

from __future__ import annotations

import ctypes
import sys
import warnings
from typing import Any

import torch
from torch import nn

from bdl.errors import BdlWarning

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_LARGEST = 32 * 2**20  # bytes, the most that glibc takes for the second


def allow_tf32(allowed: bool) -> None:
    """fp32 products of 10 bits' precision; cuDNN allows them by default, unlike matrix products."""
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def leave_new_memory_unfilled() -> None:
    """Have deterministic runs not fill every new tensor with NaN first: 500 kernels more in a step of ResNet20."""
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def keep_freed_memory() -> bool:
    """Have glibc keep what is freed, for the next step, instead of giving it back; False where there is no glibc.

    What has been given back comes as new pages, zeroed one by one: 40 MB and 10,000 page faults in a step of ResNet20
    at batch 128, 3 % of its time on one core.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST) and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def compile_if_possible(net: nn.Module) -> None:
    """Let torch.compile run the network's calls, its parameters and their names as they are.

    Only calls that record gradients, which training makes by the thousand: evaluation has other shapes, seldom comes,
    and would wait for each to be compiled. torch compiles at the first call. Where that fails the network goes on
    uncompiled, after one BdlWarning.
    """
    net.compile()
    compiled: Any = net._compiled_call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return net._call_impl(*args, **kwargs)
        try:
            return compiled(*args, **kwargs)
        except Exception as error:  # a compiler that is missing, an operation it lacks; or the call itself is wrong
            net._compiled_call_impl = None
            outputs = net(*args, **kwargs)  # raises what a wrong call raises
            cause = getattr(error, "inner_exception", error)  # of the compiler's own
            reason = " ".join(f"{type(cause).__name__}: {cause}".split())[:300]
            warnings.warn(f"torch.compile failed, going on without it: {reason}", BdlWarning, stacklevel=2)
            return outputs

    net._compiled_call_impl = call
