"""The verdict: whether to trust the samples of a run, check by check."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bdl.posterior.energy_histogram import EnergyHistogram

Level = Literal["ok", "look", "bad"]
LEVELS: tuple[Level, ...] = ("ok", "look", "bad")  # from best to worst


class Numbers(dict[str, float]):
    """Metrics by name; an absent one reads as NaN."""

    def __missing__(self, name: str) -> float:
        return math.nan


@dataclass(frozen=True)
class Check:
    """One line of the verdict."""

    level: Level
    name: str
    value: str
    words: str  # the meaning of the value, and a remedy unless the level is ok


def verdict(
    metrics: Mapping[str, float | None], histogram: EnergyHistogram | None = None, warnings: Sequence[str] = ()
) -> list[Check]:
    """What to check before trusting the samples. metrics: flat, as in metrics.json; any may be missing or null."""
    m = or_nan(metrics)
    checks = [
        _chains(m),
        _rhat(m),
        _ess(m),
        _temperature(m),
        _acceptance(m),
        _swaps(m),
        _average(m),
        _calibration(m),
        _intervals(m),
        _weights(m),
        _bins(histogram),
    ]
    return [*(check for check in checks if check), _warnings(warnings)]


def or_nan(metrics: Mapping[str, float | None]) -> Numbers:
    """The metrics, with NaN for those that are null or absent."""
    return Numbers({k: math.nan if v is None else float(v) for k, v in metrics.items()})


def _chains(m: Mapping[str, float]) -> Check | None:
    chains, samples = m["chains"], m["samples"]
    if math.isnan(chains):
        return None
    value = f"{chains:.0f}" if math.isnan(samples) else f"{chains:.0f} with {samples:,.0f} samples"
    if chains >= 2:
        return Check("ok", "Chains", value, "there are enough chains to compare them with each other")
    return Check("look", "Chains", value, "one chain cannot show which modes it missed: run at least 2")


def _rhat(m: Mapping[str, float]) -> Check:
    value = m["rhat/max"]
    if math.isnan(value):
        return Check("look", "R-hat", "–", "R-hat was not measured: it needs 2 chains and 4 samples of each")
    # The maximum over 50 items: even if the chains mix, some items exceed the usual limit of 1.05.
    level = _grade(value, 1.1, 1.5)
    words = {
        "ok": "the chains agree on every test item that was checked",
        "look": "the chains agree only roughly on some test items: average all chains, and sample longer",
        "bad": "the chains disagree: they have not reached one distribution, so sample longer or change lr",
    }
    return Check(level, "R-hat (largest)", f"{value:.3f}", words[level])


def _ess(m: Mapping[str, float]) -> Check:
    value, samples = m["ess/min"], m["samples"]
    if math.isnan(value):
        return Check("look", "ESS", "–", "the effective sample size was not measured: it needs 4 samples of each chain")
    level = _grade(-value, -100, -10)
    words = {
        "ok": "there are enough independent draws to estimate means",
        "look": "there are few independent draws: keep more samples, further apart",
        "bad": "there are too few independent draws for any average: sample much longer",
    }
    total = "" if math.isnan(samples) else f" of {samples:,.0f}"
    return Check(level, "ESS (smallest)", f"{value:,.0f}{total}", words[level])


def _temperature(m: Mapping[str, float]) -> Check | None:
    intended, reached = m["temperature"], m["t_eff"]
    if intended == 0:
        return Check("look", "Temperature", "T = 0", "this is optimisation: an ensemble of solutions, not a posterior")
    if math.isnan(intended) or not math.isnan(m["elbo"]):  # batch noise does not heat a variational approximation
        return None
    if math.isnan(reached):
        words = "T_eff was not measured: mini-batches may heat the chain by an unknown amount"
        return Check("look", "Temperature", f"T = {intended:.3g}", words)
    ratio = max(reached / intended, intended / max(reached, 1e-300))
    level, value = _grade(ratio, 1.5, 3.0), f"T_eff {reached:.3g}, T {intended:.3g}"
    if level == "ok":
        words = "mini-batches hardly heat the chain"
    elif reached < intended:
        words = "the chain is colder than intended: check lr, friction and clipping"
    else:
        words = f"mini-batches heat the chain to T_eff = {reached:.3g}: a smaller lr or larger batch reduces T_eff"
    return Check(level, "Temperature", value, words)


def _acceptance(m: Mapping[str, float]) -> Check | None:
    value = m["acceptance"]
    if math.isnan(value):
        return None
    if value < 0.1:
        words = "most proposals are rejected: lower lr, or adapt it for longer"
    elif value > 0.97:
        words = "the steps are shorter than necessary: raise lr, or adapt it"
    else:
        return Check("ok", "Acceptance", f"{value:.2f}", "the law is exact at this step size")
    return Check("look", "Acceptance", f"{value:.2f}", words)


def _swaps(m: Mapping[str, float]) -> Check | None:
    rates = [v for k, v in m.items() if k.startswith("swap_rate/") and not math.isnan(v)]
    if not rates:
        return None
    value = f"{min(rates):.3f} to {max(rates):.3f}"
    if min(rates) < 0.01:
        words = "some replicas hardly ever swap: choose temperatures that lie closer together"
        return Check("look", "Swap rates", value, words)
    return Check("ok", "Swap rates", value, "hot chains pass their states to cold ones")


def _average(m: Mapping[str, float]) -> Check | None:
    """By Jensen's inequality an average has a lower NLL than its samples have on average."""
    one, average = ({s: m[f"test/{row}/{s}"] for s in ("accuracy", "rmse", "nll")} for row in ("one_sample", "bma"))
    if math.isnan(one["nll"] + average["nll"]):
        return None
    worse_nll = average["nll"] > one["nll"] + 0.01 * abs(one["nll"]) + 1e-6  # of numbers it may be negative
    worse_error = average["accuracy"] < one["accuracy"] - 0.001 or average["rmse"] > 1.01 * one["rmse"]
    level = LEVELS[worse_nll + worse_error]
    words = {
        "ok": "averaging improves the predictions, or at least does no harm",
        "look": f"the average has a worse {'NLL' if worse_nll else 'error'}: were samples kept during burn-in?",
        "bad": "the average is worse than one sample: keep later samples, or sample longer",
    }
    value = f"NLL {one['nll']:.3f} → {average['nll']:.3f}"
    return Check(level, "Average against one sample", value, words[level])


