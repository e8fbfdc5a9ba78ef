"""How a step evaluates its batch: as it is, or by an estimator that the argument `gradient` of a Sampler names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from bdl.errors import ConfigError
from bdl.parts import part
from bdl.samplers.batch_noise import BatchNoise
from bdl.samplers.potential import Closure, Evaluation, Gradient, Idle, Launch, Potential
from bdl.samplers.resume import Saved

if TYPE_CHECKING:
    from bdl.samplers.dynamics.base import Transition
    from bdl.samplers.weighting.base import Weighting


class BatchGradient(Saved):
    """Evaluates a step's batch: its loss, its energy and the gradient of the mean loss, as they are."""

    saved: tuple[str, ...] = ()  # type: ignore[misc]

    def __init__(self, potential: Potential):
        self.potential = potential

    def loss(self, closure: Closure | None) -> Tensor | None:
        """() or (C,) the loss that the closure returns, after it has back-propagated it."""
        return self.potential.loss(closure)

    def evaluate(self, loss: Tensor | None, measure: bool) -> Evaluation:
        """See `Potential.evaluate`. loss: what `loss` has returned."""
        return self.potential.evaluate(loss, self.potential.chain.gather(), measure)

    def evaluate_by(self, gradient: Gradient, measure: bool, launch: Launch | None, idle: Idle) -> Evaluation:
        """See `Potential.evaluate_by`."""
        return self.potential.evaluate_by(gradient, measure, launch, idle)

    def explain(self, batch_noise: BatchNoise) -> list[str]:
        """Lines of `Sampler.explain`."""
        return []


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
