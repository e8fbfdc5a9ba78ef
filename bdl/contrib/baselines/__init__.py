"""Baselines: draws of networks made from trained ones, in the same store as samples of a posterior.

SWAG and MultiSWAG, Monte Carlo dropout, last-layer Laplace, and a temperature-scaled point estimate.
"""

from __future__ import annotations

from bdl.contrib.baselines.base import Baseline
from bdl.contrib.baselines.dropout import MCDropout
from bdl.contrib.baselines.last_layer import LastLayerLaplace, ScaledPoint
from bdl.contrib.baselines.swag import SWAG

__all__ = ["Baseline", "LastLayerLaplace", "MCDropout", "SWAG", "ScaledPoint"]
