"""Each network's word: outputs and draws of y by every network of a posterior, and one network drawn and kept."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bdl.display import Shown
from bdl.engine.functional import replace_tensors
from bdl.errors import ConfigError
from bdl.likelihoods import Likelihood
from bdl.posterior.networks import WeightKind
from bdl.posterior.outputs import Batches, Data, ItemOutputs
from bdl.posterior.predict import Posterior
from bdl.posterior.samples import Group, Key, Samples
from bdl.seeding import derive_seed, generator


class NetworkValues(Shown):
    """(samples, items, ...) values of each network by itself, which are computed where they are read.

    `values[i]`, `values[10:20, :5]` and the like run the networks that they name, on the items of a slice alone. A loop
    reads one network after another, and `numpy.asarray(values)` all. Networks stand chain by chain, in the order of
    their steps.

    Attributes:
        keys: (chain, step) of each network.
        weights: (samples,) of the networks; they sum to 1.
    """

    def __init__(
        self, keys: list[Key], weights: Tensor, stored: Samples, batches: Batches, law: Likelihood | None, seed: int
    ):
        self.keys, self.weights = keys, weights / weights.sum()
        self._stored, self._batches, self._law, self._seed = stored, batches, law, seed

    def shown(self) -> tuple[str, dict[str, str]]:
        what = "Outputs" if self._law is None else f"Draws of y by {self._law}"
        return f"{what} of {len(self):,} networks", {"items": f"{self._batches.sizes()[1]:,}"}

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:].numpy(), dtype)

    @property
    def shape(self) -> torch.Size:
        """(samples, items, ...), for which the first network runs."""
        return torch.Size((len(self), *self[0].shape))

    @torch.no_grad()
    def __getitem__(self, index: Any) -> Tensor:
        networks, *inside = index if isinstance(index, tuple) else (index,)
        chosen = np.arange(len(self))[networks]
        keys, batches = [self.keys[i] for i in np.atleast_1d(chosen)], self._batches
        if self._law is None and inside and isinstance(inside[0], slice) and inside[0].step in (None, 1):
            items = slice(*inside[0].indices(batches.sizes()[1])[:2])
            if items.start < items.stop:
                batches, inside[0] = batches.part(items), slice(None)
        found = self._read(keys or self.keys[:1], batches)[: len(keys)]
        return found[(slice(None), *inside)] if chosen.ndim else found[0][tuple(inside)]

    def _read(self, keys: list[Key], batches: Batches) -> Tensor:
        """(networks, items, ...) the values of these networks, on the CPU."""
        outputs, values, wanted = ItemOutputs(self._stored, batches, self._law), {}, set(keys)
        for group in self._stored.groups(wanted):
            rows = [i for i, key in enumerate(group.keys) if key in wanted]
            tensors = {name: tensor[rows] for name, tensor in group.tensors.items()}
            part = Group([group.chains[i] for i in rows], [group.records[i] for i in rows], tensors)
            for block, found in outputs.blocks(part):
                values |= dict(zip(block.keys, found, strict=True))
        outputs.not_finite.warn()
        return torch.stack([values[key] if self._law is None else self._drawn(values[key], key) for key in keys])

    def _drawn(self, outputs: Tensor, key: Key) -> Tensor:
        """y, with noise that the seed and the network decide."""
        assert self._law is not None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed("y", self._seed, *key))
            return self._law.of_rows().distribution(outputs.double()).sample()


def outputs(posterior: Posterior, x: Data, kind: WeightKind | None = None) -> NetworkValues:
    """(samples, items, outputs) what each network puts out for x, lazily: see `NetworkValues`. kind: see `predict`."""
    return _values(posterior, x, kind, None, 0)


def draws(posterior: Posterior, x: Data, kind: WeightKind | None = None, seed: int = 0) -> NetworkValues:
    """(samples, items, ...) one draw of y by each network, with the noise of y, lazily: see `NetworkValues`.

    The seed decides the noise. Raises ConfigError where nothing says what the outputs mean.
    """
    return _values(posterior, x, kind, posterior.likelihood(x), seed)


def _values(posterior: Posterior, x: Data, kind: WeightKind | None, law: Likelihood | None, seed: int) -> NetworkValues:
    keys = _keys(posterior)
    return NetworkValues(keys, posterior.weights(kind).of(keys), posterior.stored, posterior.batches(x), law, seed)


def _keys(posterior: Posterior) -> list[Key]:
    return sorted((chain, record.step) for chain, record, _ in posterior.keyed())


def function(posterior: Posterior, i: int | None = None, kind: WeightKind | None = None, seed: int = 0) -> nn.Module:
    """One network of the posterior, kept: a module of its own, in eval mode, that puts out `outputs(x)[i]`.

    i: its number, as in `outputs`; None draws one by the weights of `kind`, under the seed. Raises ConfigError for a
    number of none.
    """
    keys = _keys(posterior)
    if i is None:
        random = generator("cpu", "function", seed)
        i = int(torch.multinomial(posterior.weights(kind).of(keys), 1, generator=random))
    if not -len(keys) <= i < len(keys):
        raise ConfigError(f"i must be the number of one of the {len(keys)} networks, from 0 on, got {i}")
    key = keys[i]
    group = next(group for group in posterior.stored.groups({key}) if key in group.keys)
    tensors = {name: tensor[group.keys.index(key)].clone() for name, tensor in group.tensors.items()}
    frozen = {name: tensor.clone() for name, tensor in posterior.frozen.items()}
    return replace_tensors(copy.deepcopy(posterior.net), {**tensors, **frozen}).eval().requires_grad_(False)
