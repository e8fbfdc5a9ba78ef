"""Var(g), how much the mini-batch alone makes the gradient vary: estimated along the chain, given, and subtracted."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bdl.errors import ConfigError

INDEPENDENT = (
    "takes off the noise of independent batches (data.replacement=true); of the batches of a shuffled epoch, whose "
    "noise cancels in slow directions, it takes off too much there"
)
EVERY = 20  # steps between estimates; one costs two passes over the gradient
KEEP = 0.98  # decay of the running mean, about 50 estimates


class GradientNoise:
    """Half the squared difference of the gradients of two consecutive steps, as a running mean per coordinate.

    Two consecutive batches are independent (nearly, without replacement), so E(g' - g)²/2 = Var(g) + (H Δθ)²/2. The
    second part is smaller than the injected noise by (lr h)²/4a for curvature h of U/N, small for a stable step.
    """

    def __init__(self) -> None:
        self.mean: Tensor | None = None  # (..., d) bias-corrected by `count` when read
        self.count = 0
        self._before: Tensor | None = None  # (..., d) gradient of the first step of a pair

    def observe(self, step: int, g: Tensor) -> None:
        """g: (..., d) gradient of the mean batch loss, before prior, clipping and weighting."""
        if step % EVERY == 0:
            self._before = g.clone()
        elif step % EVERY == 1 and self._before is not None:
            half_square = self._before.sub_(g).square_().mul_(0.5)
            if self.mean is None:
                self.mean = torch.zeros_like(half_square)
            self.mean.lerp_(half_square, 1 - KEEP)
            self.count += 1
            self._before = None

    @property
    def variance(self) -> Tensor | None:
        """(..., d) estimate of Var(g), or None before the first pair of steps."""
        return None if self.mean is None else self.mean / (1 - KEEP**self.count)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "count": self.count, "before": self._before}

    def load_state_dict(self, state: dict[str, Any], like: Tensor) -> None:
        self.mean, self._before = (
            None if state[k] is None else state[k].to(like, copy=True) for k in ("mean", "before")
        )
        self.count = state["count"]


def known_variance(grad_var: Any) -> Any:
    """The argument `grad_var` as None, "estimated" or a tensor. Raises ConfigError for anything else."""
    if grad_var is None or isinstance(grad_var, str) and grad_var == "estimated":
        return grad_var
    try:
        value = torch.as_tensor(grad_var, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        value = torch.tensor(math.nan)
    if not bool((value >= 0).all()):
        raise ConfigError(f'grad_var must be null, "estimated", or a variance >= 0, got {grad_var!r}')
    return value


def needs_variance(grad_var: Any) -> frozenset[str]:
    return frozenset(["grad_var"] if isinstance(grad_var, str) else [])


def caveat(grad_var: Any) -> str | None:
    """What `explain()` says of a dynamics that subtracts `grad_var`."""
    return None if grad_var is None else INDEPENDENT


def said(grad_var: Any) -> str:
    """`grad_var` in a word."""
    if isinstance(grad_var, str):
        return grad_var
    values = grad_var.flatten().tolist()
    name = hashlib.sha256(repr(values).encode()).hexdigest()[:8]  # other values have another name
    return f"given ({values[0]:.6g})" if len(values) == 1 else f"given ({name})"


def batch_variance(grad_var: Any, lr: float | Tensor, like: Tensor, extra: dict[str, Tensor] | None) -> Tensor | None:
    """(..., d) or () variance of lr g that `grad_var` says the batches bring; None where it says nothing."""
    if grad_var is None:
        return None
    v = grad_var.to(like, non_blocking=True) if extra is None or "grad_var" not in extra else extra["grad_var"]
    return lr**2 * v


def left(ratio: Tensor, grad_var: Any, ratio_of: Callable[[Tensor], Tensor]) -> Tensor:
    """What stays of the batches' share of noise, `ratio`, when the share that `grad_var` makes is subtracted.

    No more is subtracted than is injected, which has share 1.
    """
    if grad_var is None:
        return ratio
    return ratio - (ratio if isinstance(grad_var, str) else ratio_of(grad_var.to(ratio))).clamp_max(1)
