"""Rehearsal: the evaluation of a run, made once on one batch of each split before its first step."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from bdl.disk.temporary import own_folder
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
                for loader in splits.values():
                    for batch in _first(loader):
                        posterior.evaluate([batch]).metrics()
        finally:
            for each, mode in modes:
                each.training = mode


def _first(loader: Iterable[Any]) -> Iterable[Any]:
    """The first batch of a loader; none of one whose items can be read once."""
    if iter(loader) is loader if not isinstance(loader, DataLoader) else isinstance(loader.dataset, IterableDataset):
        return ()
    return [next(iter(in_order(loader) if isinstance(loader, DataLoader) else loader))]
