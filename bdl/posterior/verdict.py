"""The verdict on a run: would another run predict the same, is this the target that was asked for, what is it worth?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bdl.display import Shown
from bdl.posterior.energy_histogram import EnergyHistogram
from bdl.posterior.heads import HEAD_KINDS, Head, head_of, judge_simple, judge_single, judge_start, of_temperature
from bdl.posterior.judge_law import by_direction, shown_temperatures
from bdl.posterior.judge_modes import samples_needed
from bdl.posterior.judge_rest import repeats_at_rest
from bdl.posterior.judge_target import judge_target
from bdl.posterior.judge_weights import at_target
from bdl.posterior.judgements import (
    PARAMETERS,
    Check,
    Judgement,
    Level,
    Numbers,
    VerdictOutcome,
    or_nan,
)
from bdl.posterior.notes import notes


@dataclass(frozen=True, repr=False)
class Verdict(Shown):
    """The answers to the two questions, and all checks of a run.

    `outcome` is "trust" only where both answers are yes: several modes that every run averages alike pass the first
    question and not the second. `worth` holds what decides where both answers are yes: a posterior may predict worse
    than its start. `needed` is the number of samples, as far apart as these, that would be enough if the chains mixed;
    NaN where it is unknown.
    """

    repeats: Judgement
    target: Sequence[Judgement]
    worth: Sequence[Judgement]
    notes: Sequence[Check]
    needed: float
    metrics: Numbers

    @property
    def decisive(self) -> Judgement:
        """The worst judgement, the first of equals; that on the target before that on the predictions."""
        return max((*self.target, self.repeats, *self.worth), key=lambda judgement: judgement.severity)

    @property
    def head(self) -> Head:
        """What the run is worth."""
        return head_of(self.metrics, self.decisive, self.repeats)

    def shown(self) -> tuple[str, Mapping[str, str]]:
        return self.line, dict(self.answers)

    @property
    def outcome(self) -> VerdictOutcome:
        return self.decisive.outcome

    @property
    def level(self) -> Level:
        return self.decisive.level

    @property
    def checks(self) -> list[Check | Judgement]:
        return [self.repeats, *self.target, *self.worth, *self.notes]

    @property
    def answers(self) -> list[tuple[str, str]]:
        """(question, answer) in words."""
        worst = self._worst_of_target
        where = "in every direction that was measured" if by_direction(self.metrics) else "on average over directions"
        agree = f"the temperature is T {where}, and the chains agree{of_temperature(self.metrics)}"
        same = "find the same" if PARAMETERS in self.metrics else "predict the same"
        both = agree if worst.outcome == "trust" else worst.words
        return [
            (f"Would another run of this budget {same}?", _answer(self.repeats.outcome, self.repeats.words)),
            ("Is this the target distribution that was asked for?", _answer(worst.outcome, both)),
        ]

    @property
    def lights(self) -> tuple[Level, Level]:
        """The level of each of the `answers`."""
        return self.repeats.level, self._worst_of_target.level

    @property
    def line(self) -> str:
        """One line: the outcome and its reason."""
        head = self.head
        reason = f"{head.title}: {head.sentence}" if head.kind == "good ensemble" else head.sentence
        many = self.outcome == "more samples" and not math.isnan(self.needed)
        needed = f"; about {self.needed:,.0f} samples in all, as far apart as these, would do" if many else ""
        return f"verdict: {self.outcome}. {reason}{needed}"

    @property
    def numbers(self) -> dict[str, float]:
        """For metrics.json: places in `OUTCOMES` and `HEAD_KINDS`, the answers as 1 or 0, and the samples needed."""
        return {
            "verdict/outcome": self.decisive.severity,
            "verdict/head": HEAD_KINDS.index(self.head.kind),
            "verdict/repeats": float(self.repeats.outcome == "trust"),
            "verdict/law": float(self._worst_of_target.outcome == "trust"),
            "verdict/samples_needed": self.needed if self.outcome == "more samples" else math.nan,
        }

    @property
    def _worst_of_target(self) -> Judgement:
        return max(self.target, key=lambda judgement: judgement.severity)


def verdict(
    metrics: Mapping[str, float | None], histogram: EnergyHistogram | None = None, warnings: Sequence[str] = ()
) -> Verdict:
    """The verdict from flat metrics, as in metrics.json; any may be missing or null. Only `notes` read the rest.

    metrics: with the `seconds` of the run, the advice to take longer has a time.
    """
    m = at_target(or_nan(metrics))
    target = judge_target(m)
    worth = [judgement for judgement in (judge_start(m), judge_single(m), judge_simple(m)) if judgement]
    shown = [*shown_temperatures(m), *notes(m, histogram, warnings)]
    if any(judgement.outcome != "trust" for judgement in target):
        shown = [*(Check(j.level, j.name, j.value, j.words) for j in worth), *shown]
        worth = []
    return Verdict(repeats_at_rest(m), target, worth, shown, samples_needed(m), m)


def _answer(outcome: VerdictOutcome, words: str) -> str:
    return f"{'yes' if outcome == 'trust' else 'not known' if outcome == 'not known' else 'no'}: {words}"
