"""Batches, the same in every pass over the samples; the outputs of the networks for them, and what these mean."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler

from bdl.batch import (
    INPUT_ERRORS,
    Inputs,
    Reader,
    count_items,
    feed,
    map_tensors,
    part_of,
    refuse_outputs,
    refuse_unfit,
    tensors_in,
)
from bdl.display import count_of
from bdl.engine.forward import Forward
from bdl.engine.functional import evaluating
from bdl.errors import BdlWarning, ConfigError
from bdl.likelihoods import EXAMPLES, Likelihood, in_words, likelihood_of, most_probable
from bdl.posterior.samples import Group, Samples
from bdl.posterior.stored_outputs import items_in_memory
from bdl.posterior.weights import Weights

Data = Tensor | np.ndarray | tuple[Any, ...] | Mapping[str, Any] | Iterable[Any]

Read = Callable[[Any], tuple[Inputs, Any]]  # splits a batch into inputs and target


class Batches:
    """Batches (inputs, target or None) that every pass gives in the same order; a shuffling loader is kept in memory.

    Tensors, and loaders over tensors (`bdl.data.TensorSlices`), are moved to the device once, not for every sample.

    data: a loader of batches, or inputs of one batch: a tensor, a tuple of inputs in order, or a dict by name.
    read: splits a batch into inputs and target. dtype: which floating point inputs get; None leaves them.
    """

    def __init__(self, data: Data, device: torch.device, read: Read | None = None, dtype: torch.dtype | None = None):
        self.read: Read = read or Reader()
        self.device, self.dtype = device, dtype
        self.elements: torch.Size | None = torch.Size()  # (...) an item's, by the last `rows`; None: they vary
        if hasattr(data, "to"):
            data = data.to(device)  # type: ignore[union-attr]
        self._alone = isinstance(data, Tensor | tuple | Mapping)
        if data is None or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
            raise ConfigError(f"nothing to predict, got {data!r}: give inputs (n, ...), or a loader of batches")
        if self._alone and any(t.layout != torch.strided for t in tensors_in(data)):
            raise ConfigError("the inputs are a sparse tensor, which networks do not take: give its to_dense()")
        fixed = self._alone or getattr(data, "shuffles", True) is False
        fixed = fixed or (isinstance(data, DataLoader) and isinstance(data.sampler, SequentialSampler))
        self.chosen: slice | None = None  # which items the batches hold; None: all
        self._data: Any = [data] if self._alone else data if fixed else list(data)

    def part(self, items: slice) -> Batches:
        """Batches of these items alone. Each pass goes through the data as far as the last of them."""
        part = copy.copy(self)
        part.chosen = items
        return part

    def __iter__(self) -> Iterator[tuple[Inputs, Any]]:
        if self.chosen is None:
            yield from self._all()
            return
        place = 0
        for inputs, y in self._all():
            count = count_items(inputs)
            begin, end = max(0, self.chosen.start - place), min(count, self.chosen.stop - place)
            if begin < end:
                yield (inputs, y) if end - begin == count else part_of((inputs, y), slice(begin, end))
            place += count
            if place >= self.chosen.stop:
                return

    def _all(self) -> Iterator[tuple[Inputs, Any]]:
        for batch in self._data:
            # A tensor or a tuple by itself is all inputs; a dict may hold its target too
            yield (batch, None) if self._alone and not isinstance(batch, Mapping) else self.read(batch)

    @property
    def in_memory(self) -> bool:
        """Whether the batches are tensors that any thread may read. A data set of somebody else may belong to one."""
        return isinstance(self._data, list) or getattr(self._data, "in_memory", False)  # TensorSlices says so

    def bound(self, forward: Forward) -> None:
        """Let a batch hold no more items than one network can run on an accelerator."""
        bound = getattr(self._data, "bound", None)  # a method of bdl.data.TensorSlices
        if self.device.type != "cpu" and bound is not None:
            bound(1)  # item, so that the measurement itself needs no memory
            bound(forward.items(next(iter(self))[0]))

    def sizes(self) -> tuple[Inputs, int]:
        """The largest batch of inputs, on the device, and the number of items in all batches."""
        largest, items = torch.empty(0), 0
        for inputs, _ in self:
            count = count_items(inputs)
            largest, items = inputs if count > count_items(largest) else largest, items + count
        if not items:
            raise ConfigError("there are no items to predict: give at least one")
        return self.moved(largest), items

    def outputs(self, forward: Forward, tensors: Mapping[str, Tensor]) -> Tensor:
        """(k, n, ...) float32 outputs of k networks for all items, on the CPU."""
        return _joined([self._evaluated(forward, tensors, inputs) for inputs, _ in self])

    def rows(self, forward: Forward, tensors: Mapping[str, Tensor], likelihood: Likelihood) -> Tensor:
        """(k, n, K) float32 outputs of k networks for all elements of all items, on the CPU: see `Likelihood.rows`."""
        outputs = [self._evaluated(forward, tensors, inputs) for inputs, _ in self]
        shapes = {likelihood.arranged(o[:, :0]).shape[2:-1] for o in outputs}
        self.elements = shapes.pop() if len(shapes) == 1 else None
        return _joined([likelihood.rows(o) for o in outputs])

    def labels(self, axes: int = 2) -> Tensor:
        """(n, ...) targets of all batches, on the CPU; the elements of an item stand one after the other.

        axes: how many the outputs (n, ..., K) of a network have; all but the first and the last are axes of elements.

        Raises ConfigError if a batch has no targets, or targets that are not a tensor.
        """
        labels = [y for _, y in self]
        if not labels or not all(isinstance(y, Tensor) for y in labels):
            raise ConfigError(
                "evaluation needs a loader of (x, y) batches, or of dicts with labels, label, target or y; give the "
                "module a method targets(batch) that returns the tensor of targets"
            )
        return torch.cat([y.flatten(0, max(0, axes - 2)) for y in labels]).cpu()

    def moved(self, inputs: Inputs) -> Inputs:
        """The inputs on the device, floating point numbers in the dtype."""
        return map_tensors(lambda t: t.to(self.device, self.dtype if t.is_floating_point() else None), inputs)

    def _evaluated(self, forward: Forward, tensors: Mapping[str, Tensor], inputs: Inputs) -> Tensor:
        return forward.evaluate(tensors, self.moved(inputs))


def _joined(outputs: list[Tensor]) -> Tensor:
    """(k, n, ...) outputs for all batches together, in float32 on the CPU."""
    if len(outputs) == 1:
        return outputs[0].float().cpu()
    if outputs[0].ndim != 3:
        return torch.cat(outputs, 1).float().cpu()
    return torch.cat([o.mT for o in outputs], -1).mT.float().cpu()  # keeps the order in memory that Forward chose


@torch.no_grad()
def output_shape(net: nn.Module, batches: Batches) -> torch.Size:
    """(1, ...) of the outputs for one item. Raises ConfigError for unfit inputs, and for outputs that are no tensor."""
    one = batches.moved(part_of(next(iter(batches))[0], slice(0, 1)))
    with evaluating(net):
        try:
            outputs = feed(net, one)
        except INPUT_ERRORS as error:
            refuse_unfit(net, one, error, lambda: feed(net, one))
            raise
    return refuse_outputs(net, outputs).shape


def known_law(loss: Any) -> Any:
    """The likelihood or loss itself. Raises ConfigError where it does not say what the outputs mean."""
    if likelihood_of(loss) is None:
        raise ConfigError(
            f"the run does not say what its outputs mean (its loss is {in_words(loss)}): pass a likelihood to "
            f"Posterior.load, such as {EXAMPLES}; posterior.moments(x) needs none"
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


class NotFinite:
    """Which items have outputs that are no finite numbers: their predictions are NaN."""

    def __init__(self) -> None:
        self._bad = torch.zeros(0, dtype=torch.bool)  # one for each item seen so far
        self._warned = False

    def note(self, outputs: Tensor, first: int) -> None:
        """Look at outputs (k, n, ...) of k networks for n items, of which the first has this place in the data."""
        end = first + outputs.shape[1]
        if end > len(self._bad):
            self._bad = torch.cat([self._bad, torch.zeros(end - len(self._bad), dtype=torch.bool)])
        if not bool(outputs.sum().isfinite()):
            self._bad[first:end] |= ~outputs.isfinite().transpose(0, 1).flatten(1).all(1)

    def warn(self) -> None:
        """Warn, once, of the items that were noted. Call it when all networks have seen all items."""
        if self._warned or not bool(self._bad.any()):
            return
        self._warned = True
        warnings.warn(
            f"{int(self._bad.sum())} of {count_of(len(self._bad), 'item')}, {int(self._bad.nonzero()[0])} the "
            "first, have outputs "
            "that are not finite, and so have their predictions: their inputs hold NaN or far too large numbers, or a "
            "sample has diverged", BdlWarning, stacklevel=2,
        )  # fmt: skip


class ItemOutputs:
    """The outputs of networks for all items of batches, as many networks at a time as the caches hold.

    Whoever goes through `blocks` calls `not_finite.warn` at the end.

    likelihood: reads the outputs (k, n, K) of all elements of the items; None for outputs (k, n, ...) as they are.
    """

    def __init__(self, samples: Samples, batches: Batches, likelihood: Likelihood | None = None):
        self.samples, self.batches, self.likelihood = samples, batches, likelihood
        self._forward = samples.forward()
        batches.bound(self._forward)
        self.measure()
        self.not_finite, self.first = NotFinite(), 0  # the place of the first item in the data

    def measure(self) -> None:
        """Find out how many items there are, and how many networks run on them together."""
        largest, self.items = self.batches.sizes()
        self._together = self._forward.together(largest, self.items)

    def blocks(self, group: Group) -> Iterator[tuple[Group, Tensor]]:
        """Parts of a group of networks, with the outputs (k, n, ...) of their k networks."""
        for block in group.blocks(self._together):
            if self.likelihood is None:
                outputs = self.batches.outputs(self._forward, block.tensors)
            else:
                outputs = self.batches.rows(self._forward, block.tensors, self.likelihood)
            self.not_finite.note(outputs, self.first)
            yield block, outputs

    def weighted(self, weights: Weights) -> Iterator[tuple[Tensor, Tensor]]:
        """The outputs of all networks, and their weights (k,). Files without a weighted network are not read."""
        for group in self.samples.groups(weights.used):
            yield from ((outputs, weights.of(block.keys)) for block, outputs in self.blocks(group))
        self.not_finite.warn()


class LabelledOutputs(ItemOutputs):
    """The outputs (k, n, K) for labelled batches, and the labels y (n, ...) of these n rows.

    Elements that do not count, such as padding, are left out. Raises ConfigError for batches without labels.

    Attributes:
        pixels: whether each row is an element of an item with two axes or more.
        row_weights: (n,) weights of the rows; None for 1 each.
        tokens: whether each row is a token of a sequence: the inputs are whole numbers, each of which has a class.
    """

    likelihood: Likelihood

    def __init__(self, samples: Samples, batches: Batches, likelihood: Likelihood):
        super().__init__(samples, batches, likelihood.unweighted)
        shape = output_shape(samples.net, batches)
        axes, self.width = len(shape), shape.numel()  # numbers that a network puts out for one item
        y, self.row_weights = likelihood.split(batches.labels(axes))
        y = most_probable(y) if likelihood.outputs == "logits" else y
        self.tokens = axes == 3 and likelihood.outputs == "logits" and _have_tokens(batches)
        self.pixels = axes > 3
        self._counted = likelihood.counted(y) if axes > 2 else None
        self.y = y if self._counted is None else y[self._counted]

    def slices(self, networks: int) -> list[slice]:
        """Slices of the items whose outputs of so many networks fit into memory; one slice where none are held."""
        held = self.likelihood.outputs == "values" and len(self.y) == self.items
        size = items_in_memory(networks, self.width) if held else self.items
        return [slice(i, min(i + size, self.items)) for i in range(0, self.items, size)]

    def part(self, items: slice) -> LabelledOutputs:
        """The outputs for some items alone, where each item is one row, as items of numbers are."""
        part = copy.copy(self)
        part.batches, part.y, part.first = self.batches.part(items), self.y[items], items.start
        part.measure()
        return part

    def blocks(self, group: Group) -> Iterator[tuple[Group, Tensor]]:
        for block, outputs in super().blocks(group):
            yield block, outputs if self._counted is None else outputs[:, self._counted]


def _have_tokens(batches: Batches) -> bool:
    """Whether the inputs of the first batch have one of whole numbers (n, T), one for each target."""
    inputs, y = next(iter(batches))
    return any(x.shape == y.shape and not x.is_floating_point() for x in tensors_in(inputs))
