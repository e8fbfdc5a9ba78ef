"""The outputs of the networks of a posterior for batches, group by group."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

import torch
from torch import Tensor, nn

from bdl.batch import feed, map_tensors, part_of, structure
from bdl.engine.functional import evaluating
from bdl.errors import ConfigError
from bdl.likelihoods import Likelihood
from bdl.posterior.batches import Batches
from bdl.posterior.samples import Group, Key, Samples
from bdl.posterior.weights import Weights


@torch.no_grad()
def output_shape(net: nn.Module, batches: Batches) -> torch.Size:
    """(1, ...) of the outputs for one item.

    Raises ConfigError for inputs that the network does not take, and for outputs that are no tensor.
    """
    inputs, _ = next(iter(batches))
    with evaluating(net):
        outputs = feed(net, map_tensors(lambda t: t.to(batches.device), part_of(inputs, slice(0, 1))))
    if not isinstance(outputs, Tensor):
        raise ConfigError(
            f"{type(net).__name__}.forward returns {structure(outputs)}, and bdl predicts from one tensor: wrap the "
            "network in a module that returns the logits, or the parameters of the law"
        )
    return outputs.shape


def outputs_of(
    samples: Samples, batches: Batches, weights: Weights, likelihood: Likelihood | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """The outputs (k, n, ...) of k networks for all items, and the weights (k,) of these networks.

    likelihood: for the outputs (k, n, K) of all elements of the items instead.
    """
    forward = samples.forward()
    size = forward.together(*batches.sizes())
    for group in samples.groups(positive(weights.by_key)):
        for block in group.blocks(size):
            tensors = block.tensors
            outputs = batches.rows(forward, tensors, likelihood) if likelihood else batches.outputs(forward, tensors)
            yield outputs, weights_of(block, weights)


def positive(weights: Mapping[Key, float]) -> Container[Key]:
    """The keys of the networks that have a weight."""
    return {key for key, weight in weights.items() if weight}


def weights_of(group: Group, weights: Weights) -> Tensor:
    """(k,) weights of the networks; 0 for those that have none."""
    return torch.tensor([weights.by_key.get(key, 0.0) for key in group.keys], dtype=torch.float64)
