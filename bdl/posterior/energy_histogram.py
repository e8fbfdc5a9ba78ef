"""EnergyHistogram: the psi of a run, the bins it is defined on, and recent energies of the chains that use it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bdl.posterior.store import SampleStore
from bdl.psi import log_psi_and_slope


@dataclass(frozen=True)
class EnergyHistogram:
    """One row of psi, and the recent energies of its chains."""

    edges: np.ndarray  # (m + 1,) ascending, nats; NaN while the pilot runs
    log_psi: np.ndarray  # (m,) at the bin centres
    energies: np.ndarray  # any shape, nats
    zeta: float
    temperature: float
    kind: str = "batch"  # which energy psi reads: "batch", "ema" or "full"
    frozen: bool = False
    cumulative: bool = True  # True: psi is the energy CDF to the power 1/zeta (AdaptiveWeight); False: the density
    covered: float = math.nan  # nats of log G between the floor and the top; NaN for a density

    @classmethod
    def read(cls, store: SampleStore, stack: int) -> EnergyHistogram | None:
        """The first histogram that a stack saved; None without a weighting, or if the pilot never found the bins."""
        return next(iter(cls.read_all(store, stack)), None)

    @classmethod
    def read_all(cls, store: SampleStore, stack: int) -> list[EnergyHistogram]:
        """One histogram per chain, or a single one where the chains share psi; empty where `read` gives None."""
        saved, about = store.weighting(stack) or ({}, {})
        if not saved or bool(saved["edges"].isnan().any()):
            return []
        energies = saved["recent_energies"]
        cumulative = about["weighting"] != "Contour"
        frozen = [r for r in store.records() if r.stack == stack][-1].psi_frozen
        rows = len(saved["edges"])
        return [
            cls(
                edges=saved["edges"][i].numpy(),
                log_psi=saved["log_psi"][i].numpy(),
                energies=(energies[:, i] if rows > 1 else energies.flatten()).numpy(),
                zeta=float(saved["zeta"][i]),
                temperature=float(saved["temperature"][i]),
                kind=about["energy"],
                frozen=frozen,
                cumulative=cumulative,
                covered=float(saved["covered"][i]) if cumulative else math.nan,
            )
            for i in range(rows)
        ]

    @property
    def ready(self) -> bool:
        """Has the pilot found the range of the bins?"""
        return bool(np.isfinite(self.edges).all())

    @property
    def centres(self) -> np.ndarray:
        """(m,) bin centres, nats."""
        return (self.edges[1:] + self.edges[:-1]) / 2

    @property
    def finite(self) -> np.ndarray:
        """(n,) the finite recent energies, nats."""
        return self.energies[np.isfinite(self.energies)]

    @property
    def share_outside(self) -> float:
        """Share of the finite recent energies that lie outside of the bins; 0 without energies."""
        u = self.finite
        return float(np.mean((u < self.edges[0]) | (u > self.edges[-1]))) if len(u) else 0.0

    def log_psi_at(self, u: np.ndarray) -> np.ndarray:
        """log psi at energies u of any shape."""
        return self._value_and_slope(u)[0].numpy()

    def multiplier_at(self, u: np.ndarray) -> np.ndarray:
        """1 + zeta T d log psi / du at energies u of any shape, as the sampler scales its gradient.

        At a bin centre, where the slope jumps, it is that of the segment above; at the last centre, of the one below.
        """
        return 1 + self.zeta * self.temperature * self._value_and_slope(u)[1].numpy()

    def _value_and_slope(self, u: np.ndarray) -> tuple[Tensor, Tensor]:
        energies, edges, log_psi = (
            torch.as_tensor(values, dtype=torch.float64) for values in (u, self.edges, self.log_psi)
        )
        centres = (edges[1:] + edges[:-1]) / 2
        value, slope = log_psi_and_slope(energies.flatten(), log_psi[None], centres[None], open_top=self.cumulative)
        return value.view(energies.shape), slope.view(energies.shape)
