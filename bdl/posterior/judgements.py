"""Judgements and checks, the outcomes that they lead to, and the answer to the verdict's first question.

All limits were chosen on simulated runs with known target distributions: docs/verdict.md has the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from bdl.posterior.energy_histogram import EnergyHistogram

Level = Literal["ok", "look", "bad"]
LEVELS: tuple[Level, ...] = ("ok", "look", "bad")  # from best to worst
COOL = 1.05  # T_eff over T: half of the 10 % of heat up to which tuning raises lr
VerdictOutcome = Literal[  # from best to worst
    "trust",
    "more samples",
    "not known",
    "prior does not fit",
    "ensemble over modes",
    "not at rest",
    "another temperature",
    "no posterior",
    "broken",
]
OUTCOMES: tuple[VerdictOutcome, ...] = get_args(VerdictOutcome)
LEVELS_OF: dict[VerdictOutcome, Level] = {**{outcome: "look" for outcome in OUTCOMES}, "trust": "ok", "broken": "bad"}

TOLERANCE_P = 0.02  # a shift of p = 1/2 by 0.02 costs 0.0008 nats; times `scale`
TOLERANCE_MEAN = 0.1  # predictive standard deviations; a shift by 0.1 costs 0.005 nats
ESS = 200.0  # the smallest of all items; 400 where converged, 145 at most with a burn-in that nothing else shows
TAIL = 100.0  # the smallest of all items; quantiles of 5 % rest on a twentieth of the draws
LEARNT_GAIN = 0.01  # nats an item: about the standard error of 1,000 items; times `scale`
SURE = 3.0  # standard errors
FEW_ITEMS = 10  # items, which cannot tell a good prediction from a constant
REST = 10.0  # independent draws of each chain alone, from which chains can be compared
COUNTED = 3.0  # independent draws of a chain; with fewer its ESS is not known, because it never came back
RHAT = 1.05  # the largest of all items; 1.02 at most where chains have converged
ENERGY_DRIFT = 0.3  # standard deviations of the energy; 0.21 at most where converged
ENERGY_DRIFT_T = 4.0  # standard errors; noise exceeds them in 3 of 100 runs of 4 chains, and ENERGY_DRIFT hardly ever


class Numbers(dict[str, float]):
    """Metrics by name; an absent one reads as NaN."""

    def __missing__(self, name: str) -> float:
        return math.nan


@dataclass(frozen=True)
class Check:
    """A line of the verdict that does not decide it."""

    level: Level
    name: str
    value: str
    words: str  # the meaning of the value, and a remedy unless the level is ok


@dataclass(frozen=True)
class Judgement:
    """One line of the verdict that decides it: how one check answers a question."""

    outcome: VerdictOutcome
    name: str
    value: str
    words: str

    @property
    def level(self) -> Level:
        return LEVELS_OF[self.outcome]

    @property
    def severity(self) -> int:
        return OUTCOMES.index(self.outcome)


def notes(m: Numbers, histogram: EnergyHistogram | None, warnings: Sequence[str]) -> list[Check]:
    """The checks that do not decide the verdict. A converged run may predict badly, and the other way round."""
    checks = (_average(m), _error(m), _calibration(m), _intervals(m), _acceptance(m), _swaps(m))
    warned = Check("look", "Warnings", str(len(warnings)), "\n".join(warnings))
    silent = Check("ok", "Warnings", "none", "the run gave no warnings")
    return [*(check for check in (*checks, _bins(histogram)) if check), warned if warnings else silent]


def or_nan(metrics: Mapping[str, float | None]) -> Numbers:
    """The metrics, with NaN for null and for absent values."""
    return Numbers({k: math.nan if v is None else float(v) for k, v in metrics.items()})


def _acceptance(m: Mapping[str, float]) -> Check | None:
    value = m["acceptance"]
    if math.isnan(value):
        return None
    if value < 0.1:
        words = "most proposals are rejected: lower lr, or adapt it for longer"
    elif value > 0.97 and not m["t_eff"] > COOL * m["temperature"]:
        short = energy_drifts(m) or alone(m) < REST
        first = "nearly all are accepted: a larger lr may do, which a longer run can tell"
        words = first if short else "the steps are shorter than necessary: raise lr, or adapt it"
    else:
        words = "enough proposals are accepted, and rejecting the others leaves no error of the step size"
        return Check("ok", "Acceptance", f"{value:.2f}", words)
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
    worse_nll = average["nll"] > one["nll"] + 0.01 * abs(one["nll"]) + 1e-6  # the NLL of numbers may be negative
    wrong, chance = 1 - one["accuracy"], over((1 - one["accuracy"]) * one["accuracy"], m["test/items"])
    more = average["accuracy"] < one["accuracy"] - 0.01 * wrong - (0.0 if math.isnan(chance) else math.sqrt(chance))
    worse_error = more or average["rmse"] > 1.01 * one["rmse"]
    level = LEVELS[worse_nll + worse_error]
    words = {
        "ok": "averaging improves the predictions, or at least does no harm",
        "look": f"the average has a worse {'NLL' if worse_nll else 'error'}: were samples kept during burn-in?",
        "bad": "the average is worse than one sample: keep later samples, or sample longer",
    }
    value = "NLL {} → {}".format(*nats(one["nll"], average["nll"]))
    return Check(level, "Average against one sample", value, words[level])


def _error(m: Mapping[str, float]) -> Check | None:
    """The most frequent class may be right more often than an average that finds a few of the rare ones."""
    right, constant, name = m["test/bma/accuracy"], m["test/constant/accuracy"], "Error against a constant"
    if math.isnan(right + constant):
        return None
    value = f"{100 * (1 - right):.3g} %, constant {100 * (1 - constant):.3g} %"
    if right >= constant:
        return Check("ok", name, value, "the average errs no more often than the most frequent class alone")
    words = "the most frequent class alone errs less often: read recall and average precision by class"
    return Check("look", name, value, words)


def _calibration(m: Mapping[str, float]) -> Check | None:
    value = m["test/bma/ece"]
    if math.isnan(value):
        return None
    right, items = m["test/bma/accuracy"], m["test/items"]
    chance = 2 * math.sqrt(over(right * (1 - right), items)) if items > 0 else 0.0  # two standard errors
    ok = min(0.03, max(0.03 * scale(m), 0.0 if math.isnan(chance) else chance))
    level = _grade(value, ok, ok / 0.3)
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
    few = 1.0 if math.isnan(m["test/items"]) else max(1.0, math.sqrt(over(100.0, m["test/items"])))
    level = _grade(value, 0.05 * few, 0.1 * few)  # 100 items that follow the predictions have 0.03 on average
    wide = "wide" if inside > 0.9 else "narrow"
    words = {
        "ok": "the predicted intervals hold as many test values as they should",
        "look": f"the predicted intervals are too {wide} in parts: see the calibration of quantiles",
        "bad": f"the predicted intervals are too {wide}: the likelihood may not suit the data, or the chain is heated",
    }
    return Check(level, "Calibration of intervals", f"90 % hold {100 * inside:.1f} %", words[level])


def _bins(h: EnergyHistogram | None) -> Check | None:
    if h is None:
        return None
    if h.share_outside > 0.05:
        level, words = "look", "psi is constant beyond the bins: widen low and high, or run the pilot again"
    elif not h.frozen:
        level, words = "look", "psi still changes, so importance weights are not meaningful yet"
    else:
        level, words = "ok", "the bins cover the energies, and psi has settled"
    return Check(level, "Energy bins", f"{100 * h.share_outside:.1f} % outside", words)


def _grade(value: float, ok: float, look: float) -> Level:
    return "ok" if value <= ok else "look" if value <= look else "bad"


def repeats(m: Numbers) -> Judgement:
    """Would another run of this budget predict the same?"""
    most, worst, name = m["mcse/most"], m["mcse/worst"], "Monte Carlo error"
    if math.isnan(most):
        words = "the error of the averages was not measured: it needs 2 chains, or 4 samples of one"
        return Judgement("not known", name, "–", words)
    limit = tolerance(m)
    what, unit = ("means", " predictive std") if predicts_numbers(m) else ("probabilities", "")
    value = f"± {most:.2g}{unit}, at worst {worst:.2g}"
    far = f"± {most:.2g}{unit} or less at 9 of 10 items, ± {worst:.2g}{unit} at the worst"
    words = f"predicted {what} differ between runs by {far}"
    if most <= limit:
        return Judgement("trust", name, value, words)
    factor = (most / limit) ** 2
    times = f"{factor:.1f}" if factor < 10 else f"{round_up(factor):,.0f}"
    remedy = f"{times} times as many chains bring this to ± {limit:.2g}{unit}, or as many samples if the chains mix"
    return Judgement("more samples", name, value, f"{words}; {remedy}")


def tolerance(m: Numbers) -> float:
    """The Monte Carlo error that is small enough for most items.

    It costs about the same share of what a constant leaves open, whatever the shares of the classes: p by `scale`, and
    a mean in standard deviations, whose square costs nats, by its root.
    """
    return TOLERANCE_MEAN * math.sqrt(scale(m)) if predicts_numbers(m) else TOLERANCE_P * scale(m)


def scale(m: Mapping[str, float]) -> float:
    """The nats an item that a constant leaves open, in those of two equally frequent classes; 1 at most.

    Where one item in 1,000 is of the rare class, a constant leaves 0.008 nats of 0.69, and limits in nats or in
    probability that suit equal classes are beyond what any prediction could gain. 1 for densities, which have no
    entropy of their own.
    """
    known = (m[f"{split}/constant/entropy"] for split in ("test", "train"))
    entropy = next((entropy for entropy in known if not math.isnan(entropy)), math.nan)
    return 1.0 if math.isnan(entropy) else min(entropy / math.log(2), 1.0)


def margin(m: Mapping[str, float]) -> float:
    """The nats an item from which one NLL counts as better than another."""
    return LEARNT_GAIN * scale(m)


def nats(*values: float) -> list[str]:
    """NLL side by side, with the decimals that the largest of them needs.

    >>> nats(0.3, 0.2), nats(0.0079, 0.00002)
    (['0.300', '0.200'], ['0.00790', '0.00002'])
    """
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    decimals = max(3, 2 - math.floor(math.log10(largest))) if largest > 0 else 3
    return [f"{value:.{decimals}f}" for value in values]


def predicts_numbers(m: Numbers) -> bool:
    return not all(math.isnan(m[f"{split}/bma/rmse"]) for split in ("test", "val", "train"))


def over(a: float, b: float) -> float:
    """a / b for a > 0 and b >= 0, infinite at b = 0."""
    return a / b if b else math.inf


def has_learnt(m: Numbers) -> bool:
    """Is the average better than even the constant that has seen the test data, by `margin` or by SURE errors?"""
    constant = m["test/constant/nll"] if math.isnan(m["test/constant/least"]) else m["test/constant/least"]
    gain = constant - m["test/bma/nll"]
    return gain > 0 and (gain >= margin(m) or gain > SURE * m["test/constant/gain_se"])


def has_no_temperature(m: Numbers) -> bool:
    """Optimisation, and draws that were made after training: no chain that could come to rest at some T."""
    return m["approximation"] == 1 or not math.isnan(m["elbo"]) or not m["temperature"] > 0


def energy_drifts(m: Mapping[str, float]) -> bool:
    """Does the energy surely move from the first half of the draws to the second?"""
    return abs(m["energy/drift"]) > ENERGY_DRIFT and abs(m["energy/drift_t"]) > ENERGY_DRIFT_T


def alone(m: Mapping[str, float]) -> float:
    """The independent draws that a chain has made by itself, on average; 0 where chains differ and have not moved."""
    unmoved = "ess/within" in m and math.isnan(m["ess/within"]) and not math.isnan(m["ess/min"])
    return 0.0 if unmoved else m["ess/within"] / m["chains"]


def round_up(value: float) -> float:
    """The value, rounded up to two digits."""
    unit = 10.0 ** max(math.floor(math.log10(value)) - 1, 0) if value > 0 else 1.0
    return math.ceil(value / unit) * unit
