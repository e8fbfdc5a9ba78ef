"""Weightings: functions of an energy histogram that change the law to exp(-U/T) / psi(U)^zeta.

log psi is one piecewise-linear function of U (`bdl.psi`). The gradient multiplier is 1 + zeta T times its exact slope;
the importance weight back to exp(-U/T) is psi(U)^zeta. The two can therefore never disagree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.identity import type_name
from bdl.psi import Array, exp, lean
from bdl.samplers.weighting.histogram import RECENT, Histogram

TABULATE = 10  # updates of psi between updates of its logarithm; psi changes little in between


@dataclass(frozen=True)
class RobbinsMonro:
    """Step of the stochastic approximation, min(1, scale / (k^power + offset)); Liang's code has scale 100."""

    scale: float = 10.0
    power: float = 0.75
    offset: float = 1000.0

    def __call__(self, k: int) -> float:
        return min(1.0, self.scale / (k**self.power + self.offset))


class Weighting(ABC):
    """How the law depends on energy besides exp(-U/T).

    Attributes:
        zeta: power of psi in the law.
        energy: kind of energy that psi reads: "batch", "ema" or "full".
        needs_energy: False where a step needs no energy; only `identity` and `describe` are then called.
    """

    zeta: float = 0.0
    energy: str = "batch"
    needs_energy: bool = True

    def identity(self) -> dict[str, Any]:
        """Plain values that two runs of one law share: bins and rate of the recursion do not matter."""
        return {"type": type_name(type(self)), "zeta": self.zeta}

    @abstractmethod
    def describe(self, zeta: float) -> str:
        """What `Sampler.explain` adds to the intended law."""


@dataclass(frozen=True)
class Flat(Weighting):
    """No weighting: the law is exp(-U/T), the multiplier 1, the log weight 0."""

    needs_energy = False

    def describe(self, zeta: float) -> str:
        return ""


@dataclass(frozen=True)
class HistogramWeighting(Weighting):
    """What AdaptiveWeight and Contour share: bins, the recursion, and the kind of energy. Abstract: see `direction`."""

    zeta: float = 1.0
    low: float | None = None
    high: float | None = None
    bins: int = 100
    rate: Callable[[int], float] = RobbinsMonro()
    shared: bool = False
    energy: str = "batch"
    smoothing: float = 0.95  # decay of the smoothed energy, `energy="ema"`
    refresh: int = 1  # steps between evaluations of the full-data energy, `energy="full"`
    pilot: int = 1000  # steps of the pilot

    def __post_init__(self) -> None:
        if self.energy not in ("batch", "ema", "full"):
            raise ConfigError(f'energy must be "batch", "ema" or "full", got {self.energy!r}')
        if self.bins < 2:
            raise ConfigError(f"bins must be at least 2, got {self.bins}")
        if not self.zeta >= 0:
            raise ConfigError(f"zeta must be >= 0, got {self.zeta}")
        low, high = self.low, self.high
        if (low is None) != (high is None) or (low is not None and high is not None and not low < high):
            raise ConfigError(
                f"low and high must be two energies in nats, low < high, or both null; got {self.low}, {self.high}"
            )
        if not 0 <= self.smoothing < 1 or self.refresh < 1:
            raise ConfigError(f"smoothing must be in [0, 1) and refresh >= 1, got {self.smoothing}, {self.refresh}")
        if self.pilot < RECENT:
            raise ConfigError(f"pilot must be at least {RECENT} steps, got {self.pilot}")

    @abstractmethod
    def direction(self, h: Histogram, u: Array, j: Array, zeta: float) -> Array:
        """(C, m) direction in which one energy u (C,), in bin j (C,), moves psi.

        Arrays are those of `bdl.psi.lean`: NumPy's on a CPU, tensors elsewhere.
        """

    def describe(self, zeta: float) -> str:
        return f", weighted to exp(-U/T) / psi(U)^{zeta:g} by {type(self).__name__} on {self.energy} energies"

    def init(self, energies: Tensor) -> Histogram:
        """A histogram before any energy: psi = 1. energies: any (C,) tensor of the type and device to use."""
        rows = 1 if self.shared else len(energies)
        return Histogram.unknown(energies, rows, self.bins, self.pilot, self.low, self.high)

    def log_psi(self, h: Histogram, u: Tensor) -> Tensor:
        """(C,) log psi at the energies u (C,), nats."""
        return torch.as_tensor(h.evaluate(lean(u))[0])

    def slope(self, h: Histogram, u: Tensor) -> Tensor:
        """(C,) d log psi / du, per nat: the exact derivative of `log_psi`."""
        return torch.as_tensor(h.evaluate(lean(u))[1])

    def update(self, h: Histogram, u: Array, zeta: float) -> None:
        """One step of the stochastic approximation by energies u (C,) of the weighted law; T = 0 has none."""
        u = lean(u) if isinstance(u, Tensor) else u
        if h.frozen:
            return
        gamma = self.rate(h.updates)
        h.updates += 1
        h.clock += gamma
        j = h.bin_of(u)
        h.count(j)
        direction, psi = self.direction(h, u, j, zeta), h.grid().psi
        psi += gamma * (direction.mean(0) if self.shared else direction)
        if h.updates % TABULATE == 0:
            h.tabulate()

    def observe(self, h: Histogram, u: Array, pooled: bool) -> None:
        """Remember the energies u (C,), end the pilot when they no longer drift, and check that the bins hold them.

        pooled: the chains share one temperature, so that one range serves all. Raises ConfigError for given bins that
        miss the energies.
        """
        h.remember(u)
        if h.low is None:
            h.end_pilot(pooled)
        elif h.seen % RECENT == 0 and not h.frozen:
            h.check_range(given=self.low is not None)


