"""Baseline: what all of them share, from the trained networks on disk to the draws in a store of their own."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bdl.batch import Inputs, map_tensors
from bdl.display import Progress
from bdl.engine.functional import call, evaluating, replace_tensors
from bdl.errors import ConfigError, StoreError
from bdl.identity import identity
from bdl.likelihoods import Likelihood
from bdl.posterior.outputs import Batches
from bdl.posterior.predict import Posterior
from bdl.posterior.store import SampleStore

NamedTensors = dict[str, Tensor]  # parameters and buffers of one network by name


@dataclass(frozen=True)
class Material:
    """What a baseline is fitted on."""

    trained: Posterior
    train: Iterable[Any] | None  # labelled batches of the training items
    val: Iterable[Any] | None  # batches of items that were neither trained on nor will be judged
    seed: int

    def batches(self, split: str, baseline: Baseline) -> Batches:
        """The batches of a split. Raises ConfigError where it was not given."""
        loader = getattr(self, split)
        if loader is None:
            raise ConfigError(f"{type(baseline).__name__} needs {split} data: {baseline.remedies[split]}")
        return Batches(loader, self.trained.device, self.trained.read)

    def first(self, baseline: Baseline, split: str = "train") -> Inputs:
        """The inputs of the first batch of a split, on the device of the network."""
        inputs, _ = next(iter(self.batches(split, baseline)))
        return map_tensors(lambda t: t.to(self.trained.device), inputs)

    def last_states(self) -> list[NamedTensors]:
        """The last network of each chain."""
        last: dict[int, NamedTensors] = {}
        for sample in self.trained.stream():
            last[sample.chain] = sample.tensors  # a view of its group; groups are small
        return [{k: v.clone() for k, v in last[chain].items()} for chain in sorted(last)]


class Baseline(ABC):
    """Makes draws of networks from trained ones. A concrete class is a frozen dataclass with `draws` >= 1.

    `fit` writes them where samples of a posterior would be, one file per draw, with one network for each trained chain.
    So several chains give a mixture, and all of bdl works on the draws: predictions, reports, export, ArviZ. The
    verdict calls them an approximation, because nothing measures how far they lie from the posterior.
    """

    draws: int
    temperature = 1.0  # T of the law that the draws stand for; 0 for point estimates
    scale = "input"  # how a run gets the scale of numbers where `loss.scale` does not say it
    remedies = {
        "train": "pass train=, a loader of labelled training batches",
        "val": "hold some items out, data.val_fraction=0.1, or pass val=, a loader of labelled batches",
    }

    def __post_init__(self) -> None:
        if type(self.draws) is not int or self.draws < 1:
            raise ConfigError(f"draws must be a whole number of at least 1, got {self.draws!r}")

    def check(self, net: nn.Module, inputs: Inputs, likelihood: Likelihood | None, val: bool) -> None:  # noqa: B027
        """Raise ConfigError for a network, a likelihood or data that do not fit; before the training too.

        inputs: those of a batch of training items, on the device of the network. likelihood: None if it is not known.
        val: whether there are validation items.
        """

    @abstractmethod
    def networks(self, material: Material) -> Iterator[list[NamedTensors]]:
        """Draws without end, or as many as there are: the tensors of one network for each chain."""

    def fit(
        self,
        trained: Posterior,
        run_dir: str | Path,
        *,
        train: Iterable[Any] | None = None,
        val: Iterable[Any] | None = None,
        seed: int = 0,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> Posterior:
        """Write the draws to `<run_dir>/samples` and return them as a posterior.

        The draws depend on the trained networks, the settings and the seed alone. torch's global random streams stay
        as they are.

        Args:
            trained: the networks, as a run of SGD or `AdamWStart` has left them.
            run_dir: a folder without samples.
            train: labelled batches of the training items, in a fixed order and without augmentation.
            val: labelled batches of items that were held out from the training.
            seed: names the random stream of the draws.
            overwrite: remove the draws that the folder holds already.
            progress: called after every draw.

        Raises ConfigError where the networks or the data do not fit the baseline, StoreError for a folder that holds
        samples.
        """
        store = SampleStore(run_dir)
        if store.has_files(0) and not overwrite:
            raise StoreError(f"{store.folder} holds samples already: choose another folder, or pass overwrite=True")
        material = Material(trained, train, val, seed)
        if train is not None:
            self.check(trained.net, material.first(self), trained.likelihood(train), val is not None)  # type: ignore[arg-type]
        draws = islice(self.networks(material), self.draws)
        first = next(draws)  # before the folder changes: most refusals come from here
        store.truncate(0, 0)
        store.write_target({**trained.target, "approximation": identity(self)})
        self._write(store, trained, first, 1)
        for number, networks in enumerate(draws, 2):
            self._write(store, trained, networks, number)
            if progress is not None:
                progress(number, self.draws)
        return Posterior([store], trained.net, likelihood=trained.given_likelihood, read=trained.read)

    def _write(self, store: SampleStore, trained: Posterior, networks: list[NamedTensors], number: int) -> None:
        last = trained.records[-1]
        lr = sum(last.lr) / len(last.lr) if isinstance(last.lr, list) else last.lr
        stacked = {name: torch.stack([tensors[name] for tensors in networks]) for name in networks[0]}
        if bad := [name for name, values in stacked.items() if not bool(values.isfinite().all())]:
            raise ConfigError(f"{type(self).__name__} drew numbers in {bad[0]} that are not finite: lower sampler.lr")
        store.write(
            stacked, step=last.step + number, stack=0, chains=list(range(len(networks))),
            lr=lr, temperature=self.temperature,
        )  # fmt: skip


def with_tensors(net: nn.Module, tensors: NamedTensors) -> nn.Module:
    """A copy of the network, in eval mode, that holds these tensors."""
    return replace_tensors(copy.deepcopy(net), {k: v.clone() for k, v in tensors.items()}).eval()


def check_outputs(net: nn.Module, tensors: NamedTensors, inputs: Inputs, wanted: Tensor, what: str) -> None:
    """Raise ConfigError with `what` unless the network with these tensors gives the wanted outputs."""
    with torch.no_grad(), evaluating(net):
        outputs = call(net, tensors, inputs)
    # A thousandth of the outputs' spread is 1,000 times the rounding of float32
    if bool((outputs - wanted).abs().max() > 1e-3 * wanted.std().clamp_min(1e-6)):
        raise ConfigError(what)


def split_vector(theta: Tensor, like: NamedTensors, names: list[str]) -> NamedTensors:
    """The tensors of these names, with shapes and types like those given, from all of them in one vector (d,)."""
    parts = theta.split([like[name].numel() for name in names])
    return {name: part.view_as(like[name]).to(like[name]) for name, part in zip(names, parts, strict=True)}
