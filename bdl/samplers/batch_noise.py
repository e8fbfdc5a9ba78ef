"""Batch noise: Var(g), the variance of the gradient due to mini-batches, estimated along the chain or given.

Dynamics that subtract it share the functions below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bdl.errors import ConfigError

SUBTRACTS_INDEPENDENT = (
    "subtracts the batch noise of independent batches (data.replacement=true); the batches of a shuffled epoch have "
    "less, because their noise cancels in slow directions, and there it subtracts too much"
)
EVERY = 20  # steps between estimates; one costs two passes over the gradient
KEEP = 0.98  # decay of the running mean, about 50 estimates


class BatchNoise:
    """Estimates Var(g) per coordinate: a running mean of half the squared difference of consecutive gradients.

    Two consecutive batches are independent, or nearly so without replacement: E(g' - g)²/2 = Var(g) + (H Δθ)²/2. The
    second part is smaller than the injected noise by a factor (lr h)²/4a for curvature h of U/N. This factor is small
    for a stable step.

    Without batch noise (`Host.sees_all_data`) the second part is all that the estimate shows.
    """

    def __init__(self) -> None:
        self.mean: Tensor | None = None  # (..., d); `variance` corrects the bias of its start
        self.count = 0
        self.previous: Tensor | None = None  # (..., d) gradient of the first step of a pair

    def observe(self, step: int, g: Tensor) -> None:
        """g: (..., d) gradient of the mean batch loss, before prior, clipping and weighting."""
        if step % EVERY == 0:
            self.previous = g.clone()
        elif step % EVERY == 1 and self.previous is not None:
            half_square = self.previous.sub_(g).square_().mul_(0.5)
            if self.mean is None:
                self.mean = torch.zeros_like(half_square)
            self.mean.lerp_(half_square, 1 - KEEP)
            self.count += 1
            self.previous = None

    def reorder(self, order: Tensor) -> None:
        """Swap the gradients that wait for the second of their pair, together with the states of their chains."""
        if self.previous is not None:
            self.previous = self.previous[order]

    @property
    def variance(self) -> Tensor | None:
        """(..., d) estimate of Var(g), or None before the first pair of steps."""
        return None if self.mean is None else self.mean / (1 - KEEP**self.count)

    def to(self, theta: Tensor) -> None:
        """Take the type and the device of theta."""
        self.load_state_dict(self.state_dict(), theta)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "count": self.count, "previous": self.previous}

    def load_state_dict(self, state: dict[str, Any], theta: Tensor) -> None:
        self.mean, self.previous = (
            None if state[k] is None else state[k].to(theta, copy=True) for k in ("mean", "previous")
        )
        self.count = state["count"]


def checked_variance(grad_var: Any) -> Any:
    """The argument `grad_var` as None, "estimated" or a tensor. Raises ConfigError for anything else."""
    if grad_var is None or isinstance(grad_var, str) and grad_var == "estimated":
        return grad_var
    try:
        value = torch.as_tensor(math.nan if isinstance(grad_var, bool) else grad_var, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        value = torch.tensor(math.nan)
    if not bool((value >= 0).all()):
        raise ConfigError(f'grad_var must be null, "estimated", or a variance >= 0, got {grad_var!r}')
    return value


def needs_variance(grad_var: Any) -> frozenset[str]:
    return frozenset(["grad_var"] if isinstance(grad_var, str) else [])


def subtraction_caveat(grad_var: Any) -> str | None:
    """What `Sampler.explain` says about a dynamics that subtracts `grad_var`."""
    return None if grad_var is None else SUBTRACTS_INDEPENDENT


def variance_words(grad_var: Any) -> str:
    """The part of a dynamics' name that says which batch noise it subtracts."""
    if grad_var is None:
        return ""
    if isinstance(grad_var, str):
        return f" less {grad_var} batch noise"
    mean = grad_var.double().mean().item()
    return f" less batch noise of {'variance' if grad_var.numel() == 1 else 'mean variance'} {mean:.6g}"


def step_variance(grad_var: Any, lr: float | Tensor, like: Tensor, extra: dict[str, Tensor] | None) -> Tensor | None:
    """(..., d) or () variance of lr g due to the batches, according to `grad_var`; None where it is None."""
    if grad_var is None:
        return None
    v = grad_var.to(like, non_blocking=True) if extra is None or "grad_var" not in extra else extra["grad_var"]
    return lr**2 * v


def remaining_ratio(ratio: Tensor, grad_var: Any, ratio_of: Callable[[Tensor], Tensor]) -> Tensor:
    """(..., d) noise ratio left after subtracting `grad_var`.

    ratio: that of the true batch noise. ratio_of: variance -> noise ratio. A dynamics subtracts at most the noise that
    it injects, whose ratio is 1.
    """
    if grad_var is None:
        return ratio
    return ratio - (ratio if isinstance(grad_var, str) else ratio_of(grad_var.to(ratio))).clamp_max(1)
