"""The gradient of every item of a batch by itself."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from bdl.batch import Inputs, map_tensors
from bdl.engine.functional import call, named_tensors
from bdl.engine.stack import ChainStack
from bdl.errors import ConfigError
from bdl.likelihoods import Loss


def per_example_gradients(
    net: nn.Module,
    loss: Loss,
    x: Inputs,
    y: Tensor,
    tensors: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """(n, d) gradients of the loss of each item, one row per item, computed by torch.func.

    Columns are the parameters that require a gradient, in the order of `net.named_parameters()`.

    Args:
        loss: loss(outputs, y), the mean over a batch or one value per item. It is called with one item at a time.
        x, y: (n, ...) inputs and labels; several inputs as a tuple, or as a dict by name.
        tensors: parameters and buffers by name, to use instead of those of the network.

    Raises ConfigError for networks whose outputs for one item depend on the other items (BatchNorm in training).
    """
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers()), **(tensors or {})}
    live = {k: tensors[k].detach() for k, p in net.named_parameters() if p.requires_grad}
    rest = {k: v.detach() for k, v in tensors.items() if k not in live}

    def one(live: dict[str, Tensor], x: Inputs, y: Tensor) -> Tensor:
        return loss(call(net, {**rest, **live}, map_tensors(lambda t: t.unsqueeze(0), x)), y.unsqueeze(0)).mean()

    try:
        rows = vmap(grad(one), in_dims=(None, 0, 0), randomness="different")(live, x, y)
    except RuntimeError as error:
        raise ConfigError(f"the network has no per-example gradients: {str(error).splitlines()[0]}") from error
    return torch.cat([rows[k].flatten(1) for k in live], 1)


def per_chain_gradients(stack: ChainStack, loss: Loss, x: Inputs, y: Tensor) -> Tensor:
    """(C, n, d) gradients of the loss of each item, for every network of a stack."""
    data = None if stack.shared else 0
    axes = {name: None if name in stack.frozen_names else 0 for name in named_tensors(stack.net)}
    one = lambda t, x, y: per_example_gradients(stack.net, loss, x, y, t)  # noqa: E731
    return vmap(one, in_dims=(axes, data, data), randomness="different")(named_tensors(stack.net), x, y)
