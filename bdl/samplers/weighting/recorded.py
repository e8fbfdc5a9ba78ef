"""The kernels by which a weighting acts on a step, as a graph launches them together: many, on a few numbers each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bdl.samplers.dynamics.base import Scalar
from bdl.samplers.potential import Launch
from bdl.samplers.weighting.histogram import Histogram


class RecordedWeighting:
    """Energies and the numbers of a step in tensors that stay where they are, and what follows from them.

    weighting: a `HistogramWeighting`. like: energies (C,).
    """

    def __init__(self, weighting: Any, like: Tensor):
        self.weighting, self.device, self.seen = weighting, like.device, like
        self._energy, self._temperature = torch.empty_like(like), torch.empty_like(like)  # (C,)
        self._gamma, self._zeta = like.new_empty(()), like.new_empty(())
        self._filled: dict[str, Scalar] = {}  # what the tensors hold

    def weigh(
        self, h: Histogram, g: Tensor, energy: Tensor, temperature: Scalar, zeta: float, learns: bool, launch: Launch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Multiply g (..., d) by the multiplier, and let psi learn from the energies (C,).

        Returns multiplier and log weight, (C,) each, and the multiplier (..., 1) until the next step. `seen` then holds
        the energies that psi has read, in its unit, until the next step.
        """
        gamma, tabulates = self.weighting.advance(h) if learns else (0.0, False)
        self._energy.copy_(energy)
        for name, value in (("_temperature", temperature), ("_gamma", gamma), ("_zeta", zeta)):
            self._fill(name, value)

        def work() -> Any:
            u, scale = self._energy, self._temperature
            if self.weighting.units == "temperature":
                u, scale = u / scale, 1.0
            log_psi, slope = h.evaluate(u)
            both = torch.stack([1 + self._zeta * scale * slope, self._zeta * log_psi])
            if learns:
                self.weighting.move_psi(h, u, self._gamma, self._zeta, tabulates)
            multiplier = both[0].to(g.dtype).view(*g.shape[:-1], 1)
            g.mul_(multiplier)
            return both, multiplier, u

        used = (h.edges, h.psi, h.log_psi, h.visits, h.begun, h.clock, h.pace, h.left, h.haste, g)
        both, multiplier, self.seen = launch(work, ("psi", learns, tabulates), used)
        of_chains, log_weight = both.clone().unbind()  # others keep them beyond this step
        return of_chains, log_weight, multiplier

    def _fill(self, name: str, value: Scalar) -> None:
        """Put a number into its tensor, if it is another one than before. A tensor (C,) lies on the CPU."""
        known = self._filled.get(name)
        if isinstance(value, Tensor):
            if not isinstance(known, Tensor) or not torch.equal(known, value):
                getattr(self, name).copy_(value, non_blocking=True)
                self._filled[name] = value.clone()
        elif known is None or isinstance(known, Tensor) or known != value:
            getattr(self, name).fill_(value)
            self._filled[name] = value
