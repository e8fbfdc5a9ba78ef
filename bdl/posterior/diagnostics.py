"""Convergence of chains: R-hat and effective sample sizes, of draws and of importance weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from arviz_stats.base import array_stats

MIN_DRAWS = 4  # fewer can't be split into halves that have a variance


@dataclass(frozen=True)
class Row:
    """One quantity over all chains and draws; rhat and ess are NaN where they can't be computed."""

    name: str
    mean: float
    std: float
    rhat: float
    ess: float


def rhat(draws: np.ndarray) -> np.ndarray:
    """(quantities,) rank-normalised split R-hat of draws (chains, draws, quantities): Vehtari et al. 2021, eq. 14.

    1 where chains agree, infinite where each stands still at another value; NaN with one chain, fewer than 4 draws,
    a value that is not finite, or the same value everywhere.
    """
    return _each(array_stats.rhat, draws, min_chains=2)


def ess(draws: np.ndarray) -> np.ndarray:
    """(quantities,) bulk effective sample size of draws (chains, draws, quantities): Vehtari et al. 2021, section 4.1.

    Number of independent draws that would estimate the mean as well. NaN with fewer than 4 draws, a value that is not
    finite, or the same value everywhere.
    """
    return _each(array_stats.ess, draws, min_chains=1)


def weight_ess(log_weights: np.ndarray) -> float:
    """Kish's effective sample size (Σ w)² / Σ w² of log weights of any shape; -inf and NaN count as no sample."""
    log_w = np.asarray(log_weights, dtype=float)
    log_w = log_w[np.isfinite(log_w)]
    if log_w.size == 0:
        return 0.0
    w = np.exp(log_w - log_w.max())
    return float(w.sum() ** 2 / np.square(w).sum())


def summary(named: Mapping[str, np.ndarray]) -> list[Row]:
    """One row for each named quantity (chains, draws)."""
    return [_row(name, np.asarray(draws, dtype=float)) for name, draws in named.items()]


def _row(name: str, draws: np.ndarray) -> Row:
    std = draws.std(ddof=1) if draws.size > 1 else np.nan
    each = draws[..., None]
    return Row(name, float(draws.mean()), float(std), float(rhat(each)[0]), float(ess(each)[0]))


def _each(statistic, draws: np.ndarray, min_chains: int) -> np.ndarray:
    """The statistic of every quantity for which it means something, NaN for the others."""
    draws = np.asarray(draws, dtype=float)
    found = np.full(draws.shape[2], np.nan)
    if draws.shape[0] < min_chains or draws.shape[1] < MIN_DRAWS:
        return found
    usable = np.isfinite(draws).all((0, 1)) & (np.ptp(draws, (0, 1)) > 0)
    if usable.any():
        with np.errstate(divide="ignore", invalid="ignore"):  # chains that each stand still: R-hat is infinite
            found[usable] = statistic(draws[:, :, usable], chain_axis=0, draw_axis=1)
    return found
