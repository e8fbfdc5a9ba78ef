"""Predictive stacking: chains in different modes get weights by how well they predict rows that they have not seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdl.display import Shown, count_of
from bdl.errors import ConfigError
from bdl.posterior.diagnostics import Draws
from bdl.posterior.outputs import LabelledOutputs
from bdl.posterior.weights import Keyed, Weights

PULL = 3.0  # rows of uniform weight added for each chain, see scripts/results/tables/stacking.md
ITEMS = 1000  # evenly spaced rows that decide the weights, if there are more
FOLDS = 10  # parts of these rows, each of which judges weights that the others gave
FEWEST_DRAWS = 25  # of a chain, with which PSIS smooths the 5 largest of its weights (Vehtari et al. 2024)
TAIL = 5  # of 25 draws, which is the shortest tail
UNRELIABLE = 0.7  # Pareto k of leave-one-out weights (Vehtari et al. 2024)
ROUNDS, CLOSE = 10_000, 1e-8  # of the EM algorithm, which stops where no weight changes by more


@dataclass(frozen=True, repr=False)
class Stacking(Shown):
    """Weights of chains, and what they rest on (Yao, Vehtari and Gelman 2022).

    Attributes:
        weights: one for each chain; they sum to 1.
        items: the rows that gave them.
        held_out: whether the samples have not seen these rows. Otherwise densities are leave-one-out estimates.
        gain: by how many nats a row the stacked average is ahead of the uniform one, on rows that did not give its
            weights: each tenth is judged by weights of the other nine.
        gain_se: the standard error of the gain, of differences row by row.
        unreliable: the share of leave-one-out densities with a Pareto k above 0.7; 0 for rows held out.
        step: the last step of the samples.
    """

    weights: Sequence[float]
    items: int
    held_out: bool
    gain: float
    gain_se: float
    unreliable: float
    step: int

    @property
    def effective_chains(self) -> float:
        """1 / Σ w²: how many chains of equal weight would be as unequal."""
        return 1 / sum(w**2 for w in self.weights)

    def shown(self) -> tuple[str, Mapping[str, str]]:
        return f"Stacking of {count_of(len(self.weights), 'chain')}", {"rows": self.source, "weights": self.words}

    @property
    def metrics(self) -> dict[str, float]:
        """For metrics.json: `stacking/...`; `stacking/chains` is `effective_chains`."""
        names = ("items", "held_out", "gain", "gain_se", "unreliable")
        return {"stacking/chains": self.effective_chains} | {f"stacking/{n}": float(getattr(self, n)) for n in names}

    @property
    def source(self) -> str:
        rows = f"{self.items:,} {'validation' if self.held_out else 'training'} rows"
        return rows if self.held_out else f"leave-one-out densities of {rows}"

    @property
    def words(self) -> str:
        """What a report says of the weights."""
        chains = f"worth {self.effective_chains:.1f} of {len(self.weights)} chains"
        return f"stacked by {self.source}, {chains}; there {self.gain:+.3f} ± {self.gain_se:.2g} nats a row"

    def of_networks(self, samples: Sequence[Keyed]) -> Weights:
        """The weights of single networks, which share that of their chain; they sum to the number of chains."""
        chains = [chain for chain, _, _ in samples]
        counts = np.bincount(chains, minlength=len(self.weights)).clip(1)
        factors = len(self.weights) * np.array(self.weights) / counts
        by_key = {(chain, record.step): float(factors[chain]) for chain, record, _ in samples}
        values = np.array(list(by_key.values()))
        return Weights(by_key, float(values.sum() ** 2 / np.square(values).sum()), False, self.words)

    def to_plain(self) -> dict[str, Any]:
        return {**asdict(self), "weights": list(self.weights)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Stacking:
        """Raises ConfigError for what `to_plain` has not written."""
        try:
            found = cls(**plain)
            if not (min(found.weights) >= 0 and math.isclose(sum(found.weights), 1, rel_tol=1e-6)):
                raise ValueError("its weights do not sum to 1")
            return found
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"these are no weights of chains ({error}): fit them again by weights=stacking"
            ) from error


@torch.no_grad()
def fit_stacking(labelled: LabelledOutputs, used: Mapping[tuple[int, int], float], held_out: bool) -> Stacking:
    """Weights of the chains of some networks, by labelled rows.

    held_out: the samples have not seen the rows; otherwise densities are leave-one-out estimates by Pareto-smoothed
    importance sampling of each chain's own draws.

    Raises ConfigError for fewer than two chains, and for leave-one-out with fewer than 25 samples of a chain.
    """
    chains = labelled.samples.chains
    if chains < 2:
        raise ConfigError("weights=stacking needs at least 2 chains, and this posterior has 1: its weights are uniform")
    fewest = min(np.bincount([chain for chain, _ in used], minlength=chains))
    if not held_out and fewest < FEWEST_DRAWS:
        raise ConfigError(
            f"weights=stacking by training rows needs {FEWEST_DRAWS} samples of each chain, and one has {fewest}: hold "
            "out validation rows (data.val_fraction=0.2), or keep more samples"
        )
    of_chain = _log_densities(labelled, used)
    if held_out:
        log_p, unreliable = np.array([_log_mean(logs) for logs in of_chain]), 0.0
    else:
        each = [leave_one_out(logs) for logs in of_chain]
        log_p = np.array([logs for logs, _ in each])
        unreliable = float(np.mean([k > UNRELIABLE for _, k in each]))
    if not np.isfinite(log_p).all():
        raise ConfigError(
            "weights=stacking needs densities of all rows, and some are not finite: chains that have not moved have no "
            "leave-one-out estimates; take longer, or hold out validation rows (data.val_fraction=0.2)"
        )
    gains = judged_gains(log_p)
    error = float(gains.std(ddof=1) / math.sqrt(len(gains))) if len(gains) > 1 else math.nan
    step = max(step for _, step in used)
    weights = stacking_weights(log_p).tolist()
    return Stacking(weights, log_p.shape[1], held_out, float(gains.mean()), error, unreliable, step)


def stacking_weights(log_p: np.ndarray, pull: float = PULL) -> np.ndarray:
    """(chains,) weights w that maximise Σ_i log Σ_c w_c p_ci + pull Σ_c log w_c, of log densities (chains, n) in nats.

    That is stacking under a Dirichlet prior with 1 + pull for each chain (Yao, Vehtari and Gelman 2022). The objective
    is concave, and the steps of the EM algorithm never lower it.
    """
    chains, items = log_p.shape
    p, w = np.exp(log_p - log_p.max(0)), np.full(chains, 1 / chains)
    for _ in range(ROUNDS):
        before = w
        shares = w[:, None] * p / (w @ p)  # (chains, n) of which chain a row is
        w = (shares.sum(1) + pull) / (items + chains * pull)
        if np.abs(w - before).max() < CLOSE:
            break
    return w


def judged_gains(log_p: np.ndarray, pull: float = PULL) -> np.ndarray:
    """(n,) log densities by stacked weights less those by uniform ones; the weights of a row come from other tenths."""
    gains = np.empty(log_p.shape[1])
    for fold in range(min(FOLDS, len(gains))):
        judged = np.arange(len(gains)) % FOLDS == fold
        weights = stacking_weights(log_p[:, ~judged], pull) if not judged.all() else np.ones(len(log_p)) / len(log_p)
        gains[judged] = mixture_log_density(log_p[:, judged], weights) - _log_mean(log_p[:, judged])
    return gains


def mixture_log_density(log_p: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(n,) log Σ_c w_c p_ci of log densities (chains, n), nats."""
    return np.logaddexp.reduce(log_p + np.log(weights)[:, None], 0)


