"""The kernels by which a weighting acts on a step, as a graph launches them together: many, on a few numbers each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bdl.samplers.dynamics.base import Scalar
from bdl.samplers.held import HeldNumbers
from bdl.samplers.potential import Launch
from bdl.samplers.weighting.histogram import Histogram


class RecordedWeighting:
    """Acts on a step by kernels that a graph may hold. weighting: a `HistogramWeighting`. like: energies (C,)."""

    def __init__(self, weighting: Any, like: Tensor):
        self.weighting, self.device, self.seen = weighting, like.device, like
        self._held = HeldNumbers(like)

    def weigh(
        self, h: Histogram, g: Tensor, energy: Tensor, temperature: Scalar, zeta: float, learns: bool, launch: Launch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Multiply g (..., d) by the multiplier, and let psi learn from the energies (C,).

        Returns multiplier and log weight, (C,) each, and the multiplier (..., 1) until the next step. `seen` then holds
        the energies that psi has read, in its unit, until the next step.
        """
        gamma, tabulates = self.weighting.advance(h) if learns else (0.0, False)
        held, energy = self._held, self._held.copy("energy", energy)
        t = held.put("temperature", temperature, each=True)
        step, power = held.put("gamma", gamma), held.put("zeta", zeta)

        def work() -> Any:
            u, scale = energy, t
            if self.weighting.units == "temperature":
                u, scale = u / scale, 1.0
            log_psi, slope = h.evaluate(u)
            both = torch.stack([1 + power * scale * slope, power * log_psi])
            if learns:
                self.weighting.move_psi(h, u, step, power, tabulates)
            multiplier = both[0].to(g.dtype).view(*g.shape[:-1], 1)
            g.mul_(multiplier)
            return both, multiplier, u

        used = (h.edges, h.psi, h.log_psi, h.visits, h.begun, h.clock, h.pace, h.left, h.haste, g)
        both, multiplier, self.seen = launch(work, ("psi", learns, tabulates), used)
        of_chains, log_weight = both.clone().unbind()  # others keep them beyond this step
        return of_chains, log_weight, multiplier
