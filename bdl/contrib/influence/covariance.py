"""influence: which training items a posterior's loss on other items rests on, by covariances over its networks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bdl.display import Shown
from bdl.errors import ConfigError
from bdl.likelihoods import Likelihood
from bdl.posterior.networks import WeightKind
from bdl.posterior.outputs import Batches
from bdl.posterior.predict import Posterior
from bdl.posterior.samples import Key

LOSSES = 2**24  # numbers in double precision: losses that are in memory at once
TEST_ROWS, PAIRS = 512, 2**22  # test items, and pairs of items, whose covariances are computed at once


@dataclass(frozen=True, repr=False)
class Influence(Shown):
    """By how much the expected loss of each test item would rise without each training item, to first order.

    Above 0 the training item helps, below 0 it harms. See `influence`.
    """

    values: Tensor  # (n_test, n_train) nats
    std_error: Tensor  # (n_test, n_train) between the chains; NaN for one chain

    def shown(self) -> tuple[str, Mapping[str, str]]:
        tests, items = self.values.shape
        clear = float((self.values.abs() > 2 * self.std_error).double().mean())
        lines = {"values": f"{self.values.min():.3g} to {self.values.max():.3g} nats"}
        return f"Influence of {items:,} training items on {tests:,}", lines | {"beyond 2 errors": f"{clear:.1%}"}


class InfluenceBlock(NamedTuple):
    """The influence of some training items, `items`, on some test items, `tests`; (m, n) double, nats."""

    tests: slice
    items: slice
    values: Tensor
    std_error: Tensor


def influence(
    posterior: Posterior[Any], train: Iterable[Any], test: Iterable[Any], kind: WeightKind | None = None
) -> Influence:
    """`Posterior.influence`: how the loss of each test item would change without each training item.

        d E[l_test] / d(weight of i) = -Cov(l_test, l_i) / T,    so that leaving i out adds Cov(l_test, l_i) / T

    l are losses in nats, each training item once, under exp(-U/T) (Giordano et al. 2018, theorem 1; Kreer et al. 2025
    call it the Bayesian influence function). Covariances are centred at the mean of each chain, so that modes which
    chains do not change between do not enter. It is first-order: an item with a large share of the data has a larger
    effect than it says. A chain of few effective draws n underrates covariances by about 1/n.

    Losses are computed for blocks of the items: memory is that of the result and of a few blocks, and every block
    reads the samples once.

    Args:
        posterior: the networks, at least two of each chain.
        train: a loader of labelled items, in a fixed order, that the run has sampled with.
        test: a loader of labelled items. Training items as test items tell how they support each other.
        kind: weights of the samples, see `Posterior.predict`.

    Raises ConfigError for chains with one network, for samples of several temperatures or of T = 0, and for batches
    without labels.
    """
    tested, trained = posterior.batches(test), posterior.batches(train)
    found = torch.empty(2, tested.sizes()[1], trained.sizes()[1])
    for tests, items, *both in influence_blocks(posterior, trained, tested, kind):
        found[:, tests, items] = torch.stack(both).float()
    return Influence(*found)


@torch.no_grad()
def influence_blocks(
    posterior: Posterior[Any], train: Iterable[Any], test: Iterable[Any], kind: WeightKind | None = None
) -> Iterator[InfluenceBlock]:
    """`influence` in blocks, for results that do not fit into memory: all training items of some tests come first."""
    weights = posterior.weights(kind).by_key
    target = posterior.target_temperature if (kind or posterior.kind) == "importance" else None
    chains = _chains(posterior, weights, target)
    tested, trained = posterior.batches(test), posterior.batches(train)
    for batches in (tested, trained):
        batches.labels()  # refuses batches without
    size = max(1, LOSSES // len(weights))
    for tests in _slices(tested.sizes()[1], min(TEST_ROWS, size)):
        keys, of_test = losses(posterior, tested.part(tests), weights)
        for items in _slices(trained.sizes()[1], min(PAIRS // of_test.shape[1], size)):
            _, of_train = losses(posterior, trained.part(items), weights)
            yield InfluenceBlock(tests, items, *_over_chains(keys, of_test, of_train, weights, chains))


def losses(posterior: Posterior[Any], batches: Batches, used: Mapping[Key, float]) -> tuple[list[Key], Tensor]:
    """The networks that have a weight, and (S, n) their losses of all items, nats, double."""
    law, forward = posterior.weighted_likelihood(batches), posterior.stored.forward()
    batches.bound(forward)
    together = forward.together(*batches.sizes())
    keys, parts = [], []
    for group in posterior.stored.groups(used):
        for block in group.blocks(together):
            present = block.keys
            rows = [i for i, key in enumerate(present) if used.get(key)]
            outputs = ((forward.evaluate(block.tensors, batches.moved(x))[rows], y) for x, y in batches)
            keys += [present[i] for i in rows]
            parts.append(torch.cat([item_losses(law, each, y) for each, y in outputs], 1))
    return keys, torch.cat(parts)


def item_losses(law: Likelihood, outputs: Tensor, y: Tensor) -> Tensor:
    """(k, n) losses of the items in nats, double, on the CPU, of k networks. Elements that count are averaged."""
    targets, weights = law.split(y.to(outputs.device))
    plain = law.unweighted
    each = plain(outputs.double(), targets.expand(len(outputs), *targets.shape))
    if each.ndim > 2:
        counted = plain.counted(targets)
        counts = torch.ones_like(each[0]) if counted is None else counted.to(each)
        each = (each * counts).flatten(2).sum(2) / counts.flatten(1).sum(1).clamp_min(1)
    return (each if weights is None else each * weights).cpu()


def _slices(items: int, size: int) -> Iterator[slice]:
    return (slice(i, min(i + size, items)) for i in range(0, items, size))


def _chains(posterior: Posterior[Any], weights: Mapping[Key, float], target: float | None) -> dict[int, float]:
    """The temperature of each chain, `target` if there is one. Raises ConfigError where it has several, or is 0."""
    found: dict[int, list[float]] = {}
    for chain, record, c in posterior.keyed():
        if weights.get((chain, record.step)):
            each = record.temperature
            found.setdefault(chain, []).append(target or (each[c] if isinstance(each, list) else each))
    for chain, each in found.items():
        if len(each) < 2:
            raise ConfigError(f"influence needs at least 2 networks of each chain, and chain {chain} has {len(each)}")
        if len(set(each)) > 1 or not each[0] > 0:
            raise ConfigError(
                f"influence needs samples of one temperature above 0, and those of chain {chain} have "
                f"{', '.join(f'{t:g}' for t in sorted(set(each))[:3])}: keep samples at one temperature"
            )
    return {chain: each[0] for chain, each in found.items()}


def _over_chains(
    keys: list[Key], a: Tensor, b: Tensor, weights: Mapping[Key, float], temperatures: Mapping[int, float]
) -> tuple[Tensor, Tensor]:
    """(m, n) mean over the chains of Cov(a, b) / T, and its standard error, of losses a (S, m) and b (S, n)."""
    w = torch.tensor([weights[key] for key in keys], dtype=torch.float64)
    number = torch.tensor([chain for chain, _ in keys])
    mean, square = torch.zeros(2, a.shape[1], b.shape[1], dtype=torch.float64)
    shares = []
    for chain, t in temperatures.items():
        rows = number == chain
        shares.append(float(w[rows].sum() / w.sum()))
        found = covariance(a[rows], b[rows], w[rows]) / t
        mean, square = mean + shares[-1] * found, square + shares[-1] * found.square()
    effective = 1 / sum(share**2 for share in shares)
    spread = (square - mean.square()).clamp_min(0)
    return mean, (spread / (effective - 1)).sqrt() if len(shares) > 1 else torch.full_like(mean, math.nan)


def covariance(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """(m, n) unbiased covariance of a (s, m) and b (s, n) under the weights w (s,) of independent draws."""
    w = w / w.sum()
    a, b = a - w @ a, b - w @ b
    return (w.unsqueeze(1) * a).T @ b / (1 - w.square().sum())
