"""What some dynamics need besides a gradient: gathered by the shell, handed on as one `extra` argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from bdl.errors import ConfigError
from bdl.functional import call

if TYPE_CHECKING:
    from bdl.samplers.sampler import Sampler


OWN = "set sampler.extras['{}'] to a function that returns it"
HOW = {
    "per_example": "BayesianModule has them; in a plain loop set sampler.extras['per_example'] to a function that "
    "returns bdl.per_example_gradients(net, loss, x, y) of the batch",
    "curvature": "set sampler.extras['curvature'] to a function that returns the diagonal of the Hessian of U/N, or "
    "take a > 0 on a network",
}


def extra_for(sampler: Sampler, multiplier: Tensor | None) -> tuple[dict[str, Tensor], ...]:
    """The dict that the dynamics' step takes as its last argument, if it takes any. multiplier: of the weighting."""
    dynamics = sampler.dynamics
    wants = getattr(dynamics, "wants", None)
    names = getattr(dynamics, "needs", ())
    if not names:
        return ()
    if wants is not None and not wants(sampler._state):
        return ({},)
    return ({name: _need(sampler, name, multiplier) for name in names},)


def _need(sampler: Sampler, name: str, multiplier: Tensor | None) -> Tensor:
    theta = sampler._flat.theta
    if name == "grad_var":  # of the gradient as the dynamics sees it, which is multiplied
        v = sampler._noise.variance
        v = torch.zeros_like(theta) if v is None else v
        return v if multiplier is None else v * multiplier.square()
    if name == "prior_gradient":
        g = torch.zeros_like(theta)
        sampler.prior.add_grad_(g, theta, sampler.num_data)
        return g
    if name not in sampler.extras:
        raise ConfigError(f"{type(sampler.dynamics).__name__} needs {name}: {HOW.get(name, OWN.format(name))}")
    with torch.enable_grad():
        value = sampler.extras[name]().detach()
    return value * multiplier if name == "curvature" and multiplier is not None else value


def per_example_gradients(
    net: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    tensors: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """(n, d) gradients of the loss of each item x (n, ...), y (n, ...), one row per item, by torch.func.

    Columns are the parameters that require a gradient, in the order of `net.named_parameters()`. loss(outputs, y) is
    the mean over a batch, or per item, and is called with one item. tensors: parameters and buffers by name instead of
    the network's own. Not for networks whose outputs for an item depend on the others (BatchNorm in training).
    """
    own: dict[str, Any] = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    tensors = {**own, **(tensors or {})}
    live = {k: tensors[k].detach() for k, p in net.named_parameters() if p.requires_grad}
    rest = {k: v.detach() for k, v in tensors.items() if k not in live}

    def one(live: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(call(net, {**rest, **live}, x.unsqueeze(0)), y.unsqueeze(0)).mean()

    try:
        rows = vmap(grad(one), in_dims=(None, 0, 0), randomness="different")(live, x, y)
    except RuntimeError as error:
        raise ConfigError(f"per-example gradients can't be had: {str(error).splitlines()[0]}") from error
    return torch.cat([rows[k].flatten(1) for k in live], 1)
