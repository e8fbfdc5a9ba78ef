"""EnergyHistogram: the psi of a run, the bins it is defined on, and recent energies of the chains that use it."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    covered: float = math.nan  # nats of log G between the floor and the top, the mean over chains; NaN for a density
    all_multipliers: np.ndarray | None = None  # of the gradient at the recent energies of every chain, any shape

    @classmethod
    def read(cls, store: SampleStore, stack: int) -> EnergyHistogram | None:
        """The histogram that a stack saved; None without a weighting, or if the pilot never found the bins."""
        saved = store.weighting(stack)
        if saved is None or bool(saved["edges"].isnan().any()):
            return None
        about = store.about_weighting(stack)
        one_psi_per_chain = len(saved["edges"]) > 1  # then the first chain's psi is shown with its energies
        energies, cumulative = saved["recent_energies"], about["weighting"] != "Contour"
        return cls(
            edges=saved["edges"][0].numpy(),
            log_psi=saved["log_psi"][0].numpy(),
            energies=(energies[:, 0] if one_psi_per_chain else energies.flatten()).numpy(),
            zeta=float(saved["zeta"][0]),
            temperature=float(saved["temperature"][0]),
            kind=about["energy"],
            frozen=[r for r in store.records() if r.stack == stack][-1].psi_frozen,
            cumulative=cumulative,
            covered=float(saved["covered"].mean()) if cumulative else math.nan,
            all_multipliers=_multipliers(saved, cumulative),
        )

    @property
    def ready(self) -> bool:
        """Has the pilot found the range of the bins?"""
        return bool(np.isfinite(self.edges).all())

    @property
    def centres(self) -> np.ndarray:
        """(m,) bin centres, nats."""
        return (self.edges[1:] + self.edges[:-1]) / 2

    @property
    def multipliers(self) -> np.ndarray:
        """(n,) the finite multipliers of the gradient at the recent energies."""
        values = self.multiplier_at(self.energies) if self.all_multipliers is None else self.all_multipliers
        return values[np.isfinite(values)]

    @property
    def share_outside(self) -> float:
        """Share of the finite recent energies that lie outside of the bins; 0 without energies."""
        u = self.energies[np.isfinite(self.energies)]
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


def _multipliers(saved: Mapping[str, Tensor], cumulative: bool) -> np.ndarray:
    """(n, C) the multiplier at every recent energy (n, C), by the psi of its own chain."""
    energies, rows = saved["recent_energies"], len(saved["edges"])
    row = torch.arange(energies.shape[1]).expand_as(energies).flatten() if rows > 1 else None
    centres = (saved["edges"][:, 1:] + saved["edges"][:, :-1]) / 2
    slope = log_psi_and_slope(energies.flatten(), saved["log_psi"], centres, row, open_top=cumulative)[1]
    scale = saved["zeta"] * saved["temperature"]
    return (1 + slope * (scale[0] if row is None else scale[row])).view(energies.shape).numpy()
