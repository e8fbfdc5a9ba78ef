"""Weightings by an energy histogram, which change the law to exp(-U/T) / psi(U)^zeta.

log psi is one piecewise-linear function of U (`bdl.psi`). The gradient multiplier is 1 + zeta T times its exact slope;
the importance weight back to exp(-U/T) is psi(U)^zeta, and that to a target exp(-U/T0) is psi(U)^zeta exp(-U (1/T0 -
1/T)). Multiplier and weight can therefore never disagree.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from bdl.errors import ConfigError, check_choice
from bdl.psi import Array, exp, lean
from bdl.samplers.dynamics.base import Scalar
from bdl.samplers.weighting.base import AUTO, RobbinsMonro, Weighting
from bdl.samplers.weighting.depth import depth
from bdl.samplers.weighting.histogram import Form, Histogram
from bdl.samplers.weighting.partition import (
    HIGHEST,
    LOWEST,
    RECENT,
    Bound,
    Given,
    Partition,
    check_range,
    checked_edges,
    end_pilot,
)
from bdl.samplers.weighting.target import Toward, check_target

TABULATE = 10  # updates of psi between updates of its logarithm, once psi changes little in between
EARLY = 1000  # updates before that: psi changes much, and a fast start would miss it
MOST_ZETA = 1e9  # above it the multiplier 1 + zeta T d log psi/dU leaves the range of single precision


@dataclass(frozen=True)
class HistogramWeighting(Weighting):
    """What AdaptiveWeight and Contour share: bins, the recursion, and the kind of energy. Abstract: see `direction`."""

    zeta: float | Literal["auto"] = 1.0
    low: Given = None
    high: Given = None
    bins: int = 100
    edges: Sequence[float] | None = None
    form: str | Form = "slides"
    rate: Callable[[int], float] = RobbinsMonro()
    shared: bool | None = None
    energy: str = "batch"
    units: str = "nats"
    refresh: int = 1  # steps between evaluations of the full-data energy, for `energy="full"` and "control"
    pilot: int = 1000  # steps of the pilot
    target: float | None = None  # T0, the temperature to which the weights lead

    forms: ClassVar[dict[str, Form]] = {"slides": Form(), "code": Form("log", 0, "linear")}
    open_top: ClassVar[bool] = False  # whether log psi goes on with its last slope above the last bin's centre
    descends: ClassVar[bool] = False  # whether a floor that the pilot found goes down to where the energies are

    def __post_init__(self) -> None:
        if not isinstance(self.form, Form):
            check_choice("form", self.form, self.forms)
        check_choice("energy", self.energy, ("batch", "ema", "full", "control"))
        check_choice("units", self.units, ("nats", "temperature"))
        if self.bins < 2:
            raise ConfigError(f"bins must be at least 2, got {self.bins}")
        if self.zeta == AUTO:
            self._check_auto()
        elif not 0 <= float(self.zeta) <= MOST_ZETA:
            raise ConfigError(
                f"zeta must be between 0 and {MOST_ZETA:g}, got {self.zeta}: the gradient's multiplier grows with it"
            )
        if self.refresh < 1:
            raise ConfigError(f"refresh must be at least 1 step, got {self.refresh}")
        if self.energy == "control" and self.refresh == 1:
            raise ConfigError('energy="control" with refresh = 1 finds the full energy at every step: set refresh > 1')
        if self.pilot < RECENT:
            raise ConfigError(f"pilot must be at least {RECENT} steps, got {self.pilot}")
        check_target(self.target, self.units)
        self._check_bounds()

    def _check_bounds(self) -> None:
        """Raise ConfigError for bounds beside edges, and for a low that is not below high."""
        if self.edges is not None and (self.low is not None or self.high is not None):
            raise ConfigError(
                f"give either edges or low and high, got edges = {self.edges!r}, low = {self.low}, "
                f"high = {self.high}: set the others to null"
            )
        bounds = self.partition(1)
        low, high = bounds.low.nats, bounds.high.nats
        if self._unit_of(self.low) == self._unit_of(self.high) and low is not None and high is not None and low >= high:
            raise ConfigError(f"low must be below high, got low = {self.low}, high = {self.high}")

    def identity(self) -> dict[str, Any]:
        return super().identity() | ({} if self.target is None else {"target": float(self.target)})

    def _check_auto(self) -> None:
        """Raise ConfigError where zeta cannot be found, or where something is given that is found with it."""
        raise ConfigError(f'{type(self).__name__} has no zeta="auto": give a number')

    @abstractmethod
    def pull(self, h: Histogram, u: Array, j: Array, zeta: float | Tensor) -> Array:
        """(C,) how strongly energies u (C,), in bins j (C,), move psi; arrays as `bdl.psi.lean` makes them."""

    @abstractmethod
    def aim(self, h: Histogram, j: Array) -> Array:
        """(C, m) psi if there were no other energies than those in the bins j (C,)."""

    def direction(self, h: Histogram, u: Array, j: Array, zeta: float | Tensor) -> tuple[Array, Array]:
        """The pull (C,), and the direction (C, m) in which energies move psi: pull x (aim - psi)."""
        pull = self.pull(h, u, j, zeta)
        return pull, pull[:, None] * (self.aim(h, j) - h.grid().psi)

    def describe(self, zeta: float) -> str:
        weighted = f", weighted to exp(-U/T) / psi(U)^{zeta:g} by {type(self).__name__} on {self.energy} energies"
        return weighted + ("" if self.target is None else f"; weights lead from there to T = {self.target:g}")

    @property
    def is_shared(self) -> bool:
        """Whether all chains have one psi; with a target, unless `shared` says otherwise: it has more to learn."""
        return self.target is not None if self.shared is None else self.shared

    def toward(self, temperature: Scalar) -> Toward | None:
        """The way of the weights from this temperature to the target; None without a target."""
        return None if self.target is None else Toward(self.target, temperature)

    def depth(self, h: Histogram, zeta: float) -> tuple[Tensor, Tensor]:
        """(R,) nats of log G between the median of recent energies and the top, and the error; NaN where unknown."""
        return torch.full_like(h.clock, math.nan), torch.full_like(h.clock, math.nan)

    def partition(self, num_data: int) -> Partition:
        """The bins as asked for. num_data: N, the unit of bounds such as "0.5N"."""
        return Partition(
            Bound.parse("low", self.low, LOWEST, num_data),
            Bound.parse("high", self.high, HIGHEST, num_data),
            self.bins,
            margin=self.high is None,
            descends=(self.descends or self.target is not None) and self.low is None and self.edges is None,
            edges=None if self.edges is None else checked_edges(self.edges),
        )

    @property
    def psi_form(self) -> Form:
        """The form that `form` names. With a target, rises are not bounded: weights rest on psi over many nats."""
        form = self.form if isinstance(self.form, Form) else self.forms[self.form]
        if self.target is not None and self.form == "slides":
            form = replace(form, rise="log")
        return replace(form, open_top=self.open_top)

    def init(self, energies: Tensor, num_data: int = 1) -> Histogram:
        """A histogram before any energy, for energies (C,) like these. num_data: N, the unit of bounds "0.5N"."""
        partition = self.partition(num_data)
        bins = self.bins if partition.edges is None else len(partition.edges) - 1
        psi = self._start(energies, 1 if self.is_shared else len(energies), bins)
        zero, window = torch.zeros_like(psi), energies.new_zeros(self.pilot, len(energies))
        clock, one = torch.zeros_like(psi[:, 0]), torch.ones_like(psi[:, 0])
        h = Histogram(
            psi, zero, zero.clone(), None, window, begun=psi.clone(), clock=clock, pace=one,
            left=one.clone(), haste=one.clone(), form=self.psi_form,
        )  # fmt: skip
        if partition.given:
            h.edges = partition.edges_for(energies[None])
            h.tabulate()
        return h

    def update(self, h: Histogram, u: Array, zeta: float) -> None:
        """One step of the stochastic approximation by energies u (C,) of the weighted law; T = 0 has none."""
        if h.frozen:
            return
        gamma, tabulates = self.advance(h)
        self.move_psi(h, lean(u) if isinstance(u, Tensor) else u, gamma, zeta, tabulates)

    def advance(self, h: Histogram) -> tuple[float, bool]:
        """Count an update of psi. Returns its gamma, and whether log psi follows it at once."""
        gamma = self.rate(h.updates)
        h.updates += 1
        return gamma, h.updates <= EARLY or h.updates % TABULATE == 0

    def move_psi(self, h: Histogram, u: Array, gamma: float | Tensor, zeta: float | Tensor, tabulates: bool) -> None:
        """Move psi by the energies u (C,). A graph may hold these kernels, for () tensors gamma and zeta."""
        j = h.grid().bin_of(u)
        h.count(j)
        pull, direction = self.direction(h, u, j, zeta)
        h.learn(gamma, pull, direction, j, zeta)
        if tabulates:
            h.tabulate()
            h.hurry()

    def observe(self, h: Histogram, u: Array, temperature: Scalar, zeta: float, num_data: int = 1) -> None:
        """Remember the energies u (C,), end the pilot when they no longer drift, and check that the bins hold them.

        Chains of one temperature have one range of bins. Raises ConfigError for given bins that miss the energies.
        """
        pooled = not isinstance(temperature, Tensor)
        h.remember(u)
        if h.edges is None:
            if h.seen % h.pilot == 0:
                end_pilot(h, self.partition(num_data), pooled)
            if h.edges is not None:
                h.tabulate()
        elif h.seen % RECENT == 0 and not h.frozen:
            toward = self.toward(temperature)
            of_target = None if toward is None else toward.share_below(h, zeta)
            check_range(h, self.partition(num_data), self._start(h.psi, len(h.psi), self.bins), of_target)

    def _start(self, like: Tensor, rows: int, bins: int) -> Tensor:
        """(R, m) psi before any energy."""
        linear = torch.arange(1, bins + 1, dtype=like.dtype, device=like.device) / bins
        return (linear if self.psi_form.start == "linear" else torch.ones_like(linear)).repeat(rows, 1)

    @staticmethod
    def _unit_of(given: Given) -> str:
        return given.strip()[-1] if isinstance(given, str) and given.strip()[-1:] in "%N" else "nats"


@dataclass(frozen=True)
class AdaptiveWeight(HistogramWeighting):
    """psi = energy CDF to the power 1/zeta: AWSGLD, AWSGHMC, ... (Liang 2024, slides on adaptively weighted SG-MCMC).

        θ_i <- θ_i + gamma θ_J (1{i >= J} - θ_i),    J = bin of U

    This is the normalised form of Liang's recursion. Its fixed point has θ_m = 1 and θ_i ∝ Σ_{j<=i} g_j θ_j^(1 - zeta),
    with g_j the mass of bin j under exp(-U/T). With narrow bins that is θ_i^zeta ∝ G_1 + zeta (G_i - G_1), where G_1 is
    the mass of the lowest bin: the larger zeta, the more of the weighted law lies there. psi increases with U, so that
    the multiplier is >= 1 and pulls towards low energy. Above the highest bin's centre log psi goes on with its last
    slope, because that region has no upper edge.

    Args:
        zeta: power of the weight, at most 1e9. "auto": `bdl.find_settings` finds it, and two wide bins with form="full"
            with it; no `Sampler` takes it before.
        low, high: ends of the bins: nats, a quantile of the pilot's energies ("0.1%"), or nats per item ("0.5N").
            None: a pilot without weighting finds them, once the energies of `pilot` steps show no drift. high is then
            the 99.9 % quantile of their later half and a tenth of the range above it. low is their 0.1 % quantile at
            first; it goes down while more than 5 % of the recent energies lie in the lowest bin, until psi is frozen.
            The weighted law then reaches about 19 zeta nats of log G below the top. With a target it goes down while
            more than 1 % of the target distribution lies in the lowest bin. `low` is part of the law: psi is constant
            below it.
        bins: how many, of one width.
        edges: all edges of the bins, ascending, instead of low, high and bins.
        form: "slides": log psi rises from bin to bin by 1 - θ_(J-1)/θ_J (eq. 6), with a target by the difference of
            the logarithms, in proportion to the visits of a bin until it has 10, and θ starts at 1. "code", as in the
            author's code: it rises by the difference of the logarithms, every rise counts in full, and θ starts at i/m.
            "full": it rises as under "slides", every rise counts in full, and θ starts at i/m. While the energies do
            not reach the lower ones of two bins, the multiplier above the lower one's centre is then 1 + zeta T /
            (their width). Other forms: a `histogram.Form`.
        rate: step of the recursion as a function of its count.
        shared: one psi for all chains. None: with a target.
        energy: "batch" (N times the batch loss, plus the prior), "ema" (a running mean, decay 0.95), "full"
            (`Sampler.full_loss`, evaluated every `refresh` steps), or "control": the batch's, less what this batch's
            energy differs from the full one at the θ of the last refresh. That costs a second forward pass a step; its
            mean is U, and its noise grows with the distance from that θ (a control variate as in Johnson & Zhang 2013).
        units: those of energies and edges, "nats", or "temperature": energies are U/T, for bins that follow a falling T
            where U falls in proportion to it. U of a network falls less.
        target: T0, the temperature of the posterior that is wanted; the sampler's `temperature` T is then the one at
            which the chains move, usually a hotter one. Log weights are zeta log psi(U) - U (1/T0 - 1/T). None: T0 = T.
            Noise of the energies, of standard deviation s, divides the effective sample size by exp(s² (1/T0 - 1/T)²):
            take all data, or energy="full" or "control", where that is much.

    Raises ConfigError for values out of range, edges that do not ascend, low >= high, and what is given beside
    zeta="auto", which finds it.
    """

    forms: ClassVar[dict[str, Form]] = HistogramWeighting.forms | {"full": Form("bounded", 0, "linear")}
    open_top: ClassVar[bool] = True
    descends: ClassVar[bool] = True

    def _check_auto(self) -> None:
        for name in ("low", "high", "edges", "bins", "form", "units"):
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            if value != default:
                raise ConfigError(
                    f'{name} = {value!r} beside zeta="auto", which finds the bins and their form too, in nats: leave '
                    f"{name} = {default!r}, or give a number for zeta"
                )

    def depth(self, h: Histogram, zeta: float) -> tuple[Tensor, Tensor]:
        return depth(h, zeta)

    def pull(self, h: Histogram, u: Array, j: Array, zeta: float | Tensor) -> Array:
        grid = h.grid()
        return grid.psi[grid.rows, j]

    def aim(self, h: Histogram, j: Array) -> Array:
        return 1.0 * (h.grid().numbers >= j[:, None])


@dataclass(frozen=True)
class Contour(HistogramWeighting):
    """psi = density of energy: contour SG-MCMC (Deng et al. 2020), which flattens the histogram of energies.

        θ_i <- θ_i + gamma w (1{i = J} - θ_i),    J = bin of U,    w = (psi(U) / max psi)^zeta

    The paper has θ_J^zeta in place of w. w is, up to a factor, the weight in force: interpolated between bin centres,
    with bounded rises. Only with w is the fixed point the mass of bin i under exp(-U/T). With θ_J^zeta and bounded
    rises, psi collapses where neighbouring masses differ by more than a factor e. psi falls at high energies, so that
    the multiplier may be negative; log psi is constant outside of the bins. Arguments as in AdaptiveWeight, but a floor
    that the pilot found stays, and under form="slides" log psi rises by the difference of the logarithms, at most 1.
    """

    forms: ClassVar[dict[str, Form]] = {"slides": Form("clipped"), "code": Form("log", 0, "linear")}

    def pull(self, h: Histogram, u: Array, j: Array, zeta: float | Tensor) -> Array:
        return exp(zeta * (h.evaluate(u)[0] - lean(h.log_psi.max(1).values)))

    def aim(self, h: Histogram, j: Array) -> Array:
        return 1.0 * (h.grid().numbers == j[:, None])
