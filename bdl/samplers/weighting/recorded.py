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

MOST = 20  # steps of a graph
SMOOTHING = 0.95  # decay of the running mean under energy="ema"


def smoothed(last: Tensor, energy: Tensor) -> Tensor:
    """(C,) the running mean of energies, from the last one."""
    return torch.lerp(last, energy, 1 - SMOOTHING)


@dataclass
class Numbers:
    """What the kernels read besides psi and an energy: tensors that stay where they are."""

    temperature: Tensor  # (C,)
    zeta: Tensor  # ()
    tilt: Tensor | None  # (C,) 1/T0 - 1/T, with a target


class RecordedWeighting:
    """Acts on the steps of one stack. weighting: a `HistogramWeighting`. like: energies (C,).

    Attributes:
        seen: (C,) the energies that psi has read in the last single step, in its unit, until the next step.
    """

    def __init__(self, weighting: Any, like: Tensor):
        self.weighting, self.device, self.seen = weighting, like.device, like
        self._held = HeldNumbers(like)

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

    def begin(self, h: Histogram, last: Tensor | None, steps: int, now: StepSettings) -> WeighedSteps:
        """See `Reweighting.begin`. last: (C,) the energy of the last step."""
        learns = not h.frozen
        moves = [self.weighting.advance(h) if learns else (0.0, False) for _ in range(steps)]
        gammas = self._held.rows("gammas", [(gamma,) for gamma, _ in moves], MOST)
        numbers = self._numbers(now.temperature, now.zeta)
        mean = self._held.copy("mean", last) if self.weighting.energy == "ema" and last is not None else None
        return WeighedSteps(self, h, numbers, gammas, [tabulates for _, tabulates in moves], learns, mean)

    def act(
        self, h: Histogram, g: Tensor, energy: Tensor, step: Tensor, now: Numbers, learns: bool, tabulates: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The kernels of a step: (2, C) multiplier and log weight, the multiplier (..., 1), and `seen`. step: () gamma."""
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

    def _numbers(self, temperature: Scalar, zeta: float) -> Numbers:
        held, toward = self._held, self.weighting.toward(temperature)
        tilt = None if toward is None else held.put("tilt", toward.tilt, each=True)
        return Numbers(held.put("temperature", temperature, each=True), held.put("zeta", zeta), tilt)


@dataclass
class WeighedSteps:
    """The kernels of several steps; `act` makes one, and `results` is what they leave."""

    kernels: RecordedWeighting
    h: Histogram
    numbers: Numbers
    gammas: Tensor  # (steps or more, 1)
    tabulates: Sequence[bool]
    learns: bool
    mean: Tensor | None  # (C,) the running mean of the energies before the steps, under energy="ema"
    _trail: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    @property
    def key(self) -> tuple[object, ...]:
        """Names the kernels."""
        return (self.learns, *self.tabulates)

    @property
    def reads(self) -> tuple[object, ...]:
        """What the kernels read."""
        return (*memory_of(self.h), *vars(self.numbers).values(), self.gammas, self.mean)

    def act(self, k: int, g: Tensor, energy: Tensor) -> None:
        """Weigh g (..., d) of step k at the batch energies (C,), nats."""
        if self.mean is not None:
            energy = smoothed(self._trail[-1][1] if self._trail else self.mean, energy)
        both, _, u = self.kernels.act(
            self.h, g, energy, self.gammas[k, 0], self.numbers, self.learns, self.tabulates[k]
        )
        self._trail.append((both, energy, u))

    def results(self) -> tuple[Tensor, Tensor, Tensor]:
        """(2, C) multiplier and log weight, and the energy (C,), of the last step; (steps, C) what psi has read."""
        both, energy, _ = self._trail[-1]
        return both, energy, torch.stack([u for _, _, u in self._trail])


def memory_of(h: Histogram) -> tuple[object, ...]:
    """The tensors of psi that kernels read and write."""
    return h.edges, h.psi, h.log_psi, h.visits, h.begun, h.clock, h.pace, h.left, h.haste