def _calibration(m: Mapping[str, float]) -> Check | None:
    value = m["test/bma/ece"]
    if math.isnan(value):
        return None
    level = _grade(value, 0.03, 0.1)
    words = {
        "ok": "the confidence of the average matches its accuracy",
        "look": "the confidence of the average differs from its accuracy: see the reliability diagram",
        "bad": "the confidence of the average is misleading: see the reliability diagram",
    }
    return Check(level, "Calibration error (ECE)", f"{value:.3f}", words[level])


def _intervals(m: Mapping[str, float]) -> Check | None:
    value, inside = m["test/bma/quantile_error"], m["test/bma/coverage_90"]
    if math.isnan(value):
        return None
    level = _grade(value, 0.05, 0.1)  # 100 items that follow the law have .03 on average
    wide = "wide" if inside > 0.9 else "narrow"
    words = {
        "ok": "the predicted intervals hold as many test values as they should",
        "look": f"the predicted intervals are too {wide} in parts: see the calibration of quantiles",
        "bad": f"the predicted intervals are too {wide}: the likelihood may not suit the data, or the chain is heated",
    }
    return Check(level, "Calibration of intervals", f"90 % hold {100 * inside:.1f} %", words[level])


def _weights(m: Mapping[str, float]) -> Check | None:
    value, samples = m["weight_ess"], m["samples"]
    if math.isnan(value):
        return None
    level = "ok" if value >= max(10.0, 0 if math.isnan(samples) else 0.1 * samples) else "look"
    total = "" if math.isnan(samples) else f" of {samples:,.0f}"
    words = {
        "ok": "many samples share the weight",
        "look": "a few samples dominate the weighted average: prefer the uniform one",
    }
    return Check(level, "ESS of importance weights", f"{value:,.1f}{total}", words[level])


def _bins(h: EnergyHistogram | None) -> Check | None:
    if h is None:
        return None
    if not h.ready:
        words = "the pilot has not determined the range of energies yet, so nothing is weighted"
        return Check("look", "Energy bins", "–", words)
    outside = h.share_outside
    value = f"{100 * outside:.1f} % outside"
    if outside > 0.05:
        words = "psi is constant beyond the bins: widen low and high, or run the pilot again"
        return Check("look", "Energy bins", value, words)
    if not h.frozen:
        words = "psi still changes, so importance weights are not meaningful yet"
        return Check("look", "Energy bins", value, words)
    return Check("ok", "Energy bins", value, "the bins cover the energies, and psi has settled")


def _warnings(warnings: Sequence[str]) -> Check:
    if not warnings:
        return Check("ok", "Warnings", "none", "the run gave no warnings")
    return Check("look", "Warnings", str(len(warnings)), "\n".join(warnings))


def _grade(value: float, ok: float, look: float) -> Level:
    return "ok" if value <= ok else "look" if value <= look else "bad"
