"""The energy histogram of a weighting: its bins, its estimate of psi, and the pilot that finds its range.

Energies U (C,) are in nats.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.psi import Array, clip, lean, log_psi_and_slope, whole

MIN_VISITS = 10  # the rise at a bin visited less often counts in proportion to its visits
MAX_RISE = 1.0  # bound of the rise of log psi between bins, as of 1 - θ_{J-1}/θ_J (Liang 2024)
NO_DRIFT = 0.2  # standard deviations; largest shift between the halves of a window of energies without drift
RECENT = 100  # steps between checks that the bins contain the energies of these steps


class Grid(NamedTuple):
    """Where the bins lie and what they hold, as arrays of the kind that a step computes with (`bdl.psi.lean`).

    psi, log_psi and visits share the memory of the histogram's tensors.
    """

    of: tuple[Tensor, ...]  # the tensors that the arrays belong to
    low: Array  # (R,) nats
    width: Array  # (R,) nats
    rows: Array  # (C,) the row of psi that each energy belongs to
    numbers: Array  # (m,) 0, 1, ..., m - 1
    psi: Array  # (R, m)
    log_psi: Array  # (R, m)
    visits: Array  # (R, m)


@dataclass
class Histogram:
    """State of psi: R rows, one per chain or a single shared one, by m bins."""

    psi: Tensor  # (R, m) estimate of psi at the bins
    log_psi: Tensor  # (R, m) its logarithm as the sampler reads it: rises bounded, zero in the top bin
    visits: Tensor  # (R, m) energies counted in each bin
    low: Tensor | None  # (R, 1) nats; None until the pilot has found it
    high: Tensor | None  # (R, 1) nats
    window: Tensor  # (pilot, C) most recent energies
    seen: int = 0  # energies in the window since T or zeta last changed
    updates: int = 0
    clock: float = 0.0  # sum of gamma since T or zeta last changed
    frozen: bool = False
    _grid: Grid | None = field(default=None, init=False, repr=False, compare=False)  # made when it is first needed

    @classmethod
    def unknown(
        cls, energies: Tensor, rows: int, bins: int, pilot: int, low: float | None, high: float | None
    ) -> Histogram:
        """psi = 1 everywhere. energies: any (C,) tensor of the type and device to use."""
        ones = energies.new_ones(rows, bins)
        first, last = (None if v is None else energies.new_full((rows, 1), v) for v in (low, high))
        return cls(ones, ones.log(), ones - 1, first, last, energies.new_zeros(pilot, len(energies)))

    @property
    def bins(self) -> int:
        return self.psi.shape[1]

    @property
    def pilot(self) -> int:
        """How many steps' energies the window holds."""
        return self.window.shape[0]

    @property
    def width(self) -> Tensor:
        """(R,) width of a bin, nats."""
        return (self.high - self.low).squeeze(1) / self.bins  # type: ignore[operator]

    def grid(self) -> Grid:
        """Where the bins lie. The range must be known."""
        assert self.low is not None
        of = (self.low, self.psi, self.log_psi, self.visits)
        if self._grid is None or not all(map(operator.is_, self._grid.of, of)):
            device, chains = self.psi.device, self.window.shape[1]
            rows = torch.arange(chains, device=device)
            self._grid = Grid(
                of,
                lean(self.low.squeeze(1)),
                lean(self.width),
                lean(0 * rows if len(self.psi) == 1 else rows),
                lean(torch.arange(self.bins, device=device)),
                *map(lean, (self.psi, self.log_psi, self.visits)),
            )
        return self._grid

    def bin_of(self, u: Array) -> Array:
        """(C,) the bin of each energy; those beyond an edge fall into the bin there."""
        grid = self.grid()
        return clip(whole((u - grid.low) / grid.width), 0, self.bins - 1)

    def evaluate(self, u: Array) -> tuple[Array, Array]:
        """log psi and its slope per nat at the energies u, both (C,); zeros while the pilot runs."""
        if self.low is None:
            return 0 * u, 0 * u
        grid = self.grid()
        return log_psi_and_slope(u, grid.log_psi, grid.low, grid.width, grid.rows)

    def count(self, j: Array) -> None:
        """Count one energy of every chain, in the bins j (C,)."""
        grid = self.grid()
        if isinstance(j, Tensor):
            grid.visits.index_put_((grid.rows, j), self.visits.new_ones(()), accumulate=True)
        else:
            np.add.at(grid.visits, (grid.rows, j), 1)

    def tabulate(self) -> None:
        """Set log psi from psi. The rise between two bins is bounded, and trusted as far as both have been visited."""
        rise = self.psi.clamp_min(1e-300).log().diff(dim=1).clamp_(-MAX_RISE, MAX_RISE)
        rise.mul_(torch.minimum(self.visits[:, 1:], self.visits[:, :-1]).div_(MIN_VISITS).clamp_(max=1))
        below = torch.ones(self.bins - 1, self.bins - 1, dtype=rise.dtype, device=rise.device).tril()
        self.log_psi[:, :-1] = -rise @ below  # a cumulative sum from the top; CUDA has no deterministic cumsum

    def remember(self, u: Array) -> None:
        """Put the energies of one step into the window."""
        lean(self.window)[self.seen % self.pilot] = u
        self.seen += 1

    def end_pilot(self, pooled: bool) -> None:
        """Set the range once a full window of energies shows no drift.

        low = .1 % quantile, high = 99.9 % quantile and a tenth of the range above it, both of the later half of the
        window. pooled: take the quantiles over all chains, because they share one temperature.
        """
        if self.seen % self.pilot or drifts(self.window):
            return
        late = self.window[self.pilot // 2 :]
        ordered = (late.flatten()[None] if pooled or len(self.psi) == 1 else late.T).sort(1).values
        n, rows = ordered.shape[1], len(self.psi)
        low, high = ordered[:, n // 1000], ordered[:, n - 1 - n // 1000]
        self.low = low.expand(rows).unsqueeze(1).clone()
        self.high = (high + 0.1 * (high - low)).expand(rows).unsqueeze(1).clone()
        self.seen = 0

    def check_range(self, given: bool) -> None:
        """Compare the bins with the energies of the last RECENT steps.

        given: the user gave the range. A range that the pilot found is dropped, and the pilot starts again, where more
        than half of the energies lie outside. Raises ConfigError for a given range that misses all of them, unless
        they still fall towards it.
        """
        recent = self.window[torch.arange(self.seen - RECENT, self.seen) % self.pilot]
        low, high = self._range()
        below, above = recent < low, recent > high
        if not given:
            if (below | above).double().mean() > 0.5:
                self._restart()
            return
        # Burn-in lowers the energy: it may still reach the bins from above, but from below it only moves away.
        if (below.all() and drift(recent) < NO_DRIFT) or ((below | above).all() and not drifts(recent)):
            raise ConfigError(
                f"bins miss the energies: low = {low.min().item():g}, high = {high.max().item():g}, but the last "
                f"{len(recent)} energies lie in [{recent.min().item():g}, {recent.max().item():g}] nats; "
                "set low and high around them, or leave both null for a pilot"
            )

    def forget(self) -> None:
        """T or zeta has changed: psi is no longer settled, and a pilot starts again."""
        self.clock = 0.0
        if self.low is None:
            self.seen = 0

    def outside(self) -> tuple[float, float]:
        """Shares of the recent energies below `low` and above `high`; NaN while the pilot runs."""
        recent = self.window[: min(self.seen, self.pilot)]
        if self.low is None or len(recent) == 0:
            return math.nan, math.nan
        low, high = self._range()
        return (recent < low).double().mean().item(), (recent > high).double().mean().item()

    def edges(self) -> Tensor:
        """(R, m + 1) bin edges, nats; NaN while the pilot runs."""
        if self.low is None:
            return self.psi.new_full((len(self.psi), self.bins + 1), math.nan)
        return self.low + self.width[:, None] * torch.arange(self.bins + 1, device=self.psi.device)

    def state_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}

    def _range(self) -> tuple[Tensor, Tensor]:
        """(R,) each."""
        assert self.low is not None and self.high is not None
        return self.low.squeeze(1), self.high.squeeze(1)

    def _restart(self) -> None:
        self.low, self.high, self.seen, self.updates, self.clock = None, None, 0, 0, 0.0
        self.psi.fill_(1)
        for t in (self.log_psi, self.visits):
            t.zero_()


def drifts(u: Tensor) -> bool:
    """Whether the energies (n, C) still drift, by at least NO_DRIFT and two standard errors."""
    return not abs(drift(u)) < max(NO_DRIFT, 4 / math.sqrt(u.numel()))  # NaN drifts


def drift(u: Tensor) -> float:
    """How much higher the later half of the energies (n, C) lies than the earlier half, in its standard deviations.

    The later half gives the unit, because a fast descent widens the earlier half more than it moves its mean.
    """
    first, second = u[: len(u) // 2], u[len(u) // 2 :]
    return float((second.mean(0) - first.mean(0)).mean() / second.std(0).mean().clamp_min(1e-30))
