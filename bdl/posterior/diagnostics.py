"""R-hat, effective sample sizes and Monte Carlo errors of the networks' predictions and energies, chain by chain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdl.collector import paused
from bdl.posterior.modes import MIN_DRAWS, modes_seen
from bdl.posterior.stationarity import stationarity
from bdl.posterior.student import student_factor

MOST_ITEMS = 0.9  # the share of the items that "most items" stands for
TRACE_BATCHES = 10  # batches of draws in a chain
MIN_BATCHES = 8  # batches in all chains: with 7 degrees of freedom an error is known to a quarter


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
    with paused():  # slow to import
        from arviz_stats.base.array import array_stats

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


def mixing(
    quantities: np.ndarray, energies: np.ndarray | None = None, features: np.ndarray | None = None
) -> dict[str, float]:
    """R-hat and ESS of predictions (chains, draws, quantities) and of energies (chains, draws), flat by name.

        rhat/max, ess/min, ess/tail_min = the worst quantity (Vehtari et al. 2021)
        rhat/trend   = the power of 1/draws by which R-hat - 1 falls, see `rhat_trend`
        modes/seen   = see `bdl.posterior.modes.modes_seen`, of the features
        ess/within   = the ESS that the average over the chains would have if they agreed, from the ESS that each chain
                       alone gives the quantity with the smallest ESS. It stays large where chains move well, each in
                       its own mode.
        rhat/energy, ess/energy = R-hat and ESS of the energy
        energy/drift = mean energy of the second half of the draws less the first half's, in standard deviations of
                       the energy; energy/drift_t = the same in standard errors, from the spread between chains
        drift/..., slow/... = see `bdl.posterior.stationarity.stationarity`, of features (chains, draws, features) that
                       are linear in the outputs of the networks; of the quantities without them

    NaN where a number cannot be computed.
    """
    sizes = ess(quantities)
    numbers = {
        "rhat/max": _or_nan(np.nanmax, rhat(quantities)),
        "rhat/trend": rhat_trend(quantities),
        "modes/seen": modes_seen(quantities if features is None else features),
        "ess/min": _or_nan(np.nanmin, sizes),
        "ess/tail_min": _or_nan(np.nanmin, _of_each_quantity("ess", quantities, method="tail", prob=(0.05, 0.95))),
        "ess/within": math.nan,
    }
    if np.isfinite(sizes).any():
        worst = quantities[:, :, np.nanargmin(sizes)]
        numbers["ess/within"] = _ess_of_average(ess(worst.T[None]))  # the chains as quantities of one chain
    numbers |= stationarity(quantities if features is None else features)
    names = ("rhat/energy", "ess/energy", "energy/drift", "energy/drift_t")
    if energies is None:
        return numbers | dict.fromkeys(names, math.nan)
    one = energies[:, :, None]
    return numbers | dict(zip(names, (float(rhat(one)[0]), float(ess(one)[0]), *_drift(energies)), strict=True))


def rhat_trend(draws: np.ndarray) -> float:
    """The power p with which R-hat - 1 falls as draws^-p, from the first half of the draws and all of them.

    R-hat - 1 is a mean over quantities here, of draws (chains, draws, quantities). Chains that are slow have p of about
    1: between them lies what more draws average out. Chains that stay in different modes have p of about 0. NaN where
    R-hat is not known, or 1 for all draws.
    """
    half, whole = rhat(draws[:, : draws.shape[1] // 2]), rhat(draws)
    known = np.isfinite(half) & np.isfinite(whole)
    if not known.any():
        return math.nan
    first, all_of_them = half[known].mean() - 1, whole[known].mean() - 1
    return float(np.log2(first / all_of_them)) if min(first, all_of_them) > 0 else math.nan


def _ess_of_average(sizes: np.ndarray) -> float:
    """The ESS of the average over independent chains of one distribution, whose own ESS are `sizes` (chains,).

    The variance of the average is σ²/C² Σ 1/n_c. This is the sum of the n_c for chains that are equally fast, and less
    where some are slow, because a slow chain counts in the average as much as a fast one. NaN sizes are left out.
    """
    known = sizes[np.isfinite(sizes)]
    return float(len(known) ** 2 / (1 / known).sum()) if known.size else math.nan


def repeat_error(averages: np.ndarray, scale: np.ndarray | float, draws: np.ndarray) -> dict[str, float]:
    """How far the averaged predictions of another run of this budget would lie: `mcse/most` and `mcse/worst`.

    It is the standard error of the mean of the chains' own averages, times t/1.96 with the 97.5 % quantile t of
    Student's law with chains - 1 degrees of freedom. Twice the number bounds the error in 95 of 100 runs, however few
    the chains. One chain alone has no such spread; its error comes from the effective sample size of its draws.

    Args:
        averages: (chains, items, parts) each chain's average: probabilities, or means.
        scale: what counts as 1: 1 for probabilities, (items, parts) standard deviations of predictions for means.
        draws: (1, draws, points) the same predictions of single networks, over their scale; read for one chain only.

    Returns the largest over the parts of an item: what 90 % of the items do not exceed, and the largest.
    """
    return most_and_worst(repeat_errors(averages, scale) if len(averages) > 1 else draw_errors(draws))


def repeat_errors(averages: np.ndarray, scale: np.ndarray | float) -> np.ndarray:
    """(items,) the errors of `repeat_error` for several chains."""
    chains = len(averages)
    return (student_factor(chains) * averages.std(0, ddof=1) / math.sqrt(chains) / scale).max(-1)


def draw_errors(draws: np.ndarray) -> np.ndarray:
    """(points,) the errors of `repeat_error` for one chain."""
    return _of_each_quantity("mcse", draws, method="mean")


def most_and_worst(errors: np.ndarray) -> dict[str, float]:
    """What `repeat_error` returns, of the errors of single items."""
    errors = errors[np.isfinite(errors)]
    if not errors.size:
        return {"mcse/most": math.nan, "mcse/worst": math.nan}
    return {"mcse/most": float(np.quantile(errors, MOST_ITEMS)), "mcse/worst": float(errors.max())}


def trace_error(values: np.ndarray) -> float:
    """Standard error of the mean of rows (n, C) of a trace, from the means of batches of rows of each chain.

    Rows with a value that is not finite are left out. A batch has at least 2 rows; NaN with fewer than 8 batches.
    """
    values = values[np.isfinite(values).all(1)]
    batches = min(TRACE_BATCHES, len(values) // 2)
    if batches * values.shape[1] < MIN_BATCHES:
        return math.nan
    means = np.concatenate([part.mean(0) for part in np.array_split(values, batches)])  # (batches x C,)
    return float(means.std(ddof=1) / math.sqrt(means.size))


def _drift(energies: np.ndarray) -> tuple[float, float]:
    """(in standard deviations, in standard errors) of the change between the two halves of the draws."""
    half = energies.shape[1] // 2
    if half < 2 or not np.isfinite(energies).all():
        return math.nan, math.nan
    first, second = energies[:, :half], energies[:, -half:]
    changes = second.mean(1) - first.mean(1)  # (chains,)
    spread = math.sqrt((first.var(1, ddof=1) + second.var(1, ddof=1)).mean() / 2)
    if spread == 0:
        return math.nan, math.nan
    error = changes.std(ddof=1) / math.sqrt(len(changes)) if len(changes) > 1 else math.nan
    return float(changes.mean() / spread), float(changes.mean() / error) if error else math.nan


def _or_nan(reduce: Callable[[np.ndarray], Any], values: np.ndarray) -> float:
    return float(reduce(values)) if np.isfinite(values).any() else math.nan


def spaced(most: int, total: int, first: int = 0, count: int | None = None) -> Tensor:
    """Up to `most` evenly spaced whole numbers below `total`, cut to the `count` numbers from `first` on."""
    dtype = torch.float64 if total > 2**24 else torch.float32  # which has no whole numbers beyond
    chosen = torch.linspace(0, total - 1, min(most, total), dtype=dtype).long()
    return chosen[(chosen >= first) & (chosen < (total if count is None else first + count))]


class Draws:
    """Values (...) of networks that arrive in any order of the chains."""

    def __init__(self, chains: int):
        self.of_chain: list[list[Any]] = [[] for _ in range(chains)]

    def add(self, chains: Iterable[int], values: Iterable[Any]) -> None:
        """Add the value of one network of each of these chains, or of several of one chain, in their order."""
        for chain, value in zip(chains, values, strict=True):
            self.of_chain[chain].append(value)

    def array(self, draws: int | None = None) -> np.ndarray:
        """(chains, draws, ...) the first values of every chain; None for as many as the shortest chain has."""
        shortest = min(len(values) for values in self.of_chain)
        return np.array([values[: shortest if draws is None else draws] for values in self.of_chain])

    @classmethod
    def beside(cls, parts: Sequence[Draws]) -> Draws:
        """The values of the same networks for several parts, joined along the last axis."""
        whole = cls(0)
        for of_chain in zip(*(part.of_chain for part in parts), strict=True):
            whole.of_chain.append([np.concatenate(values, -1) for values in zip(*of_chain, strict=True)])
        return whole
