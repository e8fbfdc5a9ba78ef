"""How a step evaluates its batch, where nothing is added to it."""

from __future__ import annotations

from torch import Tensor

from bdl.samplers.batch_noise import BatchNoise
from bdl.samplers.potential import BoundGradient, Closure, Evaluation, Potential
from bdl.samplers.resume import Saved


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

    def evaluate_by(self, gradient: BoundGradient, measure: bool) -> Evaluation:
        """See `Potential.evaluate_by`."""
        return self.potential.evaluate_by(gradient, measure)

    def explain(self, batch_noise: BatchNoise) -> list[str]:
        """Lines of `Sampler.explain`."""
        return []
