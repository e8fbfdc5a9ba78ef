"""What a run is worth, in one head: a posterior, a good ensemble, a prior that does not fit, open, or broken."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from bdl.posterior.judge_law import by_direction, sampled_temperature
from bdl.posterior.judgements import (
    FEW_ITEMS,
    LEVELS_OF,
    Judgement,
    Level,
    Numbers,
    VerdictOutcome,
    has_learnt,
    has_no_temperature,
    margin,
    nats,
    tolerance,
)

HeadKind = Literal["posterior", "good ensemble", "prior does not fit", "open", "broken"]
HEAD_KINDS: tuple[HeadKind, ...] = get_args(HeadKind)
SIMPLE = {"linear": "a linear model", "gp": "a Gaussian process"}
NEVER_PREDICTED = "test/never_predicted/"  # the beginning of metrics: items of a class, by its name
NAMED = 3  # classes that the head names
NEARLY = 2.5  # times the tolerance of the Monte Carlo error: 0.05 at p = 1/2 costs 0.005 nats, half of LEARNT_GAIN
OTHER_LAWS: tuple[VerdictOutcome, ...] = ("another temperature", "no posterior", "ensemble over modes")
TITLES: dict[VerdictOutcome, str] = {
    "trust": "You can trust these samples",
    "more samples": "More samples are needed",
    "not known": "Whether to trust these samples is not known",
    "prior does not fit": "Worse than a simpler predictor: the prior does not fit",
    "ensemble over modes": "An ensemble over modes",
    "not at rest": "Not at rest: the run is too short",
    "another temperature": "Not the posterior: another temperature",
    "no posterior": "These are not samples of a posterior",
    "broken": "Do not use these samples",
}


@dataclass(frozen=True)
class Head:
    """What a report, the terminal and the estimators say first."""

    kind: HeadKind
    level: Level
    title: str
    sentence: str  # the reason


def head_of(m: Numbers, decisive: Judgement, repeats: Judgement) -> Head:
    """The head of a run whose decisive judgement this is. It names the classes that the average never predicts."""
    head = _head_of(m, decisive, repeats)
    return replace(head, sentence=f"{head.sentence}{of_never_predicted(m)}")


def of_never_predicted(m: Numbers) -> str:
    """Classes of the test data that are the most probable one of no item, after a semicolon; else nothing."""
    items = {name.removeprefix(NEVER_PREDICTED): int(count) for name, count in m.items() if NEVER_PREDICTED in name}
    if not items:
        return ""
    first = [f"{name} (recall 0 of {count:,})" for name, count in list(items.items())[:NAMED]]
    more = f" and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return f"; never predicted: class {', '.join(first)}{more}. Rank by probability, or choose a threshold"


def _head_of(m: Numbers, decisive: Judgement, repeats: Judgement) -> Head:
    outcome, level = decisive.outcome, LEVELS_OF[decisive.outcome]
    if outcome == "trust":
        return Head("posterior", level, TITLES[outcome], f"{repeats.words}{of_temperature(m)}")
    if outcome in OTHER_LAWS and predicts_well(m):
        law = "a posterior" if not m["temperature"] > 0 else f"the posterior at T = {m['temperature']:.3g}"
        return Head("good ensemble", level, f"A good ensemble, not {law}", _good(m, decisive, repeats))
    kinds: dict[VerdictOutcome, HeadKind] = {"prior does not fit": "prior does not fit", "broken": "broken"}
    title = TITLES[outcome]
    if outcome == "prior does not fit":
        title = f"Worse than {decisive.name.removeprefix('Average against ')}: the prior does not fit"
    return Head(kinds.get(outcome, "open"), level, title, f"{decisive.name}: {decisive.words}")


def of_temperature(m: Numbers) -> str:
    """What another T than 1 means, after a semicolon; nothing at T = 1, for an optimiser, or where T is not known."""
    temperature = m["temperature"]
    if math.isnan(temperature) or temperature in (0, 1):
        return ""
    return f"; at T = {temperature:.3g} each item counts {1 / temperature:.3g} times"


def predicts_well(m: Numbers) -> bool:
    """Does the average beat one network and a constant on test data, keep up with the start, and nearly repeat?

    Another run may differ by NEARLY times the tolerance. That costs less than `margin`, the lead of the average.
    """
    average, items = m["test/bma/nll"], m["test/items"]
    if math.isnan(average) or items < FEW_ITEMS or not has_learnt(m):
        return False
    better = average <= single_network(m) - margin(m)
    return better and not is_worse_than_start(m) and m["mcse/most"] <= NEARLY * tolerance(m)


def single_network(m: Numbers) -> float:
    """The NLL of single networks on test data: of the last ten of each chain, or of the last one."""
    ten = m["test/last_ten/nll"]
    return m["test/one_sample/nll"] if math.isnan(ten) else ten


def is_worse_than_start(m: Numbers) -> bool:
    """Is the average worse than the ensemble at which the chains began, by `margin` and two standard errors?

    The standard error is of the differences item by item, where they are known.
    """
    error = m["test/start/gain_se"]
    return m["test/bma/nll"] - m["test/start/nll"] > max(margin(m), 0.0 if math.isnan(error) else 2 * error)


def judge_start(m: Numbers) -> Judgement | None:
    """A posterior that is wider than the ensemble of its modes may predict worse (Wenzel et al. 2020)."""
    start, average, name = m["test/start/nll"], m["test/bma/nll"], "Average against its start"
    if math.isnan(start + average):
        return None
    value = "NLL {} → {}".format(*nats(start, average))
    if not is_worse_than_start(m):
        return Judgement("trust", name, value, "sampling did not make the predictions worse")
    words = (
        "the ensemble at which the chains began predicts better: this posterior is too wide for the data, or heated. "
        "Use the ensemble, or take a lower T, a tighter or a learned prior"
    )
    return Judgement("prior does not fit", name, value, words)


def judge_simple(m: Numbers) -> Judgement | None:
    """A linear model or a Gaussian process that predicts better by two standard errors, and `margin`."""
    average = m["test/bma/nll"]
    known = {name: m[f"test/simple/{name}/nll"] for name in SIMPLE}
    known = {name: nll for name, nll in known.items() if not math.isnan(nll + average)}
    if not known:
        return None
    best = min(known, key=lambda name: known[name])
    gain, error = average - known[best], m[f"test/simple/{best}/gain_se"]
    *texts, own = nats(*known.values(), average)
    value = ", ".join(f"{SIMPLE[name]} {nll}" for name, nll in zip(known, texts, strict=True)) + f"; NLL {own}"
    if not gain > max(margin(m), 0.0 if math.isnan(error) else 2 * error):
        return Judgement("trust", "Average against simple models", value, "none predicts better than the average")
    words = f"{SIMPLE[best]} would be better here: NLL {nats(known[best])[0]} on the test rows, in a second"
    return Judgement("prior does not fit", f"Average against {SIMPLE[best]}", value, words)


def judge_single(m: Numbers) -> Judgement | None:
    """An average that is worse than single networks, although the law is right."""
    one, average, name = single_network(m), m["test/bma/nll"], "Average against one network"
    if not average > one + margin(m) + 0.01 * abs(one):  # the NLL of numbers may be large
        return None
    words = "one network predicts better than the average over all: take a lower T, or another prior"
    return Judgement("prior does not fit", name, "NLL {} → {}".format(*nats(one, average)), words)


def _good(m: Numbers, decisive: Judgement, repeats: Judgement) -> str:
    """What the predictions are better than, and what differs from the posterior."""
    score = "NLL {} → {}".format(*nats(single_network(m), m["test/bma/nll"]))
    than = "" if math.isnan(m["test/start/nll"]) else ", no worse than its start"
    better = f"use its predictions: they are better than those of one network ({score}){than}, and than a constant"
    unknown = repeats.outcome == "not known"
    differs = "how far another run would differ is not known" if unknown else "another run would differ"
    again = "" if repeats.outcome == "trust" else f"; {differs}: {repeats.words.partition(';')[0]}"
    heated = decisive.outcome == "another temperature" and not has_no_temperature(m)
    by_batches = m["noise_ratio"] > 1 and not by_direction(m) and m["kinetic_temperature"] > m["temperature"]
    has = "batches heat the samples to" if by_batches else "the samples have"
    differs = f"{has} {sampled_temperature(m)} ({decisive.name})" if heated else decisive.words
    return f"{better}{again}. What differs: {differs}"
