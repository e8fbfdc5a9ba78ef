"""SWAG: a Gaussian over the iterates of SGD, for each chain; with several chains it is MultiSWAG."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim.swa_utils import update_bn

from bdl.batch import Fed, map_tensors
from bdl.contrib.baselines.base import Baseline, Material, Tensors, split_vector, with_tensors
from bdl.errors import ConfigError
from bdl.seeding import generator


@dataclass
class Moments:
    """Running mean, variance and last deviations of the iterates θ_1 ... θ_n of one chain, in double precision."""

    rank: int
    count: int = 0
    mean: Tensor = torch.zeros(())  # (d,) after the first iterate
    squares: Tensor = torch.zeros(())  # (d,) sum of squared deviations from the mean (Welford 1962)
    deviations: tuple[Tensor, ...] = ()  # the last `rank` of θ_i - mean_i, each (d,)

    def add(self, theta: Tensor) -> None:
        """theta: (d,)"""
        theta = theta.double()
        self.count += 1
        before = theta - self.mean
        self.mean = self.mean + before / self.count
        self.squares = self.squares + before * (theta - self.mean)
        self.deviations = (*self.deviations, theta - self.mean)[-self.rank :] if self.rank else ()

    def draw(self, random: torch.Generator) -> Tensor:
        """(d,) a draw of the Gaussian, see `SWAG`."""
        sigma = (self.squares / self.count).sqrt()
        normal = lambda n: torch.randn(n, dtype=torch.float64, generator=random).to(sigma.device)  # noqa: E731
        z1 = normal(len(sigma))
        if not self.rank:
            return self.mean + sigma * z1
        D, K = torch.stack(self.deviations, 1), len(self.deviations)
        return self.mean + sigma * z1 / math.sqrt(2) + D @ normal(K) / math.sqrt(2 * (K - 1))


@dataclass(frozen=True)
class SWAG(Baseline):
    """SWA-Gaussian (Maddox et al. 2019, algorithm 1), and MultiSWAG for several chains (Wilson & Izmailov 2020).

        θ = mean + Σ^(1/2) z1 / √2 + D z2 / √(2 (K - 1)),        z1, z2 standard normal

    mean and Σ (diagonal) are the moments of all kept iterates of SGD at a constant learning rate. The K = rank columns
    of D are the last deviations θ_i - mean_i from the running mean. Rank 0 leaves out the second term, and the first
    one then has the whole variance.

    The statistics of BatchNorm are computed anew for every draw, over the training items. Other buffers are those of
    the last iterate. Parameters that do not move have no variance, and stay.

    Args:
        draws: networks per chain.
        rank: K; 0, or from 2 to the number of kept iterates of a chain.

    Raises ConfigError for a value out of range, and where a chain has fewer iterates than the rank.
    """

    draws: int = 30
    rank: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.rank) is not int or self.rank < 0 or self.rank == 1:
            raise ConfigError(f"rank must be 0 or a whole number of at least 2, got {self.rank!r}")

    def networks(self, material: Material) -> Iterator[list[Tensors]]:
        net = material.trained.net
        names = [name for name, _ in net.named_parameters()]
        moments, last = self._moments(material, names)
        normalised = any(isinstance(m, _BatchNorm) and m.track_running_stats for m in net.modules())
        random = [generator("cpu", "swag", material.seed, chain) for chain in range(len(moments))]
        while True:
            drawn = [
                {**of, **split_vector(m.draw(r), of, names)} for m, of, r in zip(moments, last, random, strict=True)
            ]
            yield [self._refreshed(net, tensors, material) for tensors in drawn] if normalised else drawn

    def _moments(self, material: Material, names: list[str]) -> tuple[list[Moments], list[Tensors]]:
        """The moments of every chain, and its last iterate."""
        moments: dict[int, Moments] = {}
        for sample in material.trained.stream():
            theta = torch.cat([sample.tensors[name].flatten() for name in names])
            moments.setdefault(sample.chain, Moments(self.rank)).add(theta)
        fewest = min(m.count for m in moments.values())
        if fewest < max(2, self.rank):
            raise ConfigError(
                f"SWAG of rank {self.rank} needs at least {max(2, self.rank)} iterates of every chain, and one has "
                f"{fewest}: lower baseline.rank, or keep more (collect.keep.every)"
            )
        return [moments[chain] for chain in sorted(moments)], material.last_states()

    def _refreshed(self, net: nn.Module, tensors: Tensors, material: Material) -> Tensors:
        """The tensors with the statistics of BatchNorm over the training items."""
        net = with_tensors(net, tensors)
        for module in net.modules():
            if isinstance(module, _DropoutNd):
                module.p = 0.0  # the noise of dropout belongs to training
        moved = lambda x: map_tensors(lambda t: t.to(material.trained.device), x)  # noqa: E731
        update_bn(([moved(inputs)] for inputs, _ in material.batches("train", self)), Fed(net))
        return {**tensors, **{name: b.detach().clone() for name, b in net.named_buffers()}}
