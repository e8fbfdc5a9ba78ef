"""Functions of tensors whose kernels `torch.compile` fuses, so that a CUDA graph has fewer of them.

What it makes is a function of the shapes alone: nothing is chosen by timing, and no shape is dynamic. So a resumed run,
in another process too, has the kernels of the run that it goes on from.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from bdl.errors import BdlWarning
from bdl.torch_private import compiler_options

# Of the compiler: each of them lets it choose a kernel, and with it the order of a sum, by a benchmark
TIMED = {"triton.autotune_pointwise": False, "shape_padding": False, "deterministic": True}


class Fused:
    """The function, compiled at the first call with tensors of a kind; after a failure as it is, with a BdlWarning.

    function: maps tensors to tensors, and may write to them. It has no loop over data, and draws nothing.
    """

    def __init__(self, function: Callable[..., Any]):
        self.plain = function
        self._compiled: Callable[..., Any] | None = None
        self._failed = False

    def __call__(self, *args: Any) -> Any:
        if self._failed:
            return self.plain(*args)
        try:
            if self._compiled is None:
                self._compiled = compile_alone(self.plain)
            return self._compiled(*args)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # no compiler, an operation that it lacks, or a wrong call
            self._failed = True
            result = self.plain(*args)  # raises the error of a wrong call
            warn_of(error)
            return result


def compile_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function by `torch.compile`, in one piece, apart from other functions of the same source.

    torch counts what it compiles by code object, and after eight of a kind it compiles no more of it in a process.
    """
    bound: Any = getattr(function, "__self__", None)
    plain: Any = getattr(function, "__func__", function)
    own = types.FunctionType(
        plain.__code__.replace(), plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__
    )
    own.__kwdefaults__ = plain.__kwdefaults__
    known = compiler_options()
    options: Any = {name: value for name, value in TIMED.items() if name in known}
    target = own if bound is None else types.MethodType(own, bound)
    return torch.compile(target, fullgraph=True, dynamic=False, options=options)


def warn_of(error: Exception) -> None:
    """Warn in one line that the compiler has failed."""
    cause = getattr(error, "inner_exception", error)  # the compiler's own error
    reason = " ".join(f"{type(cause).__name__}: {cause}".split())[:300]
    warnings.warn(f"torch.compile failed, running without it: {reason}", BdlWarning, stacklevel=3)
