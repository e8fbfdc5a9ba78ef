"""WeightedNLL: rows that count as several rows, or as a part of one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bdl.likelihoods.base import Likelihood
from bdl.likelihoods.wrapper import Wrapper


@dataclass(frozen=True)
class WeightedNLL(Wrapper):
    """w times the negative log density of another likelihood: U = -Σ_i w_i log p(y_i|x_i, θ) - log p(θ).

    w are frequency weights: a row of weight 2 is the same as the row twice, in U and in its gradient. N stays the
    number of rows, so that a batch mean of w x loss is an unbiased estimate of the mean over all rows. Targets carry w
    in one more, last column: y (..., B, k + 1); a class and its weight are y (..., B, 2).

    >>> from bdl.likelihoods import CategoricalNLL
    >>> weighted, logits = WeightedNLL(CategoricalNLL()), torch.tensor([[0.0, 1.0]])
    >>> weighted(logits, torch.tensor([[1.0, 2.0]])) / CategoricalNLL()(logits, torch.tensor([1]))
    tensor([2.])
    """

    likelihood: Likelihood

    @property
    def inside(self) -> Likelihood:
        return self.likelihood

    @property
    def unweighted(self) -> Likelihood:
        return self.likelihood

    def split(self, y: Tensor) -> tuple[Tensor, Tensor]:
        values, w = y[..., :-1], y[..., -1]
        return (values[..., 0].long() if self.outputs == "logits" else values), w

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        values, w = self.split(y)
        return self.likelihood(outputs, values) * w

    def mean_and_gradient(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        values, w = self.split(y)
        items = values.unsqueeze(-1 if self.outputs == "logits" else -2)  # each item is a batch of one, with its loss
        losses, gradient = self.likelihood.mean_and_gradient(outputs.unsqueeze(-2), items)
        return (losses * w).mean(-1), gradient.squeeze(-2).mul_(w.unsqueeze(-1) / w.shape[-1])

    def check(self, y: Tensor, outputs: int | None = None) -> None:
        self.likelihood.check(self.split(y)[0], outputs)


def with_weights(y: Tensor, w: Tensor) -> Tensor:
    """(n, k + 1) float32 targets with their weights (n,), as `WeightedNLL` reads them; y: (n,) classes or (n, k)."""
    columns = y.unsqueeze(1) if y.ndim == 1 else y
    return torch.cat([columns.float(), w.float().unsqueeze(1)], 1)
