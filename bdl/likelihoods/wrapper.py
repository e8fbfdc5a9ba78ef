"""Wrapper: a likelihood that reads the targets of another one in a different form."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor
from torch.distributions import Distribution

from bdl.likelihoods.base import Likelihood, Outputs


class Wrapper(Likelihood, ABC):
    """A likelihood with the law of the likelihood `inside` it. A new wrapper states `inside` and the loss."""

    @property
    @abstractmethod
    def inside(self) -> Likelihood:
        """The likelihood that is wrapped."""

    @property
    def outputs(self) -> Outputs:
        return self.inside.outputs

    @property
    def counts(self) -> bool:
        return self.inside.counts

    @property
    def per_target(self) -> int:
        return self.inside.per_target

    @property
    def has_masses(self) -> bool:
        return self.inside.has_masses

    @property
    def bounds(self) -> tuple[float, float]:
        return self.inside.bounds

    def num_outputs(self, targets: int) -> int:
        return self.inside.num_outputs(targets)

    def num_targets(self, outputs: int) -> int:
        return self.inside.num_targets(outputs)

    def arranged(self, outputs: Tensor) -> Tensor:
        return self.inside.arranged(outputs)

    def distribution(self, outputs: Tensor) -> Distribution:
        return self.inside.distribution(outputs)

    def marginals(self, outputs: Tensor) -> Distribution:
        return self.inside.marginals(outputs)

    def mean(self, outputs: Tensor) -> Tensor:
        return self.inside.mean(outputs)

    def variance(self, outputs: Tensor) -> Tensor:
        return self.inside.variance(outputs)

    def log_density(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.inside.log_density(outputs, y)

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.inside.cdf(outputs, y)

    def mass(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.inside.mass(outputs, y)

    def has_density(self, y: Tensor) -> Tensor:
        return self.inside.has_density(y)

    def constant(self, y: Tensor) -> Distribution:
        return self.inside.constant(y)
