"""Weightings: functions of an energy histogram that change the law sampled to exp(-U/T) / psi(U)^zeta.

Everything here is a function of energies U (C,), in nats. log psi is one piecewise-linear function of U: linear between
bin centres, constant outside. The gradient multiplier is 1 + zeta T times its exact slope and the importance weight
back to exp(-U/T) its exponential psi(U)^zeta, so the two can never disagree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor

from bdl.errors import ConfigError

MIN_VISITS = 10  # a bin seen less often than this counts for its share only
MAX_RISE = 1.0  # of log psi from one bin to the next; the authors' 1 - θ_{J-1}/θ_J has the same bound
SETTLED = 5.0  # time constants of the stochastic approximation after which psi counts as settled
TABULATE = 10  # updates of psi between updates of its logarithm; psi moves little in between
FLAT = 0.2  # standard deviations between the halves of a window of energies that has stopped drifting
RECENT = 100  # steps between checks that the bins see the energies of as many steps


@dataclass(frozen=True)
class RobbinsMonro:
    """Step of the stochastic approximation, min(1, scale / (k^power + offset)); the authors' code has scale 100."""

    scale: float = 10.0
    power: float = 0.75
    offset: float = 1000.0

    def __call__(self, k: int) -> float:
        return min(1.0, self.scale / (k**self.power + self.offset))


@dataclass
class Histogram:
    """State of psi: R rows, one per chain or a single shared one, by m bins."""

    psi: Tensor  # (R, m) estimate of psi at the bins
    log_psi: Tensor  # (R, m) its logarithm as the sampler sees it: rises bounded, zero in the top bin
    visits: Tensor  # (R, m)
    low: Tensor | None  # (R, 1) nats; None until the pilot has found it
    high: Tensor | None  # (R, 1) nats
    window: Tensor  # (pilot, C) most recent energies
    seen: int = 0  # energies in the window since the target last changed
    updates: int = 0
    clock: float = 0.0  # sum of gamma since T or zeta last changed
    frozen: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


class Weighting(Protocol):
    """What the shell asks of every weighting; one that needs energies also has the methods of AdaptiveWeight."""

    @property
    def zeta(self) -> float: ...

    @property
    def energy(self) -> str: ...

    @property
    def needs_energy(self) -> bool: ...


@dataclass(frozen=True)
class Flat:
    """No weighting: the law is exp(-U/T), the multiplier 1, the log weight 0."""

    zeta = 0.0
    energy = "batch"
    needs_energy = False


