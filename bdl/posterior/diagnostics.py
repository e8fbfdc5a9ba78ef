"""Whether to trust a run: R-hat, effective sample sizes, and the verdict on all of its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from arviz_stats.base.array import array_stats

if TYPE_CHECKING:
    from bdl.posterior.report.figures import EnergyHistogram

MIN_DRAWS = 4  # fewer can't be split into halves that have a variance
Level = Literal["ok", "look", "bad"]
LEVELS: tuple[Level, ...] = ("ok", "look", "bad")  # from best to worst


@dataclass(frozen=True)
class Row:
    """One quantity over all chains and draws; rhat and ess are NaN where they can't be computed."""

    name: str
    mean: float
    std: float
    rhat: float
    ess: float


class Numbers(dict[str, float]):
    """Metrics by name, where one that is absent reads as NaN."""

    def __missing__(self, name: str) -> float:
        return math.nan


@dataclass(frozen=True)
class Check:
    """One line of the verdict."""

    level: Level
    name: str
    value: str
    words: str  # what it means, and where it is not ok the remedy


def rhat(draws: np.ndarray) -> np.ndarray:
    """(quantities,) rank-normalised split R-hat of draws (chains, draws, quantities), Vehtari et al. 2021.

    1 where chains agree, infinite where each stands still at another value; NaN with one chain, fewer than 4 draws,
    a value that is not finite, or the same value everywhere.
    """
    return _each(array_stats.rhat, draws, min_chains=2)


