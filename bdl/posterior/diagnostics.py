"""R-hat and effective sample sizes, of draws and of importance weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
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
    from arviz_stats.base.array import array_stats

    return _of_each_quantity(array_stats.rhat, draws, min_chains=2)


def ess(draws: np.ndarray) -> np.ndarray:
    """(quantities,) bulk effective sample size of draws (chains, draws, quantities), Vehtari et al. 2021.

    This many independent draws would estimate the mean equally well. It is NaN with fewer than 4 draws, where a value
    is not finite, and where all values are equal.
    """
    from arviz_stats.base.array import array_stats

    return _of_each_quantity(array_stats.ess, draws, min_chains=1)


def tail_ess(draws: np.ndarray) -> np.ndarray:
    """(quantities,) tail effective sample size of draws (chains, draws, quantities), Vehtari et al. 2021.

    The smaller of those of the 5 % and the 95 % quantile. It is NaN where `ess` is.
    """
    from arviz_stats.base.array import array_stats

    statistic = functools.partial(array_stats.ess, method="tail", prob=(0.05, 0.95))
    return _of_each_quantity(statistic, draws, min_chains=1)


def mean_error(draws: np.ndarray) -> np.ndarray:
    """(quantities,) Monte Carlo standard error of the means of draws (chains, draws, quantities): std / √ESS.

    It is NaN where `ess` is.
    """
    from arviz_stats.base.array import array_stats

    return _of_each_quantity(functools.partial(array_stats.mcse, method="mean"), draws, min_chains=1)


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
    return [_row(name, np.asarray(draws, dtype=float)) for name, draws in named.items()]


def _row(name: str, draws: np.ndarray) -> ConvergenceRow:
    std = draws.std(ddof=1) if draws.size > 1 else np.nan
    one_quantity = draws[..., None]
    return ConvergenceRow(
        name, float(draws.mean()), float(std), float(rhat(one_quantity)[0]), float(ess(one_quantity)[0])
    )


def _of_each_quantity(statistic: Callable[..., Any], draws: np.ndarray, min_chains: int) -> np.ndarray:
    """(quantities,) the statistic, NaN for quantities for which it is not defined."""
    draws = np.asarray(draws, dtype=float)
    values = np.full(draws.shape[2], np.nan)
    if draws.shape[0] < min_chains or draws.shape[1] < MIN_DRAWS:
        return values
    usable = np.isfinite(draws).all((0, 1)) & (np.ptp(draws, (0, 1)) > 0)
    if usable.any():
        with np.errstate(divide="ignore", invalid="ignore"):  # R-hat divides by 0 where each chain is constant
            values[usable] = statistic(draws[:, :, usable], chain_axis=0, draw_axis=1)
    return values