@dataclass(frozen=True)
class _EnergyWeighting:
    """What AdaptiveWeight and Contour share: bins, interpolation, recursion. Abstract: `_field` is theirs."""

    zeta: float = 1.0
    low: float | None = None
    high: float | None = None
    bins: int = 100
    rate: Callable[[int], float] = RobbinsMonro()
    shared: bool = False
    energy: str = "batch"
    smoothing: float = 0.95  # decay of the smoothed energy, `energy="ema"`
    refresh: int = 1  # steps between evaluations of the full-data energy, `energy="full"`
    pilot: int = 1000  # steps whose energies it looks at
    needs_energy = True

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

    def init(self, energies: Tensor) -> Histogram:
        """A histogram that knows nothing: psi = 1. energies: any (C,) tensor of the right type and device."""
        rows = 1 if self.shared else len(energies)
        ones = energies.new_ones(rows, self.bins)
        low, high = (None if v is None else energies.new_full((rows, 1), v) for v in (self.low, self.high))
        return Histogram(ones, ones.log(), ones - 1, low, high, energies.new_zeros(self.pilot, len(energies)))

    def _field(self, h: Histogram, u: Tensor, j: Tensor, zeta: float) -> Tensor:
        """(C, m) direction in which one energy u (C,), in bin j (C,), moves psi."""
        raise TypeError(f"{type(self).__name__} is abstract")

    def log_psi(self, h: Histogram, u: Tensor) -> Tensor:
        """(C,) log psi at the energies u (C,), nats."""
        return self.evaluate(h, u)[0]

    def slope(self, h: Histogram, u: Tensor) -> Tensor:
        """(C,) d log psi / du, per nat: the exact derivative of `log_psi`."""
        return self.evaluate(h, u)[1]

    def evaluate(self, h: Histogram, u: Tensor) -> tuple[Tensor, Tensor]:
        """log psi and its slope, at the cost of one look-up."""
        if h.low is None:
            return torch.zeros_like(u), torch.zeros_like(u)
        width = self._width(h)
        x = (u - h.low.squeeze(1)) / width - 0.5  # in units of bins from the first centre
        clamped = x.clamp(0, self.bins - 1)
        j = clamped.long().clamp_(max=self.bins - 2)
        rows, _ = self._rows(h, u, j)
        left, right = h.log_psi[rows, j], h.log_psi[rows, j + 1]
        rise = right - left
        return left + (clamped - j) * rise, rise / width * (x == clamped)

    def update(self, h: Histogram, u: Tensor, zeta: float) -> None:
        """One step of the stochastic approximation towards the law that produced u (C,). Not to be called at T = 0."""
        if h.frozen:
            return
        gamma = self.rate(h.updates)
        h.updates += 1
        h.clock += gamma
        j = ((u - h.low.squeeze(1)) / self._width(h)).long().clamp_(0, self.bins - 1)  # type: ignore
        h.visits.index_put_(self._rows(h, u, j), torch.ones_like(u), accumulate=True)
        field = self._field(h, u, j, zeta)
        h.psi.add_(field.mean(0, keepdim=True) if self.shared else field, alpha=gamma)
        if h.updates % TABULATE == 0:
            self._tabulate(h)

    def observe(self, h: Histogram, u: Tensor, pooled: bool) -> None:
        """Look at the energies: end the pilot when they have stopped drifting, and refuse bins that see none of them.

        A pilot's own bins that see less than half of them, as under a falling lr, send it out again.

        pooled: the chains share one temperature, so that one range serves all.
        """
        h.window[h.seen % self.pilot] = u
        h.seen += 1
        if h.low is None:
            if h.seen % self.pilot == 0 and _flat(h.window):
                self._set_range(h, pooled)
        elif h.seen % RECENT == 0 and not h.frozen:
            recent = h.window[torch.arange(h.seen - RECENT, h.seen) % self.pilot]
            below, above = recent < h.low.squeeze(1), recent > h.high.squeeze(1)  # type: ignore
            if self.low is None:
                if (below | above).double().mean() > 0.5:
                    self._restart(h)
            # Burn-in lowers the energy: from above it may still reach the bins, from below it only leaves them further.
            elif (below.all() and _drift(recent) < FLAT) or ((below | above).all() and _flat(recent)):
                self._refuse(h, recent)

    def forget(self, h: Histogram) -> None:
        """The target (T or zeta) has changed: psi is not settled, and a pilot starts again."""
        h.clock = 0.0
        if h.low is None:
            h.seen = 0

    def outside(self, h: Histogram) -> tuple[float, float]:
        """Shares of the recent energies below `low` and above `high`."""
        recent = h.window[: min(h.seen, self.pilot)]
        if h.low is None or len(recent) == 0:
            return math.nan, math.nan
        low, high = h.low.squeeze(1), h.high.squeeze(1)  # type: ignore
        return (recent < low).double().mean().item(), (recent > high).double().mean().item()

    def edges(self, h: Histogram) -> Tensor:
        """(R, m + 1) bin edges, nats; NaN while the pilot runs."""
        if h.low is None:
            return h.psi.new_full((len(h.psi), self.bins + 1), math.nan)
        return h.low + self._width(h)[:, None] * torch.arange(self.bins + 1, device=h.psi.device)

    def _set_range(self, h: Histogram, pooled: bool) -> None:
        late = h.window[self.pilot // 2 :]
        sorted_u = (late.flatten()[None] if pooled or self.shared else late.T).sort(1).values
        n = sorted_u.shape[1]
        low, high = sorted_u[:, n // 1000], sorted_u[:, n - 1 - n // 1000]
        rows = len(h.psi)
        h.low = low.expand(rows).unsqueeze(1).clone()
        h.high = (high + 0.1 * (high - low)).expand(rows).unsqueeze(1).clone()
        h.seen = 0

    def _restart(self, h: Histogram) -> None:
        h.low, h.high, h.seen, h.updates, h.clock = None, None, 0, 0, 0.0
        h.psi.fill_(1)
        for t in (h.log_psi, h.visits):
            t.zero_()

    def _refuse(self, h: Histogram, recent: Tensor) -> None:
        raise ConfigError(
            f"bins miss the energies: low = {h.low.min().item():g}, high = {h.high.max().item():g}, but the last "  # type: ignore
            f"{len(recent)} energies lie in [{recent.min().item():g}, {recent.max().item():g}] nats; "
            "set low and high around them, or leave both null for a pilot"
        )

    def _rows(self, h: Histogram, u: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.zeros_like(j) if self.shared else torch.arange(len(u), device=u.device)
        return rows, j

    def _width(self, h: Histogram) -> Tensor:
        """(R,) nats."""
        return (h.high - h.low).squeeze(1) / self.bins  # type: ignore

    def _tabulate(self, h: Histogram) -> None:
        """log psi as the sampler sees it. A rise between two bins is bounded, and trusted by the less visited one."""
        rise = h.psi.clamp_min(1e-300).log().diff(dim=1).clamp_(-MAX_RISE, MAX_RISE)
        rise.mul_(torch.minimum(h.visits[:, 1:], h.visits[:, :-1]).div_(MIN_VISITS).clamp_(max=1))
        below = torch.ones(self.bins - 1, self.bins - 1, dtype=rise.dtype, device=rise.device).tril()
        h.log_psi[:, :-1] = -rise @ below  # a cumulative sum from the top, which CUDA has no deterministic kernel for


@dataclass(frozen=True)
class AdaptiveWeight(_EnergyWeighting):
    """psi = energy CDF to the power 1/zeta: AWSGLD, AWSGHMC, ... (Liang 2024, slides on adaptively weighted SG-MCMC).

        θ_i <- θ_i + gamma θ_J (1{i >= J} - θ_i),    J = bin of U

    the normalised form of their recursion, with fixed point θ_m = 1 and θ_i ∝ Σ_{j<=i} g_j θ_j^(1 - zeta), with g_j
    the mass of bin j under exp(-U/T). psi increases with U, so the multiplier is >= 1 and pulls towards low energy.

    zeta: power of the weight. low, high: energies in nats, None = found by a pilot run without weighting, once the
    energies of `pilot` steps show no drift (low = .1% quantile, high = 99.9% quantile and a tenth of the range, of the
    later half), and again whenever most energies have left its bins and psi is not frozen. rate: step of
    the recursion as a function of its count. shared: one psi for all chains. energy: "batch" (N times the batch loss,
    plus the prior), "ema" (smoothed), or "full" (`Sampler.full_loss`, evaluated every `refresh` steps).
    `low` is part of the law: psi is constant below it.
    """

    def _field(self, h: Histogram, u: Tensor, j: Tensor, zeta: float) -> Tensor:
        reached = torch.arange(self.bins, device=u.device) >= j.unsqueeze(1)
        return h.psi[self._rows(h, u, j)].unsqueeze(1) * (reached.to(u.dtype) - h.psi)


@dataclass(frozen=True)
class Contour(_EnergyWeighting):
    """psi = density of energy: contour SG-MCMC (Deng et al. 2020), which flattens the histogram of energies.

        θ_i <- θ_i + gamma w (1{i = J} - θ_i),    J = bin of U,    w = (psi(U) / max psi)^zeta

    Their θ_J^zeta is w up to a factor; w is the weight in force, between bin centres and with its rises bounded. Only
    so is the fixed point the mass of bin i under exp(-U/T): with θ_J^zeta and bounded rises psi collapses where
    neighbouring masses differ by more than a factor e. psi falls at high energies, so the multiplier may be negative.
    Arguments as in AdaptiveWeight.
    """

    def _field(self, h: Histogram, u: Tensor, j: Tensor, zeta: float) -> Tensor:
        hit = torch.arange(self.bins, device=u.device) == j.unsqueeze(1)
        log_w = zeta * (self.log_psi(h, u) - h.log_psi.max(1).values)
        return log_w.exp().unsqueeze(1) * (hit.to(u.dtype) - h.psi)


def _flat(u: Tensor) -> bool:
    """Have the energies (n, C) stopped drifting, as far as two standard errors of so few show?"""
    return abs(_drift(u)) < max(FLAT, 4 / math.sqrt(u.numel()))


def _drift(u: Tensor) -> float:
    """How much higher the second half of the energies (n, C) lies than the first, in the second's standard deviations.

    The first's would hide a quick descent, which widens it more than it moves its mean.
    """
    first, second = u[: len(u) // 2], u[len(u) // 2 :]
    return float((second.mean(0) - first.mean(0)).mean() / second.std(0).mean().clamp_min(1e-30))
