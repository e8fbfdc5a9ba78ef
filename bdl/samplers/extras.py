"""What some dynamics need besides a gradient, gathered before the step and passed as one `extra` argument."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.batch_noise import BatchNoise
from bdl.samplers.chain import Chain
from bdl.samplers.dynamics.base import Transition
from bdl.samplers.potential import Potential

GENERAL_REMEDY = "set sampler.extras['{}'] to a function that returns it"
REMEDIES = {
    "per_example": "BayesianModule has them; in a plain loop set sampler.extras['per_example'] to a function that "
    "returns bdl.per_example_gradients(net, loss, x, y) of the batch",
    "curvature": "set sampler.extras['curvature'] to a function that returns the diagonal of the Hessian of U/N, or "
    "take a > 0 on a network",
}


class Extras:
    """Gathers the quantities that a dynamics names in `needs`: (..., d) tensors, or (..., n, d) per example.

    grad_var and prior_gradient come from the sampler itself. The others come from `sources`, functions by name.
    """

    def __init__(self, dynamics: Transition, chain: Chain, potential: Potential, batch_noise: BatchNoise):
        self.dynamics, self.chain, self.potential, self.batch_noise = dynamics, chain, potential, batch_noise
        self.sources: dict[str, Callable[[], Tensor]] = {}

    def gather(self, multiplier: Tensor | None) -> tuple[dict[str, Tensor], ...]:
        """The last argument of the dynamics' step, if it takes one. multiplier: (..., 1) by the weighting, or None."""
        names = self.dynamics.needs
        if not names:
            return ()
        if not self.dynamics.reads_extra(self.chain.state):
            return ({},)
        return ({name: self._quantity(name, multiplier) for name in names},)

    def _quantity(self, name: str, multiplier: Tensor | None) -> Tensor:
        theta = self.chain.theta
        if name == "grad_var":
            v = self.batch_noise.variance
            v = torch.zeros_like(theta) if v is None else v
            return v if multiplier is None else v * multiplier.square()  # Var(w g) = w² Var(g)
        if name == "prior_gradient":
            g = torch.zeros_like(theta)
            self.potential.prior.add_grad_(g, theta, self.potential.num_data)
            return g
        source = self.sources.get(name, self.chain.host.per_example if name == "per_example" else None)
        if source is None:
            remedy = REMEDIES.get(name, GENERAL_REMEDY.format(name))
            raise ConfigError(f"{type(self.dynamics).__name__} needs {name}: {remedy}")
        with torch.enable_grad():
            value = source().detach()
        return value * multiplier if name == "curvature" and multiplier is not None else value
