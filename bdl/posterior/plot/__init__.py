"""`bdl.plot`: pictures of predictions and of runs. Each takes an axis of matplotlib, or makes one, and returns it."""

from __future__ import annotations

from bdl.posterior.plot.chains import energy_weights, learning_curve, multiplier, rhat, traces
from bdl.posterior.plot.predictions import band, coverage_risk, intervals, quantiles, reliability, uncertainty_map

__all__ = [
    "band", "coverage_risk", "energy_weights", "intervals", "learning_curve", "multiplier", "quantiles", "reliability",
    "rhat", "traces", "uncertainty_map",
]  # fmt: skip