def leave_one_out(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n,) leave-one-out log densities and their Pareto k, from the draws (draws, n) of one chain, nats.

    A density that is the same for all draws, or not finite, is that of the average. Where the smallest densities have
    no tail to smooth, as those of a chain that hardly moves, k is infinite, and weights are as they come.
    """
    from arviz_stats.base.array import array_stats  # slow to import

    found, k = _log_mean(logs), np.full(logs.shape[1], np.nan)
    moves = np.isfinite(logs).all(0) & (np.ptp(logs, 0) > 0)
    k[moves], found[moves] = np.inf, math.log(len(logs)) - np.logaddexp.reduce(-logs[:, moves], 0)
    lowest = np.sort(logs, 0)[:TAIL]
    usable = moves & (lowest[0] < lowest[-1]) & (len(logs) >= FEWEST_DRAWS)
    if usable.any():
        with np.errstate(all="ignore"):  # equal densities, as of steps that were refused, may have no fit
            log_w, fitted = array_stats.psislw(logs[:, usable], axis=0)  # (n, draws) log weights, which sum to 1
            smoothed = np.logaddexp.reduce(log_w + logs[:, usable].T, 1)
        fits = np.isfinite(fitted) & np.isfinite(smoothed)
        found[usable], k[usable] = np.where(fits, smoothed, found[usable]), np.where(fits, fitted, np.inf)
    return found, k


def _log_mean(logs: np.ndarray) -> np.ndarray:
    return np.logaddexp.reduce(logs, 0) - math.log(len(logs))


def _log_densities(labelled: LabelledOutputs, used: Mapping[tuple[int, int], float]) -> list[np.ndarray]:
    """(draws, n) of each chain: the log density of every row by each of its networks, nats."""
    draws, likelihood = Draws(labelled.samples.chains), labelled.likelihood.of_rows()
    likelihood.check(labelled.y)
    for group in labelled.samples.groups(used):
        for block, outputs in labelled.blocks(group):
            each: list[Tensor] = [-likelihood(one, labelled.y) for one in outputs.double()]
            draws.add(block.chains, [logs.reshape(len(logs), -1).sum(1).numpy() for logs in each])
    labelled.not_finite.warn()
    return [np.array(of_chain) for of_chain in draws.of_chain]
