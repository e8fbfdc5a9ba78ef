"""Judgements, the outcomes that they lead to, and the answer to the verdict's first question.

All limits were chosen on simulated runs with known target distributions: docs/verdict.md has the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from bdl.posterior.checks import Check, Level, Numbers, lr_has_room

VerdictOutcome = Literal[
    "trust", "more samples", "not known", "ensemble over modes", "not mixing", "no posterior", "broken"
]
LEVELS_OF: dict[VerdictOutcome, Level] = {  # from best to worst
    "trust": "ok",
    "more samples": "look",
    "not known": "look",
    "ensemble over modes": "look",
    "not mixing": "look",
    "no posterior": "look",
    "broken": "bad",
}
OUTCOMES: tuple[VerdictOutcome, ...] = tuple(LEVELS_OF)

TOLERANCE_P = 0.02  # a shift of p = 1/2 by .02 costs .0008 nats
TOLERANCE_MEAN = 0.1  # predictive standard deviations; a shift by .1 costs .005 nats
ESS = 200.0  # the smallest of all items; 400 where converged, 145 at most with a burn-in that nothing else shows
TAIL = 100.0  # the smallest of all items; quantiles of 5 % rest on a twentieth of the draws
STUCK = 20.0  # times the budget: few would run that long, and so few draws cannot tell slow chains from stuck ones
APART = 3.0  # ESS of chains alone over together; 1.3 where converged, 3.8 at least with modes 1/2 std apart


@dataclass(frozen=True)
class Judgement:
    """What one check says of a question."""

    outcome: VerdictOutcome
    name: str
    value: str
    words: str

    @property
    def check(self) -> Check:
        return Check(LEVELS_OF[self.outcome], self.name, self.value, self.words)


def repeats(m: Numbers) -> Judgement:
    """Would another run of this budget predict the same?"""
    most, worst, name = m["mcse/most"], m["mcse/worst"], "Monte Carlo error"
    if math.isnan(most):
        words = "the error of the averages was not measured: it needs 2 chains, or 4 samples of one"
        return Judgement("not known", name, "–", words)
    limit = tolerance(m)
    what, unit = ("a mean", " predictive std") if predicts_numbers(m) else ("p", "")
    value = f"± {most:.2g}{unit}, at worst {worst:.2g}"
    words = f"{what} moves by ± {most:.2g}{unit} or less at 9 of 10 items, by ± {worst:.2g}{unit} at the worst"
    if most <= limit:
        return Judgement("trust", name, value, words)
    factor = _times((most / limit) ** 2)
    remedy = f"{factor} times the chains bring it to ± {limit:g}{unit}"
    return Judgement("more samples", name, value, f"{words}; {remedy}, and so do as many samples if the chains mix")


def tolerance(m: Numbers) -> float:
    """The Monte Carlo error that is small enough for most items."""
    return TOLERANCE_MEAN if predicts_numbers(m) else TOLERANCE_P


def predicts_numbers(m: Numbers) -> bool:
    return not all(math.isnan(m[f"{split}/bma/rmse"]) for split in ("test", "val", "train"))


def samples_needed(m: Numbers) -> float:
    """How many samples make the ESS of every item, and the Monte Carlo error, large and small enough; NaN: unknown."""
    parts = [ESS / m["ess/min"], TAIL / m["ess/tail_min"], (m["mcse/most"] / tolerance(m)) ** 2]
    known = [part for part in parts if math.isfinite(part)]
    return _round_up(m["samples"] * max(known)) if known and math.isfinite(m["samples"]) else math.nan


def stuck(m: Numbers) -> bool:
    """Would samples alone take too long, or do the chains disagree although each has moved far enough by itself?"""
    return m["ess/min"] * STUCK < ESS or surely_apart(m)


def surely_apart(m: Numbers) -> bool:
    """Are the chains further apart than chance makes the worst of 50 items?

    APART (1 + 3 / (chains - 1)) follows the quantile 1 - .02/50 of a χ² law over its chains - 1 degrees of freedom, by
    which the variance between few chains scatters: 12.5 for 2 chains, 6.1 for 4, 3.8 for 8.
    """
    return m["ess/within"] > APART * (1 + 3 / (m["chains"] - 1 or math.nan)) * m["ess/min"]


def apart(m: Numbers, name: str, value: str) -> Judgement:
    """The judgement on chains that stay in different parts: whether their average repeats makes the difference."""
    if repeats(m).outcome == "trust":
        words = "an ensemble over modes: predictions repeat; weights between modes are not known"
        return Judgement("ensemble over modes", name, value, words)
    faster = "raise lr, " if lr_has_room(m) else ""
    words = (
        f"each chain stays in a part of the target distribution: {faster}try cycles or another start, or average "
        "many more chains, whose average at least repeats"
    )
    return Judgement("not mixing", name, value, words)


def _times(factor: float) -> str:
    return f"{factor:.1f}" if factor < 10 else f"{_round_up(factor):,.0f}"


def _round_up(value: float) -> float:
    """The value, rounded up to two digits."""
    unit = 10.0 ** max(math.floor(math.log10(value)) - 1, 0) if value > 0 else 1.0
    return math.ceil(value / unit) * unit
