"""The outputs of the networks of a posterior for the items of batches, and what these outputs mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bdl.batch import feed, map_tensors, part_of, structure
from bdl.engine.functional import evaluating
from bdl.errors import ConfigError
from bdl.likelihoods import Likelihood, likelihood_of
from bdl.posterior.batches import Batches
from bdl.posterior.merging import brief
from bdl.posterior.samples import Group, Samples
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


def law_of(loss: Any) -> Any:
    """The likelihood or loss itself. Raises ConfigError where it does not say what the outputs mean."""
    if likelihood_of(loss) is None:
        raise ConfigError(
            f"the run does not say what its outputs mean (its loss is {brief(loss)}): pass the law to "
            "Posterior.load, such as likelihood=bdl.CategoricalNLL() for classes, bdl.BernoulliNLL() for "
            "labels or bdl.HeteroscedasticNLL() for numbers; posterior.moments(x) needs none"
        )
    return loss


def likelihood_for(law: Any, net: nn.Module, batches: Batches) -> Likelihood:
    """The likelihood that a law or a loss stands for, as a network takes these batches."""
    likelihood = likelihood_of(law)
    if likelihood != likelihood_of(law, 2, 3):  # torch's losses mean what the outputs' shape says
        shape = output_shape(net, batches)
        likelihood = likelihood_of(law, shape[-1], len(shape))
    assert likelihood is not None
    return likelihood


class ItemOutputs:
    """The outputs of networks for all items of batches, as many networks at a time as the caches hold.

    likelihood: for the outputs (k, n, K) of all elements of the items; None for outputs (k, n, ...) as they are.
    """

    def __init__(self, samples: Samples, batches: Batches, likelihood: Likelihood | None = None):
        self.batches, self.likelihood, self._forward = batches, likelihood, samples.forward()
        self._together = self._forward.together(*batches.sizes())

    def blocks(self, group: Group) -> Iterator[tuple[Group, Tensor]]:
        """Parts of a group of networks, with the outputs (k, n, ...) of their k networks."""
        for block in group.blocks(self._together):
            if self.likelihood is None:
                yield block, self.batches.outputs(self._forward, block.tensors)
            else:
                yield block, self.batches.rows(self._forward, block.tensors, self.likelihood)

    def weighted(self, samples: Samples, weights: Weights) -> Iterator[tuple[Tensor, Tensor]]:
        """The outputs of all networks, and their weights (k,). Files none of whose networks has one are not read."""
        for group in samples.groups(weights.used):
            yield from ((outputs, weights.of(block.keys)) for block, outputs in self.blocks(group))


class LabelledOutputs(ItemOutputs):
    """The outputs (k, n, K) for labelled batches, and the labels y (n, ...) of these n rows.

    Elements that do not count, such as padding, are left out. Raises ConfigError for batches without labels.
    """

    likelihood: Likelihood

    def __init__(self, samples: Samples, batches: Batches, likelihood: Likelihood):
        super().__init__(samples, batches, likelihood)
        axes = len(output_shape(samples.net, batches))
        y = batches.labels(axes)
        self._counted = likelihood.counted(y) if axes > 2 else None
        self.y = y if self._counted is None else y[self._counted]

    def blocks(self, group: Group) -> Iterator[tuple[Group, Tensor]]:
        for block, outputs in super().blocks(group):
            yield block, outputs if self._counted is None else outputs[:, self._counted]
