"""Batch noise: Var(g), the variance of the gradient due to mini-batches, estimated along the chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bdl.samplers.dynamics.base import Transition
from bdl.samplers.resume import Saved

EVERY = 20  # steps between estimates; one costs three passes over the gradient
WEIGHTS = (1.0, -2.0, 1.0)  # of the consecutive gradients of one estimate; the squares of these sum to SQUARES
SQUARES = 6.0
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


def left_by_a_pass(batches: float) -> float:
    """Var(g) over the mean of the estimate of `BatchNoise`, where a pass over the N items has so many disjoint batches.

    B items drawn without replacement have Var(g) = (1 - B/N) S²/B, S² being the variance over the items. Two batches of
    a pass have the covariance -S²/N: their errors cancel over the pass. So a weighted sum of three of their gradients,
    with weights that sum to 0, has the variance of independent batches, S²/B times that of the weights. The share that
    is right is 1 - B/N. It is 0 for a batch of all the data. Three batches that lie in two passes need less of a
    correction, by a third of B/N at most.
    """
    return max(0.0, 1 - 1 / batches)


class BatchNoise(Saved):
    """Estimates Var(g) per coordinate: a running mean of (g₀ - 2 g₁ + g₂)² / 6, of three consecutive gradients.

    Of independent batches at one θ its mean is Var(g). What the motion of θ adds is small, because a gradient that
    changes linearly cancels. Take curvature h of U/N, friction a and stationary momenta, and let lr h be small. The
    noise ratio lr Var(g) / (2 a tau) is then too large, absolutely and by its own share, by

                            absolute                 by its share
        SGHMC               (lr h)² / (3 (2 - a))    lr h (2 + a) / 3
        SGLD, which is a=1  (lr h)² / 3              lr h
        BAOAB               (lr h)² / 12             lr h (2 + a) / 3

    The first is the change of the exact gradient: SGHMC's displacements m₁ and m₂ differ by -a m₁ and the noise
    injected, with the variance 4 a lr tau / (2 - a); half the squared difference of two gradients would have
    (lr h)² / (2 a (2 - a)), which is 75 times as much at a = 0.02. The second is the noise of g₀ and of g₁, which moves
    θ before the next gradient. Both are averages over directions, most of which are soft.
    Where lr h comes near 1 in the directions with the most noise, the estimate is far too large. No fixed weights of a
    few gradients mend that: noise and motion then look alike.

    Batches of one pass over the data are disjoint, and that makes the estimate too large, see `Host.noise_share`.
    """

    saved = ("mean", "count", "previous", "seen")

    def __init__(self, stride: int = 1) -> None:
        """stride: every so many coordinates are followed; d stands for their number in what follows."""
        self.stride = stride
        self.mean: Tensor | None = None  # (..., d); `variance` corrects the bias of its start
        self.count = 0
        self.previous: Tensor | None = None  # (..., d) weighted sum of the gradients that were seen of three
        self.seen = 0  # how many these are

    @staticmethod
    def reads(step: int) -> bool:
        """Whether `observe` reads the gradient of this step."""
        return step % EVERY < len(WEIGHTS)

    def observe(self, step: int, g: Tensor) -> None:
        """g: (..., d) gradient of the mean batch loss, before prior, clipping and weighting."""
        place = step % EVERY
        if place >= len(WEIGHTS):
            return
        g = g[..., :: self.stride] if self.stride > 1 else g
        if place == 0:
            self.previous, self.seen = g.clone(), 1
        elif self.previous is not None and place == self.seen:
            self.previous.add_(g, alpha=WEIGHTS[place])
            self.seen += 1
            if self.seen == len(WEIGHTS):
                self._learn(self.previous.square_().div_(SQUARES))

    def _learn(self, square: Tensor) -> None:
        if self.mean is None:
            self.mean = torch.zeros_like(square)
        self.mean.lerp_(square, 1 - KEEP)
        self.count += 1
        self.previous, self.seen = None, 0

    def reorder(self, order: Tensor) -> None:
        """Swap the gradients that wait for the others of their three, together with the states of their chains."""
        if self.previous is not None:
            self.previous = self.previous[order]

    @property
    def variance(self) -> Tensor | None:
        """(..., d) estimate of Var(g), or None before the first three steps."""
        return None if self.mean is None else self.mean / (1 - KEEP**self.count)

    def load_state_dict(self, state: Mapping[str, Any], theta: Tensor) -> None:
        super().load_state_dict({"seen": 1 if state["previous"] is not None else 0, **state}, theta)  # older: a pair
        estimates = [None if t is None else t.to(theta) for t in (self.mean, self.previous)]
        every = [
            t if t is None or t.shape != theta.shape else t[..., :: self.stride] for t in estimates
        ]  # older states
        self.mean, self.previous = every
