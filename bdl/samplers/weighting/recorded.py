"""The kernels by which a weighting acts on steps, as a graph launches them together: many, on few numbers each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bdl.samplers.dynamics.base import Scalar
from bdl.samplers.held import HeldNumbers
from bdl.samplers.potential import Launch
from bdl.samplers.settings import StepSettings
from bdl.samplers.weighting.histogram import Histogram

LONGEST = 1000  # steps of a walk
SMOOTHING = 0.95  # decay of the running mean under energy="ema"


def smoothed(last: Tensor, energy: Tensor) -> Tensor:
    """(C,) the running mean of energies, from the last one."""
    return torch.lerp(last, energy, 1 - SMOOTHING)


@dataclass
class PsiNumbers:
    """What the kernels read besides psi and an energy: tensors that stay where they are."""

    temperature: Tensor  # (C,)
    zeta: Tensor  # ()
    tilt: Tensor | None  # (C,) 1/T0 - 1/T, with a target


@dataclass
class PsiWalk:
    """What the kernels of a walk read and write besides."""

    numbers: PsiNumbers
    gammas: Tensor  # (LONGEST, 1) steps of psi
    place: Tensor  # () of the first energy in the window
    last: Tensor  # (C,) the energy of the last step, a running mean under energy="ema"
    both: Tensor  # (2, C) its multiplier and log weight


class RecordedWeighting:
    """Acts on the steps of one stack. weighting: a `HistogramWeighting`. like: energies (C,).

    Attributes:
        seen: (C,) the energies that psi has read in the last single step, in its unit, until the next step.
    """

    def __init__(self, weighting: Any, like: Tensor):
        self.weighting, self.device, self.seen = weighting, like.device, like
        self._held = HeldNumbers(like)
        self._walk: PsiWalk

    def weigh(
        self, h: Histogram, g: Tensor, energy: Tensor, temperature: Scalar, zeta: float, learns: bool, launch: Launch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Multiply g (..., d) by the multiplier, and let psi learn from the energies (C,).

        Returns multiplier and log weight, (C,) each, and the multiplier (..., 1) until the next step.
        """
        gamma, tabulates = self.weighting.advance(h) if learns else (0.0, False)
        numbers, energy = self._numbers(temperature, zeta), self._held.copy("energy", energy)
        step = self._held.put("gamma", gamma)

        def work() -> Any:
            return self.act(h, g, energy, step, numbers, learns, tabulates)

        both, multiplier, self.seen = launch(work, ("psi", learns, tabulates), (*memory_of(h), g))
        of_chains, log_weight = both.clone().unbind()  # others keep them beyond this step
        return of_chains, log_weight, multiplier

    def begin_walk(self, h: Histogram, last: Tensor, now: StepSettings) -> None:
        """See `Reweighting.begin_walk`. last: (C,) the energy of the last step."""
        held = self._held
        rates: list[tuple[float, ...]] = [(self.weighting.rate(h.updates + k),) for k in range(LONGEST)]
        gammas, place = held.rows("gammas", rates, LONGEST), held.put("place", float(h.seen % h.pilot))
        both = held.rows("both", [(0.0,) * len(last)] * 2, 2)
        self._walk = PsiWalk(self._numbers(now.temperature, now.zeta), gammas, place, held.copy("last", last), both)

    def begin(self, h: Histogram, steps: int) -> WeighedSteps:
        """See `Reweighting.begin`."""
        learns = not h.frozen
        tabulates = [learns and self.weighting.advance(h)[1] for _ in range(steps)]
        return WeighedSteps(self, h, self._walk, tabulates, learns)

    def left(self) -> tuple[Tensor, Tensor]:
        """(2, C) multiplier and log weight, and (C,) the energy, of the last step of a walk."""
        return self._walk.both.clone(), self._walk.last.clone()

    def act(
        self, h: Histogram, g: Tensor, energy: Tensor, step: Tensor, now: PsiNumbers, learns: bool, tabulates: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The kernels of a step, of which step () is gamma: (2, C) multiplier and log weight, (..., 1), and `seen`."""
        u, scale = energy, now.temperature
        if self.weighting.units == "temperature":
            u, scale = u / scale, 1.0
        log_psi, slope = h.evaluate(u)
        log_weight = now.zeta * log_psi if now.tilt is None else now.zeta * log_psi - u * now.tilt
        both = torch.stack([1 + now.zeta * scale * slope, log_weight])
        if learns:
            self.weighting.move_psi(h, u, step, now.zeta, tabulates)
        multiplier = both[0].to(g.dtype).view(*g.shape[:-1], 1)
        g.mul_(multiplier)
        return both, multiplier, u

    def _numbers(self, temperature: Scalar, zeta: float) -> PsiNumbers:
        held, toward = self._held, self.weighting.toward(temperature)
        tilt = None if toward is None else held.put("tilt", toward.tilt, each=True)
        return PsiNumbers(held.put("temperature", temperature, each=True), held.put("zeta", zeta), tilt)


@dataclass
class WeighedSteps:
    """The kernels of several steps of a walk: `take`, then `act` for each."""

    kernels: RecordedWeighting
    h: Histogram
    walk: PsiWalk
    tabulates: Sequence[bool]
    learns: bool
    _seen: list[Tensor] = field(default_factory=list)

    @property
    def key(self) -> tuple[object, ...]:
        """Names the kernels."""
        return (self.learns, *self.tabulates)

    @property
    def reads(self) -> tuple[object, ...]:
        """What the kernels read."""
        walk = self.walk
        held = walk.gammas, walk.place, walk.last, walk.both, *vars(walk.numbers).values()
        return (*memory_of(self.h), self.h.window, *held)

    def take(self, index: Tensor) -> None:
        """Let the steps have these numbers (steps,) in the walk."""
        self._gammas = self.walk.gammas.index_select(0, index)
        self._rows = (index + self.walk.place.long()) % self.h.pilot
        self._seen.clear()

    def act(self, k: int, g: Tensor, energy: Tensor) -> Tensor:
        """Weigh g (..., d) of step k at the batch energies (C,), nats; returns the multiplier (..., 1)."""
        last, smooth = self.walk.last, self.kernels.weighting.energy == "ema"
        last.copy_(smoothed(last, energy) if smooth else energy)
        numbers, learns = self.walk.numbers, self.learns
        both, multiplier, u = self.kernels.act(self.h, g, last, self._gammas[k, 0], numbers, learns, self.tabulates[k])
        self._seen.append(u.clone())
        if k == len(self.tabulates) - 1:
            self.walk.both.copy_(both)
            self.h.window.index_copy_(0, self._rows, torch.stack(self._seen))
        return multiplier


def memory_of(h: Histogram) -> tuple[object, ...]:
    """The tensors of psi that kernels read and write."""
    return h.edges, h.psi, h.log_psi, h.visits, h.begun, h.clock, h.pace, h.left, h.haste
