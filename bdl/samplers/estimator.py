"""GradientEstimator: what the argument `gradient` of a Sampler may name in the place of a batch's own gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

from bdl.errors import ConfigError
from bdl.parts import part
from bdl.samplers.batch_gradient import BatchGradient
from bdl.samplers.dynamics.base import Transition
from bdl.samplers.potential import Potential
from bdl.samplers.weighting.base import Weighting


class GradientEstimator(ABC):
    """How a sampler estimates gradients where it does not take those of a batch as they are."""

    @abstractmethod
    def refuse(self, dynamics: Transition, weighting: Weighting) -> None:
        """Raise ConfigError for parts of a sampler to which the estimator adds nothing."""

    @abstractmethod
    def check_trainer(self, trainer: Any) -> None:
        """Raise ConfigError for Lightning's Trainer where the estimates would have another mean."""

    @abstractmethod
    def evaluation(self, potential: Potential, follow: Callable[[], None]) -> BatchGradient:
        """What evaluates the batches of one sampler.

        follow: lets all pieces of the sampler follow parameters that something has moved.
        """


Given = GradientEstimator | Literal["control"] | None


def estimator_of(gradient: object, dynamics: Transition, weighting: Weighting) -> GradientEstimator | None:
    """What the argument `gradient` of a Sampler stands for.

    Raises ConfigError for one of another type, and beside parts to which it adds nothing.
    """
    estimator = part("gradient=control")() if gradient == "control" else gradient
    if estimator is None:
        return None
    if not isinstance(estimator, GradientEstimator):
        raise ConfigError(f'gradient must be null, "control" or a bdl.ControlVariate, got {gradient!r}')
    estimator.refuse(dynamics, weighting)
    return estimator
