"""Subtracting: what dynamics share that inject less noise, because the batches have brought some already."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.dynamics.base import Dynamics, Scalar

SUBTRACTS_INDEPENDENT = (
    "subtracts the batch noise of independent batches (data.replacement=true); the batches of a shuffled epoch have "
    "less, because their noise cancels in slow directions, and there it subtracts too much"
)

MEAN_ONLY = (
    "brings the mean over directions to T: directions with more batch noise than the mean stay hot, the others become "
    "cold, and neither T_eff nor the temperature of momenta shows it"
)


class Subtracting(Dynamics):
    """A dynamics that takes the variance of batch noise from what it injects, at most all of it.

    V = `grad_var` is the variance that mini-batches give to g: a number, (d,), or "estimated" along the chain; None
    subtracts nothing. Noise that coordinates have in common stays in some directions: on a linear regression of
    condition 58 at a noise ratio of 0.5 the variances are 0.51 to 2.4 times the right ones, though their mean is right
    (scripts/experiment.py noise). Raises ConfigError for anything else.
    """

    grad_var: Any
    _near = None  # a given variance in the type and on the device of θ, where it goes once and not in every step

    def __post_init__(self) -> None:
        v = self.grad_var
        if v is None or isinstance(v, str) and v == "estimated":
            return
        try:
            value = torch.as_tensor(math.nan if isinstance(v, bool) else v, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            value = torch.tensor(math.nan)
        if not bool((value >= 0).all()):
            raise ConfigError(f'grad_var must be null, "estimated", or a variance >= 0, got {v!r}')
        object.__setattr__(self, "grad_var", value)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(["grad_var"] if isinstance(self.grad_var, str) else [])

    @property
    def reads_variances(self) -> bool:  # type: ignore[override]
        return self.grad_var is not None

    @property
    def thermostat(self) -> bool:  # type: ignore[override]
        return self.grad_var is not None

    @property
    def caveat(self) -> str | None:
        return None if self.grad_var is None else f"{MEAN_ONLY}; it {SUBTRACTS_INDEPENDENT}"

    def from_batches(self, lr: Scalar, like: Tensor, extra: dict[str, Tensor] | None) -> Tensor | None:
        """(..., d) or () variance that batches give to lr g; None where nothing is subtracted."""
        if self.grad_var is None:
            return None
        if extra is not None and "grad_var" in extra:
            return lr**2 * extra["grad_var"]
        near = self._near
        if near is None or near.dtype != like.dtype or near.device != like.device:
            near = self.grad_var.to(like)
            object.__setattr__(self, "_near", near)
        return lr**2 * near

    def heating(self, s: Any, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        """(..., d) terms whose mean is T_eff/T - 1: the noise ratio, less that of V, at most that of all the noise."""
        ratio = self.noise_ratio(s, grad_var, lr, tau)
        if self.grad_var is None:
            return ratio
        known = isinstance(self.grad_var, Tensor)
        return ratio - (self.noise_ratio(s, self.grad_var.to(ratio), lr, tau) if known else ratio).clamp_max(1)

    def heat_along(self, c: Scalar, mean: Scalar, lr: Scalar, tau: Scalar) -> Any:
        """A direction is freed of the mean of V, at most of what is injected, and keeps the rest of its noise."""
        if self.grad_var is None:
            return super().heat_along(c, mean, lr, tau)
        v = float(self.grad_var.double().mean()) if isinstance(self.grad_var, Tensor) else mean
        taken = super().heat_along(v, mean, lr, tau) - 1
        taken = taken.clamp_max(1) if isinstance(taken, Tensor) else min(taken, 1.0)
        return super().heat_along(c, mean, lr, tau) - taken

    def subtraction(self) -> str:
        """The part of the dynamics' name that says which batch noise it subtracts."""
        if not isinstance(self.grad_var, Tensor):
            return f" less {self.grad_var} batch noise" if self.grad_var else ""
        mean = "variance" if self.grad_var.numel() == 1 else "mean variance"
        return f" less batch noise of {mean} {self.grad_var.double().mean().item():.6g}"