def ess(draws: np.ndarray) -> np.ndarray:
    """(quantities,) bulk effective sample size of draws (chains, draws, quantities), Vehtari et al. 2021.

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


def verdict(
    metrics: Mapping[str, float | None], histogram: EnergyHistogram | None = None, warnings: Sequence[str] = ()
) -> list[Check]:
    """What to check before trusting the samples. metrics: flat, as in metrics.json; any may be missing or null."""
    m = or_nan(metrics)
    found = [
        _chains(m),
        _rhat(m),
        _ess(m),
        _temperature(m),
        _acceptance(m),
        _swaps(m),
        _average(m),
        _calibration(m),
        _weights(m),
        _bins(histogram),
    ]
    return [*(check for check in found if check), _warnings(warnings)]


def or_nan(metrics: Mapping[str, float | None]) -> Numbers:
    """The metrics, with NaN for what is null or absent."""
    return Numbers({k: math.nan if v is None else float(v) for k, v in metrics.items()})


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


def _chains(m: Mapping[str, float]) -> Check | None:
    chains, samples = m["chains"], m["samples"]
    if math.isnan(chains):
        return None
    value = f"{chains:.0f}" if math.isnan(samples) else f"{chains:.0f} with {samples:,.0f} samples"
    if chains >= 2:
        return Check("ok", "Chains", value, "enough to compare chains with each other")
    return Check("look", "Chains", value, "one chain can't show that it missed something: run at least 2")


def _rhat(m: Mapping[str, float]) -> Check:
    value = m["rhat/max"]
    if math.isnan(value):
        return Check("look", "R-hat", "–", "not measured: it needs 2 chains and 4 samples of each")
    level = _grade(value, 1.1, 1.5)  # of 50 items: the largest is above the usual 1.05 for some even when chains mix
    words = {
        "ok": "chains agree on every test item looked at",
        "look": "on some test items chains agree only roughly: average all chains, sample longer for more",
        "bad": "chains disagree: they have not reached one distribution, sample longer or change lr",
    }
    return Check(level, "R-hat (largest)", f"{value:.3f}", words[level])


def _ess(m: Mapping[str, float]) -> Check:
    value, samples = m["ess/min"], m["samples"]
    if math.isnan(value):
        return Check("look", "ESS", "–", "effective sample size not measured: it needs 4 samples of each chain")
    level = _grade(-value, -100, -10)
    words = {
        "ok": "enough independent draws for means",
        "look": "few independent draws: keep more samples, further apart",
        "bad": "too few independent draws for any average: sample much longer",
    }
    of = "" if math.isnan(samples) else f" of {samples:,.0f}"
    return Check(level, "ESS (smallest)", f"{value:,.0f}{of}", words[level])


def _temperature(m: Mapping[str, float]) -> Check | None:
    meant, reached = m["temperature"], m["t_eff"]
    if meant == 0:
        return Check("look", "Temperature", "T = 0", "this is optimisation: an ensemble of solutions, not a posterior")
    if math.isnan(meant) or not math.isnan(m["elbo"]):  # a variational approximation is not heated by batches
        return None
    if math.isnan(reached):
        return Check(
            "look", "Temperature", f"T = {meant:.3g}", "T_eff not measured: mini-batches may heat the chain unseen"
        )
    ratio = max(reached / meant, meant / max(reached, 1e-300))
    level, value = _grade(ratio, 1.5, 3.0), f"T_eff {reached:.3g}, T {meant:.3g}"
    if level == "ok":
        return Check(level, "Temperature", value, "mini-batches hardly heat the chain")
    if reached < meant:
        return Check(
            level, "Temperature", value, "the chain is colder than it should be: check lr, friction and clipping"
        )
    words = f"mini-batches heat the chain to T_eff = {reached:.3g}: a smaller lr or larger batch brings it closer to T"
    return Check(level, "Temperature", value, words)


def _acceptance(m: Mapping[str, float]) -> Check | None:
    value = m["acceptance"]
    if math.isnan(value):
        return None
    if value < 0.1:
        return Check(
            "look", "Acceptance", f"{value:.2f}", "most proposals are refused: lower lr, or adapt it for longer"
        )
    if value > 0.97:
        return Check("look", "Acceptance", f"{value:.2f}", "steps are shorter than they need be: raise lr, or adapt it")
    return Check("ok", "Acceptance", f"{value:.2f}", "the law is exact at this step size")


def _swaps(m: Mapping[str, float]) -> Check | None:
    rates = [v for k, v in m.items() if k.startswith("swap_rate/") and not math.isnan(v)]
    if not rates:
        return None
    value = f"{min(rates):.3f} to {max(rates):.3f}"
    if min(rates) < 0.01:
        return Check("look", "Swap rates", value, "replicas hardly ever swap: bring the rungs of the ladder closer")
    return Check("ok", "Swap rates", value, "hot chains hand states down to cold ones")


def _average(m: Mapping[str, float]) -> Check | None:
    """By Jensen an average beats its samples in NLL; one that does not holds samples that should not be in it."""
    one, all_ = ({s: m[f"test/{row}/{s}"] for s in ("accuracy", "nll")} for row in ("one_sample", "bma"))
    if math.isnan(one["nll"] + all_["nll"]):
        return None
    worse_nll = all_["nll"] > 1.01 * one["nll"] + 1e-6
    worse_error = all_["accuracy"] < one["accuracy"] - 0.001
    level = LEVELS[worse_nll + worse_error]
    words = {
        "ok": "averaging helps, or at least does no harm",
        "look": f"worse in {'NLL' if worse_nll else 'error'}: were samples kept before the chain settled?",
        "bad": "the average is worse than one sample: keep later samples, or sample longer",
    }
    value = f"NLL {one['nll']:.3f} → {all_['nll']:.3f}"
    return Check(level, "Average against one sample", value, words[level])


def _calibration(m: Mapping[str, float]) -> Check | None:
    value = m["test/bma/ece"]
    if math.isnan(value):
        return None
    level = _grade(value, 0.03, 0.1)
    words = {
        "ok": "confidence of the average matches its accuracy",
        "look": "confidence of the average is off: see the reliability diagram",
        "bad": "confidence of the average misleads: see the reliability diagram",
    }
    return Check(level, "Calibration error (ECE)", f"{value:.3f}", words[level])


def _weights(m: Mapping[str, float]) -> Check | None:
    value, samples = m["weight_ess"], m["samples"]
    if math.isnan(value):
        return None
    level = "ok" if value >= max(10.0, 0 if math.isnan(samples) else 0.1 * samples) else "look"
    of = "" if math.isnan(samples) else f" of {samples:,.0f}"
    words = {
        "ok": "many samples share the weight",
        "look": "a few samples carry the weighted average: prefer the plain one",
    }
    return Check(level, "ESS of importance weights", f"{value:,.1f}{of}", words[level])


def _bins(h: EnergyHistogram | None) -> Check | None:
    if h is None:
        return None
    if not h.ready:
        return Check(
            "look", "Energy bins", "–", "the pilot has not found the range of energies yet: nothing is weighted"
        )
    u = h.energies[np.isfinite(h.energies)]
    outside = float(np.mean((u < h.edges[0]) | (u > h.edges[-1]))) if len(u) else 0.0
    value = f"{100 * outside:.1f} % outside"
    if outside > 0.05:
        return Check(
            "look", "Energy bins", value, "psi is blind where the bins end: widen low and high, or run the pilot again"
        )
    if not h.frozen:
        return Check(
            "look", "Energy bins", value, "psi still moves: no sample has an importance weight that means anything yet"
        )
    return Check("ok", "Energy bins", value, "they hold the energies and psi has settled")


def _warnings(warnings: Sequence[str]) -> Check:
    if not warnings:
        return Check("ok", "Warnings", "none", "the run gave none")
    return Check("look", "Warnings", str(len(warnings)), "\n".join(warnings))


def _grade(value: float, ok: float, look: float) -> Level:
    return "ok" if value <= ok else "look" if value <= look else "bad"
