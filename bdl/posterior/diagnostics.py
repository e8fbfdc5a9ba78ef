"""R-hat and effective sample sizes, of draws and of importance weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

MIN_DRAWS = 4  # split R-hat takes the variance of half chains, and a half needs two draws


@dataclass(frozen=True)
class ConvergenceRow:
    """One quantity over all chains and draws; rhat and ess are NaN where they cannot be computed."""

    name: str
    mean: float
    std: float
    rhat: float
    ess: float


def rhat(draws: np.ndarray) -> np.ndarray:
    """(quantities,) rank-normalised split R-hat of draws (chains, draws, quantities), Vehtari et al. 2021.

    It is 1 where chains agree, and infinite where each chain is constant but their values differ. It is NaN with one
    chain, with fewer than 4 draws, where a value is not finite, and where all values are equal.
    """
    return _of_each_quantity("rhat", draws, min_chains=2)


def ess(draws: np.ndarray) -> np.ndarray:
    """(quantities,) bulk effective sample size of draws (chains, draws, quantities), Vehtari et al. 2021.

    This many independent draws would estimate the mean equally well. It is NaN with fewer than 4 draws, where a value
    is not finite, and where all values are equal.
    """
    return _of_each_quantity("ess", draws)


def tail_ess(draws: np.ndarray) -> np.ndarray:
    """(quantities,) tail effective sample size of draws (chains, draws, quantities), Vehtari et al. 2021.

    The smaller of those of the 5 % and the 95 % quantile. It is NaN where `ess` is.
    """
    return _of_each_quantity("ess", draws, method="tail", prob=(0.05, 0.95))


def mean_error(draws: np.ndarray) -> np.ndarray:
    """(quantities,) Monte Carlo standard error of the means of draws (chains, draws, quantities): std / √ESS.

    It is NaN where `ess` is.
    """
    return _of_each_quantity("mcse", draws, method="mean")


def weight_ess(log_weights: np.ndarray) -> float:
    """Kish's effective sample size (Σ w)² / Σ w² of log weights of any shape; -inf and NaN count as no sample."""
    log_w = np.asarray(log_weights, dtype=float)
    log_w = log_w[np.isfinite(log_w)]
    if log_w.size == 0:
        return 0.0
    w = np.exp(log_w - log_w.max())
    return float(w.sum() ** 2 / np.square(w).sum())


def convergence_rows(named: Mapping[str, np.ndarray]) -> list[ConvergenceRow]:
    """One row for each named quantity (chains, draws)."""
    rows = []
    for name, values in named.items():
        draws = np.asarray(values, dtype=float)
        std = draws.std(ddof=1) if draws.size > 1 else np.nan
        numbers = (draws.mean(), std, rhat(draws[..., None])[0], ess(draws[..., None])[0])
        rows.append(ConvergenceRow(name, *map(float, numbers)))
    return rows


def _of_each_quantity(statistic: str, draws: np.ndarray, min_chains: int = 1, **options: Any) -> np.ndarray:
    """(quantities,) a statistic of arviz_stats by its name there, NaN for quantities for which it is not defined."""
    from arviz_stats.base.array import array_stats  # slow to import

    draws = np.asarray(draws, dtype=float)
    values = np.full(draws.shape[2], np.nan)
    if draws.shape[0] < min_chains or draws.shape[1] < MIN_DRAWS:
        return values
    usable = np.isfinite(draws).all((0, 1)) & (np.ptp(draws, (0, 1)) > 0)
    if usable.any():
        with np.errstate(divide="ignore", invalid="ignore"):  # R-hat divides by 0 where each chain is constant
            compute = getattr(array_stats, statistic)
            values[usable] = compute(draws[:, :, usable], chain_axis=0, draw_axis=1, **options)
    return values
