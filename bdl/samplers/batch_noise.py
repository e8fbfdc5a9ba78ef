"""Batch noise: Var(g), the variance of the gradient due to mini-batches, estimated along the chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bdl.samplers.dynamics.base import Transition
from bdl.samplers.resume import Saved

EVERY = 20  # steps between estimates; one costs two passes over the gradient
MOST = 10**6  # coordinates of all chains whose variance is followed, unless a dynamics reads those of all
KEEP = 0.98  # decay of the running mean, about 50 estimates


def stride_of(theta: Tensor, dynamics: Transition) -> int:
    """How many coordinates of θ (..., d) lie between two whose variance is followed.

    1 where the dynamics reads the variance of each. Else it is for the mean over coordinates alone, and odd, so that
    it has no factor in common with the usual widths of layers.
    """
    stride = -(-theta.numel() // MOST)  # a stride over all chains together
    reads_each = "grad_var" in dynamics.needs or dynamics.reads_variances
    return 1 if reads_each else stride | 1


class BatchNoise(Saved):
    """Estimates Var(g) per coordinate: a running mean of half the squared difference of consecutive gradients.

    Two consecutive batches are independent, or nearly so without replacement: E(g' - g)²/2 = Var(g) + (H Δθ)²/2. The
    second part is smaller than the injected noise by a factor (lr h)²/4a for curvature h of U/N. This factor is small
    for a stable step.

    Without batch noise (`Host.sees_all_data`) the second part is all that the estimate shows.
    """

    saved = ("mean", "count", "previous")

    def __init__(self, stride: int = 1) -> None:
        """stride: every so many coordinates are followed; d stands for their number in what follows."""
        self.stride = stride
        self.mean: Tensor | None = None  # (..., d); `variance` corrects the bias of its start
        self.count = 0
        self.previous: Tensor | None = None  # (..., d) gradient of the first step of a pair

    @staticmethod
    def reads(step: int) -> bool:
        """Whether `observe` reads the gradient of this step."""
        return step % EVERY < 2

    def observe(self, step: int, g: Tensor) -> None:
        """g: (..., d) gradient of the mean batch loss, before prior, clipping and weighting."""
        if step % EVERY == 0:
            self.previous = g[..., :: self.stride].clone() if self.stride > 1 else g.clone()
        elif step % EVERY == 1 and self.previous is not None:
            g = g[..., :: self.stride] if self.stride > 1 else g
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

    def load_state_dict(self, state: Mapping[str, Any], theta: Tensor) -> None:
        super().load_state_dict(state, theta)
        estimates = [None if t is None else t.to(theta) for t in (self.mean, self.previous)]
        every = [
            t if t is None or t.shape != theta.shape else t[..., :: self.stride] for t in estimates
        ]  # older states
        self.mean, self.previous = every
