"""HistogramWeighting: the bins, the recursion and the energies that the weightings by an energy histogram share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from bdl.errors import ConfigError, check_choice
from bdl.psi import Array, lean
from bdl.samplers.dynamics.base import Scalar
from bdl.samplers.weighting.base import AUTO, RobbinsMonro, Weighting
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
        elif isinstance(self.zeta, bool) or not isinstance(self.zeta, Real) or not 0 <= self.zeta <= MOST_ZETA:
            raise ConfigError(
                f"zeta must be between 0 and {MOST_ZETA:g}, got {self.zeta!r}: the gradient's multiplier grows with it"
            )
        if self.refresh < 1 or self.refresh % 1:
            raise ConfigError(f"refresh must be at least 1 step, a whole number, got {self.refresh}")
        if self.energy == "control" and self.refresh == 1:
            raise ConfigError('energy="control" with refresh = 1 finds the full energy at every step: set refresh > 1')
        if self.pilot < RECENT:
            raise ConfigError(f"pilot must be at least {RECENT} steps, got {self.pilot}")
        check_target(self.target, self.units)
        if self.shared is not None and not isinstance(self.shared, bool):
            raise ConfigError(f"shared must be true, false or null, got {self.shared!r}")
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
        h.remember(u)
        self.look(h, temperature, zeta, num_data)

    def look(self, h: Histogram, temperature: Scalar, zeta: float, num_data: int = 1) -> None:
        """`observe` for energies that the window holds already."""
        pooled = not isinstance(temperature, Tensor)
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
