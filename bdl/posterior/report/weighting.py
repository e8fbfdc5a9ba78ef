"""What a weighting did to a run, in numbers and in one plain sentence each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from bdl.posterior.energy_histogram import EnergyHistogram

PREFIX = "weighting/"


def weighting_metrics(histograms: Sequence[EnergyHistogram]) -> dict[str, float]:
    """Flat metrics of the last steps' energies of all chains; none without a weighting.

        multiplier, multiplier_5, multiplier_95   median and quantiles of the factor on the gradient
        covered                                   nats of log G between the floor and the top (AdaptiveWeight)
        lowest_share                              share of the energies in the lowest bin and below it
        plain_temperature                         at which plain sampling would show these energies, about
        bin_width                                 nats, of the bins that hold the chains' median energies

    `covered` and `bin_width` are means over the histograms, of which there is one per chain, or one where the chains
    share psi. At an energy u the weighted law falls as exp(-u/T) / psi(u)^zeta, whose slope is that of exp(-u/T') with
    T' = T over the multiplier at u.
    """
    seen = [h for h in histograms if h.ready and len(h.finite)]
    if not seen:
        return {}
    multipliers = np.concatenate([h.multiplier_at(h.finite) for h in seen])
    low, median, high = np.quantile(multipliers, [0.05, 0.5, 0.95])
    numbers = {
        "multiplier": median,
        "multiplier_5": low,
        "multiplier_95": high,
        "covered": np.mean([h.covered for h in seen]),
        "lowest_share": np.concatenate([h.finite < h.edges[1] for h in seen]).mean(),
        "plain_temperature": np.mean([h.temperature for h in seen]) / median if median > 0 else math.nan,
        "bin_width": np.mean([_width_at(h, float(np.median(h.finite))) for h in seen]),
    }
    return {PREFIX + name: float(value) for name, value in numbers.items()}


def _width_at(h: EnergyHistogram, u: float) -> float:
    """Width of the bin that holds the energy u, nats."""
    j = int(np.clip(np.searchsorted(h.edges, u) - 1, 0, len(h.edges) - 2))
    return float(h.edges[j + 1] - h.edges[j])


def weighting_sentences(m: Mapping[str, float]) -> list[str]:
    """What the metrics of `weighting_metrics` mean; none without them."""
    w = {k.removeprefix(PREFIX): v for k, v in m.items() if k.startswith(PREFIX)}
    if not w:
        return []
    lines = [
        f"The weighting multiplied the gradient by {w['multiplier']:.3g} (90 % of the steps: {w['multiplier_5']:.3g} "
        f"to {w['multiplier_95']:.3g}){', so it changed next to nothing' if abs(w['multiplier'] - 1) < 0.05 else ''}.",
        f"Plain sampling would show these energies at a temperature of about {w['plain_temperature']:.2g}.",
    ]
    if not math.isnan(w["covered"]):
        lines.append(
            f"The bins reach {w['covered']:,.{0 if w['covered'] >= 10 else 1}f} nats of log G below the top, and "
            f"{w['lowest_share']:.0%} of the energies lie in the lowest one"
            f"{', where nothing pulls' if w['lowest_share'] > 0.5 else ''}."
        )
    error = m.get("energy/batch_error", math.nan)
    if not math.isnan(error):
        lines.append(f"A bin is {w['bin_width']:.3g} nats wide, and the energy of one batch errs by {error:.3g}.")
    ess, samples, biased = (m.get(k, math.nan) for k in ("weight_ess", "samples", "weights_biased"))
    if math.isnan(ess):
        lines.append("Importance weights are not available: the averages are those of the weighted law.")
    elif biased == 1:
        lines.append("Importance weights mean little here: the batch energies that psi was fitted on are too noisy.")
    else:
        unknown = (
            "" if biased == 0 else " They may be biased: full_energy=true records the energies that would show it."
        )
        effective = f"{ess:,.1f} effective samples of {samples:,.0f}"
        lines.append(f"Importance weights lead back to exp(-U/T) with {effective}.{unknown}")
    return lines