@dataclass(frozen=True)
class AdaptiveWeight(HistogramWeighting):
    """psi = energy CDF to the power 1/zeta: AWSGLD, AWSGHMC, ... (Liang 2024, slides on adaptively weighted SG-MCMC).

        θ_i <- θ_i + gamma θ_J (1{i >= J} - θ_i),    J = bin of U

    This is the normalised form of Liang's recursion. Its fixed point has θ_m = 1 and θ_i ∝ Σ_{j<=i} g_j θ_j^(1 - zeta),
    with g_j the mass of bin j under exp(-U/T). psi increases with U, so that the multiplier is >= 1 and pulls towards
    low energy.

    Args:
        zeta: power of the weight.
        low, high: energies in nats. None: a pilot without weighting finds them, once the energies of `pilot` steps show
            no drift: low = .1 % quantile, high = 99.9 % quantile and a tenth of the range, of the later half. The pilot
            starts again whenever most energies have left its bins and psi is not frozen. `low` is part of the law: psi
            is constant below it.
        bins: how many.
        rate: step of the recursion as a function of its count.
        shared: one psi for all chains.
        energy: "batch" (N times the batch loss, plus the prior), "ema" (smoothed by `smoothing`), or "full"
            (`Sampler.full_loss`, evaluated every `refresh` steps).
    """

    def direction(self, h: Histogram, u: Array, j: Array, zeta: float) -> Array:
        grid = h.grid()
        reached = grid.numbers >= j[:, None]
        return grid.psi[grid.rows, j][:, None] * (1.0 * reached - grid.psi)


@dataclass(frozen=True)
class Contour(HistogramWeighting):
    """psi = density of energy: contour SG-MCMC (Deng et al. 2020), which flattens the histogram of energies.

        θ_i <- θ_i + gamma w (1{i = J} - θ_i),    J = bin of U,    w = (psi(U) / max psi)^zeta

    The paper has θ_J^zeta in place of w. w is, up to a factor, the weight in force: interpolated between bin centres,
    with bounded rises. Only with w is the fixed point the mass of bin i under exp(-U/T). With θ_J^zeta and bounded
    rises, psi collapses where neighbouring masses differ by more than a factor e. psi falls at high energies, so that
    the multiplier may be negative. Arguments as in AdaptiveWeight.
    """

    def direction(self, h: Histogram, u: Array, j: Array, zeta: float) -> Array:
        hit = h.grid().numbers == j[:, None]
        log_w = zeta * (h.evaluate(u)[0] - lean(h.log_psi.max(1).values))
        return exp(log_w)[:, None] * (1.0 * hit - h.grid().psi)
