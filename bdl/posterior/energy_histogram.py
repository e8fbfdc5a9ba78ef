"""EnergyHistogram: the psi of a run, with recent energies of its chains; and what the weighting did to the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bdl.posterior.store import SampleStore
from bdl.psi import log_psi_and_slope

PREFIX = "weighting/"
ROUGH = 0.25  # the largest error, as a share of the depth, with which the depth is told


@dataclass(frozen=True)
class EnergyHistogram:
    """One row of psi, and the recent energies of its chains."""

    edges: np.ndarray  # (m + 1,) ascending, nats
    log_psi: np.ndarray  # (m,) log psi at the bin centres
    energies: np.ndarray  # any shape, nats
    zeta: float
    temperature: float
    kind: str = "batch"  # which energy psi reads: "batch", "ema" or "full"
    frozen: bool = False
    cumulative: bool = True  # True: psi is the energy CDF to the power 1/zeta (AdaptiveWeight); False: the density
    depth: float = math.nan  # nats of log G between the median energy and the top; NaN where psi does not say it
    depth_error: float = math.nan  # nats

    @classmethod
    def read_all(cls, store: SampleStore, stack: int) -> list[EnergyHistogram]:
        """One histogram per chain, or a single one where the chains share psi.

        Empty without a weighting, and if the pilot never found the bins.
        """
        saved, about = store.weighting(stack) or ({}, {})
        if not saved or bool(saved["edges"].isnan().any()):
            return []
        energies, rows = saved["recent_energies"], len(saved["edges"])
        cumulative = about["weighting"] != "Contour"
        frozen = [r for r in store.records() if r.stack == stack][-1].psi_frozen
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
                depth=float(saved["depth"][i]),
                depth_error=float(saved["depth_error"][i]),
            )
            for i in range(rows)
        ]

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

    def width_at(self, u: float) -> float:
        """Width of the bin that holds the energy u, nats."""
        j = int(np.clip(np.searchsorted(self.edges, u) - 1, 0, len(self.edges) - 2))
        return float(self.edges[j + 1] - self.edges[j])

    def log_psi_at(self, u: np.ndarray) -> np.ndarray:
        """log psi at energies u of any shape."""
        return self._value_and_slope(u)[0].numpy()

    def multiplier_at(self, u: np.ndarray) -> np.ndarray:
        """1 + zeta T d log psi / du at energies u of any shape, as the sampler scales its gradient.

        At a bin centre, where the slope jumps, the segment above counts; at the last centre, the segment below.
        """
        return 1 + self.zeta * self.temperature * self._value_and_slope(u)[1].numpy()

    def _value_and_slope(self, u: np.ndarray) -> tuple[Tensor, Tensor]:
        energies, centres, log_psi = (torch.as_tensor(x, dtype=torch.float64) for x in (u, self.centres, self.log_psi))
        value, slope = log_psi_and_slope(energies.flatten(), log_psi[None], centres[None], open_top=self.cumulative)
        return value.view(energies.shape), slope.view(energies.shape)


def weighting_metrics(histograms: Sequence[EnergyHistogram]) -> dict[str, float]:
    """Flat metrics of the last steps' energies of all chains; {} without a weighting.

        multiplier, multiplier_5, multiplier_95   median and quantiles of the factor on the gradient
        depth, depth_error                        nats of log G between the median energy and the top (AdaptiveWeight)
        lowest_share                              share of the energies in the lowest bin and below it
        plain_temperature                         at which plain sampling would show these energies, about
        bin_width                                 nats, of the bins that hold the chains' median energies

    `depth` and `bin_width` are means over the histograms, of which there is one per chain, or one where the chains
    share psi; a depth that is not known does not count. At an energy u the weighted law falls as exp(-u/T) /
    psi(u)^zeta, as fast as exp(-u/T') with T' = T over the multiplier at u.
    """
    seen = [h for h in histograms if len(h.finite)]
    if not seen:
        return {}
    multipliers = np.concatenate([h.multiplier_at(h.finite) for h in seen])
    low, median, high = np.quantile(multipliers, [0.05, 0.5, 0.95])
    numbers = {
        "multiplier": median,
        "multiplier_5": low,
        "multiplier_95": high,
        "depth": _known_mean([h.depth for h in seen]),
        "depth_error": _known_mean([h.depth_error for h in seen]),
        "lowest_share": np.concatenate([h.finite < h.edges[1] for h in seen]).mean(),
        "plain_temperature": np.mean([h.temperature for h in seen]) / median if median > 0 else math.nan,
        "bin_width": np.mean([h.width_at(float(np.median(h.finite))) for h in seen]),
    }
    return {PREFIX + name: float(value) for name, value in numbers.items()}


def _depth_in_words(depth: float, error: float) -> str:
    if not error <= max(ROUGH * depth, 1.0):
        return (
            "How many nats of log G below the top the energies lie is not known, because psi does not rest there or "
            "too few bins hold energies"
        )
    return f"The energies lie {depth:,.{0 if depth >= 10 else 1}f} ± {error:,.2g} nats of log G below the top"


def _known_mean(values: Sequence[float]) -> float:
    """Mean of the finite values; NaN without any."""
    known = np.asarray(values)[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


def weighting_sentences(m: Mapping[str, float]) -> list[str]:
    """What the metrics of `weighting_metrics` mean; [] without them."""
    w = {k.removeprefix(PREFIX): v for k, v in m.items() if k.startswith(PREFIX)}
    if not w:
        return []
    lines = [
        f"The weighting multiplied the gradient by {w['multiplier']:.3g} (90 % of the steps: {w['multiplier_5']:.3g} "
        f"to {w['multiplier_95']:.3g}){', so it changed next to nothing' if abs(w['multiplier'] - 1) < 0.05 else ''}.",
        f"Plain sampling would show these energies at a temperature of about {w['plain_temperature']:.2g}.",
    ]
    lines.append(
        f"{_depth_in_words(w['depth'], w['depth_error'])}, and {w['lowest_share']:.0%} of them lie in the lowest bin"
        f"{', where nothing pulls' if w['lowest_share'] > 0.5 else ''}."
    )
    error = m.get("energy/batch_error", math.nan)
    if not math.isnan(error):
        lines.append(f"A bin is {w['bin_width']:.3g} nats wide, and the energy of one batch errs by {error:.3g}.")
    ess, samples, biased = (m.get(k, math.nan) for k in ("weight_ess", "samples", "weights_biased"))
    if math.isnan(ess):
        lines.append("Importance weights are not available: the averages are those of the weighted distribution.")
    elif biased == 1:
        lines.append("Importance weights mean little here: the batch energies that psi was fitted on are too noisy.")
    else:
        lines.append(f"Importance weights lead back to exp(-U/T) with {ess:,.1f} effective samples of {samples:,.0f}.")
        if math.isnan(biased):
            lines[-1] += " They may be biased: full_energy=true records the energies that would show it."
    return lines
