"""Are the chains at rest? What each chain's own draws and the energy say, and how much longer a run has to be."""

from __future__ import annotations

import math
from dataclasses import replace

from bdl.display import count_of
from bdl.posterior.judge_modes import stuck
from bdl.posterior.judgements import (
    COUNTED,
    ESS,
    REST,
    Judgement,
    Numbers,
    alone,
    energy_drifts,
    has_no_temperature,
    repeats,
)

FRESH = 3.0  # draws for each independent one, up to which a small ESS comes from few draws and not from slow chains
LONGEST_RUN = 100.0  # lengths of the run: beyond them another sampler is the better advice
AGAIN = 2.0  # lengths of a run whose energy alone still drifts: half of it is then left out


def judge_rest(m: Numbers) -> Judgement | None:
    """A chain that has come back to where it was only a few times may still be on its way."""
    each = alone(m)
    if math.isnan(each) or has_no_temperature(m):
        return None
    value = f"ESS {each:.2g} a chain"
    if is_long_enough(m):
        fresh = m["samples"] / m["chains"] <= FRESH * each
        few = "has few draws, and hardly two of them are alike" if fresh else f"has made {each:.2g} independent draws"
        many = "has made many independent draws" if each >= REST else few
        return Judgement("trust", "Rest", value, f"each chain alone {many}")
    words = f"each chain alone has made {each:.2g} independent draws: {take_longer(m)}"
    return Judgement("not at rest", "Rest", value, words)


def is_long_enough(m: Numbers) -> bool:
    """False where the own ESS of a chain is small although it has many draws; True where nothing tells.

    True too where modes keep the chains apart, which more steps do not mend.
    """
    draws = m["samples"] / m["chains"]
    return stuck(m) or not (alone(m) < REST and not draws <= FRESH * alone(m))


def is_at_rest(m: Numbers) -> bool:
    return is_long_enough(m) and not energy_drifts(m)


def is_on_its_way(m: Numbers) -> bool:
    """Not at rest, and not diverging either: the energy does not surely rise."""
    return not is_at_rest(m) and not (energy_drifts(m) and m["energy/drift"] > 0)


def repeats_at_rest(m: Numbers) -> Judgement:
    """As `repeats`, but a run that is too short says so, and not how many chains or samples would do.

    The spread between chains that are still on their way is none of the posterior, and a single chain that has not come
    back to where it was does not even know its own.
    """
    judged = repeats(m)
    if is_at_rest(m) or has_no_temperature(m) or math.isnan(m["mcse/most"]):
        return judged
    longer = f"the run is too short to say how many samples would do: {take_longer(m)}"
    if judged.outcome == "more samples":
        return replace(judged, words=f"{judged.words.partition(';')[0]}; {longer}")
    if m["chains"] == 1:
        return replace(judged, outcome="not known", words=f"one chain does not know its error yet: {take_longer(m)}")
    return judged


def lengths(m: Numbers) -> float:
    """How many times this run's length may do; NaN where the chains are at rest.

    Each chain alone needs REST independent draws, and all together ESS. Below COUNTED draws a chain's ESS is not known:
    this is then the least after which it can be.
    """
    if is_at_rest(m):
        return math.nan
    if is_long_enough(m):
        return AGAIN
    each = max(alone(m), 1.0)
    for_all = ESS / (each * m["chains"]) if each >= COUNTED else 0.0
    return min(math.ceil(max(AGAIN, REST / each, for_all)), LONGEST_RUN)


def take_longer(m: Numbers) -> str:
    """The advice, with a time where the `seconds` of the run are known."""
    least = "at least " if alone(m) < COUNTED else "about "
    seconds = lengths(m) * m["seconds"]
    time = "" if math.isnan(seconds) else f" ({duration(seconds)})"
    return f"take {least}{lengths(m):.0f} times the length{time}"


def duration(seconds: float) -> str:
    """A time, rounded.

    >>> duration(1), duration(700), duration(9000)
    ('1 second', '12 minutes', '2.5 hours')
    """
    if seconds < 90:
        return count_of(round(seconds), "second")
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.2g} hours"
