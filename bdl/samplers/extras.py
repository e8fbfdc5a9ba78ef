"""What some dynamics need besides a gradient, gathered before the step and passed as one `extra` argument."""

from __future__ import annotations

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.readings import Readings

GENERAL_REMEDY = "set sampler.extras['{}'] to a function that returns it"
REMEDIES = {
    "per_example": "BayesianModule has them; in a plain loop set sampler.extras['per_example'] to a function that "
    "returns bdl.per_example_gradients(net, loss, x, y) of the batch",
    "curvature": "set sampler.extras['curvature'] to a function that returns the diagonal of the Hessian of U/N, or "
    "take a > 0 on a network",
}


def gather_extra(sampler: Readings, multiplier: Tensor | None) -> tuple[dict[str, Tensor], ...]:
    """The last argument of the dynamics' step, if it takes one: (..., d) tensors, or (..., n, d) per example.

    multiplier: (..., 1) by the weighting, or None.
    """
    names = sampler.dynamics.needs
    if not names:
        return ()
    if not sampler.dynamics.reads_extra(sampler.chain.state):
        return ({},)
    return ({name: _quantity(sampler, name, multiplier) for name in names},)


def _quantity(sampler: Readings, name: str, multiplier: Tensor | None) -> Tensor:
    """grad_var and prior_gradient come from the sampler itself, the others from the functions in its `extras`."""
    theta = sampler.chain.theta
    if name == "grad_var":
        v = sampler.batch_noise.variance
        v = torch.zeros_like(theta) if v is None else v
        return v if multiplier is None else v * multiplier.square()  # Var(w g) = w² Var(g)
    if name == "prior_gradient":
        g = torch.zeros_like(theta)
        sampler.potential.prior.add_grad_(g, theta, sampler.num_data)
        return g
    source = sampler.extras.get(name, sampler.chain.host.per_example if name == "per_example" else None)
    if source is None:
        remedy = REMEDIES.get(name, GENERAL_REMEDY.format(name))
        raise ConfigError(f"{type(sampler.dynamics).__name__} needs {name}: {remedy}")
    with torch.enable_grad():
        value = source().detach()
    return value * multiplier if name == "curvature" and multiplier is not None else value
