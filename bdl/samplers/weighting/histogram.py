"""The energy histogram of a weighting: its bins, and its estimate of psi.

Energies U (C,) are in nats, or in units of the temperature where the weighting reads U/T.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bdl.errors import ConfigError, check_choice
from bdl.psi import Array, clip, exp, larger, last_below, lean, log_psi_and_slope

ENOUGH = 10.0  # visits of a bin from which psi says something there
UNSETTLED = 0.05  # mean error of zeta log psi that psi owes to its start: with less, psi has settled
FASTEST = 0.05  # the largest step of psi that haste may lead to: a mean over 20 energies
PACE = 0.01  # share of a new value in the running mean of the pull


@dataclass(frozen=True)
class Form:
    """Where psi starts, and how log psi follows from psi.

    Args:
        rise: "bounded", 1 - θ_(J-1)/θ_J between two bins (Liang 2024, eq. 6), which is at most 1; "log", the difference
            of the logarithms (the author's code), which has no bound; "clipped", that difference, at most 1. They agree
            to first order.
        min_visits: the rise at a bin visited less often counts in proportion to its visits; 0 counts all in full.
        start: psi before any energy, "flat" (1) or "linear" (i/m in bin i of m).
        open_top: whether the highest bin has no upper edge, so that log psi keeps rising above it. The weighting
            decides it.

    Raises ConfigError for other words, and for min_visits < 0.
    """

    rise: str = "bounded"
    min_visits: int = 10
    start: str = "flat"
    open_top: bool = True

    def __post_init__(self) -> None:
        check_choice("rise", self.rise, ("bounded", "clipped", "log"))
        check_choice("start", self.start, ("flat", "linear"))
        if self.min_visits < 0:
            raise ConfigError(f"min_visits must be >= 0, got {self.min_visits}")

    def log_psi(self, psi: Array, visits: Array) -> Array:
        """(R, m) log psi as the sampler reads it, 0 in the top bin."""
        xp: Any = np if isinstance(psi, np.ndarray) else torch
        rise = xp.diff(xp.log(larger(psi, 1e-300)))
        if self.rise == "bounded":
            rise = -xp.expm1(-abs(rise)) * xp.sign(rise)
        elif self.rise == "clipped":
            rise = clip(rise, -1, 1)
        if self.min_visits:
            rise = rise * clip(xp.minimum(visits[:, 1:], visits[:, :-1]) / self.min_visits, 0, 1)
        if xp is np:
            to_top = rise[:, ::-1].cumsum(1)[:, ::-1]
        else:  # CUDA has no deterministic cumsum
            to_top = rise @ torch.ones(rise.shape[1], rise.shape[1], dtype=rise.dtype, device=rise.device).tril()
        return xp.concatenate([-to_top, xp.zeros_like(psi[:, :1])], 1)


class Grid(NamedTuple):
    """Where the bins lie and what they hold, as `bdl.psi.lean` arrays. From psi on they share the memory of tensors."""

    of: tuple[Tensor, ...]  # the tensors that the arrays belong to
    inner: Array  # (E, m - 1) edges between bins, nats
    centres: Array  # (E, m) nats
    rows: Array  # (C,) the row of psi that each energy belongs to
    numbers: Array  # (m,) 0, 1, ..., m - 1
    psi: Array  # (R, m)
    log_psi: Array  # (R, m)
    visits: Array  # (R, m)
    begun: Array  # (R, m)
    clock: Array  # (R,)
    pace: Array  # (R,)
    left: Array  # (R,)
    haste: Array  # (R,)

    def bin_of(self, u: Array) -> Array:
        """(C,) the bin of each energy; those beyond an outer edge fall into the bin there."""
        return last_below(u, self.inner, self.rows) + 1


@dataclass
class Histogram:
    """State of psi: R rows, one per chain or a single shared one, by m bins."""

    psi: Tensor  # (R, m) estimate of psi at the bins
    log_psi: Tensor  # (R, m) its logarithm as the sampler reads it, zero in the top bin
    visits: Tensor  # (R, m) energies counted in each bin
    edges: Tensor | None  # (E, m + 1) ascending; E = 1 where all rows have the same. None until the pilot finds them
    window: Tensor  # (pilot, C) most recent energies
    begun: Tensor  # (R, m) psi where T, zeta or the floor last changed
    clock: Tensor  # (R,) time constants of the recursion since then
    pace: Tensor  # (R,) running mean of the recursion's pull, by which it is slower than its step says
    left: Tensor  # (R,) running mean of zeta times the share of psi that is still `begun`, at the energies visited
    haste: Tensor  # (R,) factor on the step: 1 / pace while psi still holds much of `begun`, then 1
    seen: int = 0  # energies in the window since T or zeta last changed
    updates: int = 0
    frozen: bool = False
    form: Form = field(default=Form(), repr=False, compare=False)
    _grid: Grid | None = field(default=None, init=False, repr=False, compare=False)  # made when it is first needed

    @property
    def bins(self) -> int:
        return self.psi.shape[1]

    @property
    def pilot(self) -> int:
        """How many steps' energies the window holds."""
        return self.window.shape[0]

    def grid(self) -> Grid:
        """Where the bins lie. The edges must be known."""
        assert self.edges is not None
        held = (self.psi, self.log_psi, self.visits, self.begun, self.clock, self.pace, self.left, self.haste)
        of = (self.edges, *held)
        if self._grid is None or not all(map(operator.is_, self._grid.of, of)):
            device, chains = self.psi.device, self.window.shape[1]
            rows = torch.arange(chains, device=device)
            self._grid = Grid(
                of,
                lean(self.edges[:, 1:-1]),
                lean((self.edges[:, 1:] + self.edges[:, :-1]) / 2),
                lean(0 * rows if len(self.psi) == 1 else rows),
                lean(torch.arange(self.bins, device=device)),
                *map(lean, held),
            )
        return self._grid

    def evaluate(self, u: Array) -> tuple[Array, Array]:
        """log psi and its slope at the energies u, both (C,); zeros while the pilot runs."""
        if self.edges is None:
            return 0 * u, 0 * u
        grid = self.grid()
        return log_psi_and_slope(u, grid.log_psi, grid.centres, grid.rows, self.form.open_top)

    def log_psi_of(self, energies: Tensor) -> Tensor:
        """(n, C) log psi at the energies (n, C) of several steps. The edges must be known."""
        grid, rows = self.grid(), torch.arange(energies.shape[1], device=energies.device).repeat(len(energies))
        flat = energies.flatten(), rows if len(self.psi) > 1 else 0 * rows
        centres = torch.as_tensor(grid.centres)
        return log_psi_and_slope(flat[0], self.log_psi, centres, flat[1], self.form.open_top)[0].view(energies.shape)

    def count(self, j: Array) -> None:
        """Count one energy of every chain, in the bins j (C,)."""
        grid = self.grid()
        if isinstance(j, Tensor):
            grid.visits.index_put_((grid.rows, j), self.visits.new_ones(()), accumulate=True)
        else:
            np.add.at(grid.visits, (grid.rows, j), 1)

    def learn(self, step: float | Tensor, pull: Array, direction: Array, j: Array, zeta: float | Tensor) -> None:
        """Move psi by a step of the recursion: pull (C,) and direction (C, m) of energies in the bins j (C,).

        psi forgets where it began at the rate step x pull. Under AdaptiveWeight at zeta = 1 the mean pull is about one
        over the nats of log G that the bins cover. So the step is divided by the mean pull until the beginning is
        forgotten, up to a step of FASTEST. A graph may hold these kernels, for () tensors step and zeta.
        """
        grid = self.grid()
        rows, psi, clock, pace, left = grid.rows, grid.psi, grid.clock, grid.pace, grid.left
        shared = len(psi) == 1
        gain = larger(clip(step * grid.haste, 0, FASTEST), step)  # haste >= 1, because no pull exceeds 1
        moved = pull.mean(0) if shared else pull
        psi += gain[:, None] * (direction.mean(0) if shared else direction)
        clock += gain * moved
        pace += PACE * (moved - pace)
        share = grid.begun[rows, j] / psi[rows, j] * exp(-clock)[rows]
        share = clip(share * larger(zeta, 1.0), 0, 1)  # an error of log psi counts zeta times in the law
        left += clip(gain * pace, 0, 1) * ((share.mean(0) if shared else share) - left)

    def hurry(self) -> None:
        """Set `haste`. A graph may hold these kernels."""
        self.haste.copy_(self.pace.reciprocal().masked_fill_(self.left <= UNSETTLED, 1))

    @property
    def settled(self) -> bool:
        """Whether psi has forgotten where it began, on average over its rows."""
        return self.edges is not None and bool(self.left.mean() <= UNSETTLED)

    def tabulate(self) -> None:
        """Set log psi from psi."""
        log_psi = lean(self.log_psi)
        log_psi[...] = self.form.log_psi(lean(self.psi), lean(self.visits))

    def remember(self, u: Array) -> None:
        """Put the energies of one step into the window."""
        lean(self.window)[self.seen % self.window.shape[0]] = u
        self.seen += 1

    def recent(self, steps: int) -> Tensor:
        """(steps, C) the last energies, in their order."""
        return self.window[torch.arange(self.seen - steps, self.seen) % self.pilot]

    def extend_down(self, bins: int) -> None:
        """Add bins below the floor, as wide as the lowest one. psi is level there until they have been visited."""
        assert self.edges is not None
        width = self.edges[:, 1:2] - self.edges[:, :1]
        steps = torch.arange(-bins, 0, dtype=width.dtype, device=width.device)
        self.edges = torch.cat([self.edges[:, :1] + width * steps, self.edges], 1)
        rows = len(self.psi)
        self.psi, self.log_psi = (torch.cat([t[:, :1].expand(rows, bins), t], 1) for t in (self.psi, self.log_psi))
        self.visits = torch.cat([self.visits.new_zeros(rows, bins), self.visits], 1)
        self._begin()

    def forget(self) -> None:
        """T or zeta has changed: psi is no longer settled, and a pilot starts again."""
        self._begin()
        if self.edges is None:
            self.seen = 0

    def restart(self, psi: Tensor) -> None:
        """Drop the bins and all that was learnt; psi (R, m) is where it begins again."""
        self.edges, self.seen, self.updates = None, 0, 0
        self.psi = psi
        self.log_psi, self.visits = torch.zeros_like(psi), torch.zeros_like(psi)
        self.pace.fill_(1.0)
        self._begin()

    def _begin(self) -> None:
        if self.begun.shape == self.psi.shape:
            self.begun.copy_(self.psi)  # written in place, because graphs read it
        else:
            self.begun = self.psi.clone()
        self.clock.zero_()
        self.left.fill_(1.0)
        self.haste.fill_(1.0)

    def all_edges(self) -> Tensor:
        """(R, m + 1) bin edges; NaN while the pilot runs."""
        rows = len(self.psi)
        if self.edges is None:
            return self.psi.new_full((rows, self.bins + 1), math.nan)
        return self.edges.expand(rows, -1).clone()

    def state_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init and f.name != "form"}
