"""Rehearsal: the evaluation of a run, made once on one batch of each split before its first step."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from bdl.disk.temporary import own_folder
from bdl.errors import ConfigError
from bdl.lightning.host import in_order, loss_of, sampled_net
from bdl.likelihoods import Likelihood
from bdl.posterior.predict import Posterior
from bdl.posterior.store import SampleStore
from bdl.posterior.tensors import FrozenPart, stacked_tensors
from bdl.samplers.sampler import Sampler
from bdl.snapshot import describe_target


def rehearse(
    module: nn.Module, sampler: Sampler, splits: Mapping[str, Iterable[Any]], likelihood: Likelihood | None
) -> None:
    """Keep the present state as a sample, score it on the first batch of each split, and forget it.

    What the evaluation would refuse at the end of a run, such as targets of another kind, is refused here: see
    `bdl.report`. Neither torch's random stream nor the mode of the module is changed.
    """
    modes = [(each, each.training) for each in module.modules()]
    net = sampled_net(module, None)
    with own_folder() as folder, torch.random.fork_rng(devices=[]):
        now = sampler.snapshot(full_energy=False, freeze_weighting=False)
        frozen = FrozenPart(net, sampler, None)
        tensors = stacked_tensors(net, sampler.chains, frozen.tensors)
        rows = slice(None) if len(now.rows) == (sampler.chains or 1) else now.rows
        store = SampleStore(folder)
        store.write_target(describe_target(sampler, loss_of(module), tensors), now.stack, frozen)
        kept = {name: tensor[rows] for name, tensor in tensors.items()}
        store.write(kept, **now.fields())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the evaluation itself will say it
                posterior = Posterior.load(folder, module, likelihood=likelihood)
                for name, loader in splits.items():
                    if (first := _first(name, loader)) is not None:
                        posterior.evaluate([first]).metrics()
                    if (place := _not_finite(loader)) is not None:
                        _score_odd(posterior, name, loader, place)
        finally:
            for each, mode in modes:
                each.training = mode


def _first(name: str, loader: Iterable[Any]) -> Any:
    """The first batch of a loader; None of one whose items can be read once. Raises ConfigError for one without any."""
    if iter(loader) is loader if not isinstance(loader, DataLoader) else isinstance(loader.dataset, IterableDataset):
        return None
    # A StopIteration would pass for the end of the epoch, and the run would begin it again for ever
    first = next(iter(in_order(loader) if isinstance(loader, DataLoader) else loader), None)
    if first is None:
        raise ConfigError(f"the {name} data have no item: give labelled items, or leave the split out")
    return first


def _not_finite(loader: Iterable[Any]) -> int | None:
    """The first item of tensors in memory with an input that is not finite."""
    if not isinstance(loader, DataLoader) or not isinstance(loader.dataset, TensorDataset):
        return None
    odd = torch.zeros(len(loader.dataset), dtype=torch.bool)
    for inputs in loader.dataset.tensors[:-1]:
        odd |= ~inputs.flatten(1).isfinite().all(1).cpu()
    return int(odd.nonzero()[0]) if bool(odd.any()) else None


def _score_odd(posterior: Posterior, name: str, loader: Any, place: int) -> None:
    try:
        posterior.evaluate([loader.collate_fn([loader.dataset[place]])]).metrics()
    except ConfigError as error:
        raise ConfigError(f"item {place} of the {name} data has an input that is not finite: {error}") from None
