"""Weighted moments of values that arrive a few at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class WeightedMoments:
    """Mean and standard deviation of weighted values that arrive k at a time (Chan, Golub & LeVeque 1983, eq. 2.1).

    Two sets of values with total weights V and W, means a and b, and sums of squared deviations A and B have together

        mean = a + (b - a) W / (V + W),    sum of squared deviations = A + B + (b - a)² V W / (V + W)

    E x² - (E x)² would lose all digits of a standard deviation that is small beside the mean.

        >>> moments = WeightedMoments()
        >>> moments.add(torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 1.0]))
        >>> moments.add(torch.tensor([[5.0]]), torch.tensor([2.0]))
        >>> moments.mean, moments.std
        (tensor([3.5000], dtype=torch.float64), tensor([1.6583], dtype=torch.float64))
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self.mean = torch.zeros((), dtype=torch.float64)
        self.squares = torch.zeros((), dtype=torch.float64)  # weighted sum of squared deviations from the mean

    def add(self, values: Tensor, weights: Tensor) -> None:
        """Add values (k, ...) with weights (k,) >= 0."""
        weight = float(weights.double().sum())
        if weight == 0:
            return
        shape, w = values.shape[1:], weights.double()
        values = values.double().flatten(1)
        mean = w @ values / weight
        squares = w @ (values - mean).square_()
        total = self.weight + weight
        step = mean.view(shape) - self.mean
        self.mean = self.mean + step * (weight / total)
        self.squares = self.squares + squares.view(shape) + step.square() * (self.weight * weight / total)
        self.weight = total

    def state_dict(self) -> dict[str, float | Tensor]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    @property
    def std(self) -> Tensor:
        """(...) weighted standard deviation, without Bessel's correction."""
        return (self.squares / self.weight).sqrt()
