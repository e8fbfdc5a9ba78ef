"""Likelihoods of counts: Poisson and negative binomial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, NegativeBinomial, Poisson

from bdl.devices import widest
from bdl.likelihoods.base import Likelihood, Outputs, as_columns, halves
from bdl.likelihoods.per_target import check_each, positive_or_none


@dataclass(frozen=True)
class PoissonNLL(Likelihood):
    """-log Poisson(y; exp(outputs)): outputs (..., B, k) are log rates, y (..., B, k) counts -> (..., B) nats.

    >>> import torch
    >>> PoissonNLL()(torch.tensor([[0.0]]), torch.tensor([[2]]))  # 1 + log 2!
    tensor([1.6931])
    """

    outputs: ClassVar[Outputs] = "values"
    counts: ClassVar[bool] = True

    def distribution(self, outputs: Tensor) -> Distribution:
        return Independent(Poisson(outputs.exp(), validate_args=False), 1, validate_args=False)

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        y = as_columns(y, outputs.shape).to(outputs.dtype)
        return (outputs.exp() - y * outputs + torch.lgamma(y + 1)).sum(-1)

    def mean_and_gradient(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y = as_columns(y, outputs.shape)
        return self(outputs, y).mean(-1), (outputs.exp() - y).mul_(1 / outputs.shape[-2])

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        wide = widest(outputs.device)
        rate, counts = torch.broadcast_tensors(outputs.to(wide).exp(), y.to(wide).floor())
        return torch.where(counts < 0, 0, torch.special.gammaincc(counts.clamp_min(0) + 1, rate)).to(outputs.dtype)


@dataclass(frozen=True)
class NegativeBinomialNLL(Likelihood):
    """-log NB(y; mean μ, variance μ + a μ²), counts that spread wider than Poisson: y (..., B, k) -> (..., B) nats.

    With a given dispersion a, the outputs (..., B, k) are log μ; without, outputs (..., B, 2k) are log μ and log a.
    Poisson is the limit of a -> 0.

    >>> import torch
    >>> NegativeBinomialNLL(dispersion=1.0)(torch.tensor([[0.0]]), torch.tensor([[0]])).exp()  # geometric, p = 1/2
    tensor([2.])

    Args:
        dispersion: known a > 0, or one for each output; None means that the network predicts its logarithm.

    Raises ConfigError unless dispersion > 0.
    """

    dispersion: float | Sequence[float] | None = None
    outputs: ClassVar[Outputs] = "values"
    counts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "dispersion", positive_or_none("dispersion", self.dispersion))

    def num_targets(self, outputs: int) -> int:
        return check_each("dispersion", self.dispersion, super().num_targets(outputs))

    @property
    def per_target(self) -> int:
        return 2 if self.dispersion is None else 1

    def distribution(self, outputs: Tensor) -> Distribution:
        log_mean, log_a = self._parameters(outputs)
        law = NegativeBinomial((-log_a).exp(), logits=log_mean + log_a, validate_args=False)
        return Independent(law, 1, validate_args=False)

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        # In float32 the difference of lgamma(y + 1/a) and lgamma(1/a) loses its digits for small a
        return super().__call__(outputs.to(widest(outputs.device)), y).to(outputs.dtype)

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        from scipy.special import betainc  # scipy is slow to import, and training does not need it

        log_mean, log_a = (p.cpu().double() for p in self._parameters(outputs))
        counts = y.cpu().double().floor()
        stop = torch.sigmoid(-log_mean - log_a)  # probability of the event that is awaited 1/a times
        p = betainc((-log_a).exp().numpy(), counts.clamp_min(0).numpy() + 1, stop.numpy())
        return torch.where(counts < 0, 0, torch.as_tensor(p)).to(outputs)

    def _parameters(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """log μ and log a."""
        if self.dispersion is not None:
            self.num_targets(outputs.shape[-1])
            return outputs, outputs.new_tensor(self.dispersion).log()
        log_mean, log_a = halves(self, outputs)
        return log_mean, log_a
