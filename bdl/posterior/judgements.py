"""Judgements, the outcomes that they lead to, and the answer to the verdict's first question.

All limits were chosen on simulated runs with known target distributions: docs/verdict.md has the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from bdl.display import figures

Level = Literal["ok", "look", "bad"]
LEVELS: tuple[Level, ...] = ("ok", "look", "bad")  # from best to worst
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
PARAMETERS = "parameters"  # metric: how many numbers of named parameters were compared, in place of predictions


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


def or_nan(metrics: Mapping[str, float | None]) -> Numbers:
    """The metrics, with NaN for null and for absent values."""
    return Numbers({k: math.nan if v is None else float(v) for k, v in metrics.items()})


def repeats(m: Numbers) -> Judgement:
    """Would another run of this budget predict the same?"""
    most, worst, name = m["mcse/most"], m["mcse/worst"], "Monte Carlo error"
    if math.isnan(most):
        words = "the error of the averages was not measured: it needs 2 chains, or 4 samples of one"
        return Judgement("not known", name, "–", words)
    limit = tolerance(m)
    what, unit = ("predicted means", " predictive std") if predicts_numbers(m) else ("predicted probabilities", "")
    what, unit = ("posterior means", " posterior std") if PARAMETERS in m else (what, unit)
    value = f"± {figures(most, 2)}{unit}, at worst {figures(worst, 2)}"
    where = PARAMETERS if PARAMETERS in m else "items"
    far = f"± {figures(most, 2)}{unit} or less at 9 of 10 {where}, ± {figures(worst, 2)}{unit} at the worst"
    words = f"{what} differ between runs by {far}"
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
    in_stds = PARAMETERS in m or predicts_numbers(m)
    return TOLERANCE_MEAN * math.sqrt(scale(m)) if in_stds else TOLERANCE_P * scale(m)


def compared(m: Mapping[str, float]) -> str:
    return PARAMETERS if PARAMETERS in m else "predictions"


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


def predicts_numbers(m: Mapping[str, float]) -> bool:
    return any(name.endswith("/rmse") for name in m)


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
