"""BatchNorm of a stack of networks in mixed precision on an accelerator."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode


class SingleNorms(TorchFunctionMode):
    """In the block BatchNorm computes in single precision, and returns the type of its inputs.

    Alone it does so by itself. Under vmap it leaves the weights to another kernel; on a GPU its own one then takes the
    inputs' type for that of the statistics, and raises RuntimeError in the backward pass.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            func not in (F.batch_norm, torch.batch_norm)
            or not args
            or args[0].dtype not in (torch.bfloat16, torch.half)
        ):
            return func(*args, **(kwargs or {}))
        return func(args[0].float(), *args[1:], **(kwargs or {})).to(args[0].dtype)


def single_norms(net: nn.Module, device: torch.device) -> AbstractContextManager[Any]:
    """`SingleNorms` where a stack of this network needs it."""
    casts = device.type != "cpu" and torch.is_autocast_enabled(device.type)
    return SingleNorms() if casts and any(isinstance(m, _BatchNorm) for m in net.modules()) else nullcontext()
