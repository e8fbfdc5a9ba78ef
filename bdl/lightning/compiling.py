"""Compiled networks, where they can be compiled."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from bdl.errors import BdlWarning


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
