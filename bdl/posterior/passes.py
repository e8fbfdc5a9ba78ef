"""Passes over the samples that evaluate them: one for all data, or one for each slice of too many items of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from bdl.display import Progress
from bdl.errors import StoreError
from bdl.likelihoods import Likelihood
from bdl.posterior.class_evaluation import ClassEvaluation
from bdl.posterior.evaluation import PosteriorEvaluation
from bdl.posterior.outputs import LabelledOutputs
from bdl.posterior.samples import Key, Samples
from bdl.posterior.stored_outputs import NetworkOutputs, StoredOutputs
from bdl.posterior.value_evaluation import SettledSlice, ValueEvaluation, join_slices
from bdl.posterior.weights import Weights

T = TypeVar("T")
_END = object()


def evaluation_of(
    likelihood: Likelihood, y: Tensor, chains: int, tokens: bool = False, parts: bool = False, pixels: bool = False
) -> PosteriorEvaluation:
    """An evaluation of the kind that the likelihood's outputs call for; the rest: see `ClassEvaluation`."""
    if likelihood.outputs == "values":
        return ValueEvaluation(likelihood, y, chains)
    return ClassEvaluation(likelihood, y, chains, tokens, parts, pixels)


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The items, of which a thread makes the next one, without gradients, while the caller works on this one."""

    def following() -> object:
        with torch.no_grad():  # each thread has a mode of its own
            return next(items, _END)

    with ThreadPoolExecutor(1, "bdl-ahead") as thread:
        coming = thread.submit(following)
        while (item := coming.result()) is not _END:
            coming = thread.submit(following)
            yield item  # type: ignore[misc]


class Evaluated(NamedTuple):
    """What some networks put out for one of several data sets."""

    name: str  # of the data set
    keys: Sequence[Key]
    chains: Sequence[int]
    outputs: Tensor  # (k, n, K)


class Passes:
    """Evaluates the networks that have a weight, and counts what is done for `progress`.

    importance: weights of the networks; None without valid weights. items: of all data together.
    """

    def __init__(
        self, samples: Samples, weights: Weights, importance: Weights | None, progress: Progress | None, items: int
    ):
        self.samples, self.weights, self.importance, self.progress = samples, weights, importance, progress
        self.networks = len(samples.keyed())
        self._done, self._total = 0, self.networks * items

    def fill(self, evaluations: Mapping[str, PosteriorEvaluation], labelled: Mapping[str, LabelledOutputs]) -> None:
        """Add the outputs of all networks to the evaluations, in one pass over the samples.

        On a CPU of which torch has one thread, a second thread computes outputs while earlier outputs are added.
        """
        if not evaluations:
            return
        alone = (
            self.samples.device.type == "cpu"
            and torch.get_num_threads() == 1
            and not torch.is_autocast_enabled("cpu")  # autocast holds in the caller's thread alone
            and all(labelled[name].batches.in_memory for name in evaluations)
        )
        computed = self._computed(evaluations, labelled)
        for name, keys, chains, outputs in ahead(computed) if alone else computed:
            importance = None if self.importance is None else self.importance.of(keys)
            evaluations[name].add(chains, outputs, importance)
            self._done += len(keys) * evaluations[name].items
            if self.progress is not None:
                self.progress(self._done, self._total)

    def _computed(
        self, evaluations: Mapping[str, PosteriorEvaluation], labelled: Mapping[str, LabelledOutputs]
    ) -> Iterator[Evaluated]:
        for group in self.samples.groups(self.weights.by_key):
            for name in evaluations:
                for block, outputs in labelled[name].blocks(group):
                    yield Evaluated(name, block.keys, block.chains, outputs)

    def in_slices(self, labelled: LabelledOutputs, slices: Sequence[slice]) -> ValueEvaluation:
        """The evaluation of items whose outputs are too many: one pass for each slice, whose outputs are then dropped.

        Raises StoreError if a sample that one slice has seen can no longer be read for another.
        """
        settled: list[SettledSlice] = []
        for items in slices:
            part = labelled.part(items)
            evaluation = ValueEvaluation(labelled.likelihood, part.y, self.samples.chains, items.start, labelled.items)
            self.fill({"": evaluation}, {"": part})
            settled.append(evaluation.settled())
            first, now = (len(each.chain_of) for each in (settled[0], settled[-1]))
            if now != first:
                raise StoreError(
                    f"{first} networks could be read at first, and then {now}: the samples changed while they were "
                    "evaluated; evaluate again"
                )
        outputs = SlicedOutputs(self.samples, self.weights, labelled, slices)
        return join_slices(labelled.likelihood, settled, outputs)


class SlicedOutputs(NetworkOutputs):
    """Outputs that are computed when they are asked for, a slice of the items at a time; the last slice is held.

    Each slice is a pass over the samples.
    """

    def __init__(self, samples: Samples, weights: Weights, labelled: LabelledOutputs, slices: Sequence[slice]):
        self._samples, self._used, self._labelled, self._slices = samples, weights.by_key, labelled, slices
        self.shape = torch.Size((labelled.items, labelled.width))
        self._number, self._last = -1, StoredOutputs()  # the slice that is held

    def of(self, items: slice, networks: Tensor | None = None) -> Tensor:
        parts = []
        for number, rows in enumerate(self._slices):
            begin, end = max(items.start, rows.start), min(items.stop, rows.stop)
            if begin < end:
                parts.append(self._slice(number).of(slice(begin - rows.start, end - rows.start), networks))
        return torch.cat(parts, 1)

    def part(self, items: Tensor) -> StoredOutputs:
        part = StoredOutputs()
        for outputs in self._read(self._labelled):
            part.add(outputs[:, items])
        return part

    def _slice(self, number: int) -> StoredOutputs:
        if number != self._number:
            self._last = StoredOutputs()  # frees the slice before
            self._number = -1
            for outputs in self._read(self._labelled.part(self._slices[number])):
                self._last.add(outputs)
            self._number = number
        return self._last

    @torch.no_grad()
    def _read(self, labelled: LabelledOutputs) -> Iterator[Tensor]:
        for group in self._samples.groups(self._used):
            for _, outputs in labelled.blocks(group):
                yield outputs


def evaluations_of(
    labelled: Mapping[str, LabelledOutputs],
    samples: Samples,
    weights: Weights,
    importance: Weights | None,
    progress: Progress | None,
    parts: bool = False,
) -> dict[str, PosteriorEvaluation]:
    """The evaluations by name, in one pass over the samples that have a weight; see `Posterior.evaluate_all`.

    Where the outputs of all networks for the numbers of a loader exceed 1 GiB, there is a pass for each slice of its
    items. So the samples are read several times, but nothing is held of an item except its scores.
    """
    passes = Passes(samples, weights, importance, progress, sum(len(one.y) for one in labelled.values()))
    slices = {name: one.slices(passes.networks) for name, one in labelled.items()}
    evaluations = {
        name: evaluation_of(one.likelihood, one.y, samples.chains, one.tokens, parts, one.pixels)
        for name, one in labelled.items()
        if len(slices[name]) == 1
    }
    passes.fill(evaluations, labelled)
    evaluated: dict[str, PosteriorEvaluation] = {}
    for name, one in labelled.items():
        evaluated[name] = evaluations[name] if name in evaluations else passes.in_slices(one, slices[name])
        evaluated[name].row_weights = one.row_weights
        one.not_finite.warn()
    return evaluated
