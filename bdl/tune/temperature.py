"""T by the predictions of trials at several temperatures, each as hot as its batches make it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from bdl.tune.choice import Choice

TEMPERATURES_TRIED = (1.0, 0.3, 0.1, 0.03)  # T, from the Bayes posterior to colder ones
CLEAR = 2.0  # standard errors by which the best must be better for a hotter candidate to lose to it
GAIN = 0.01  # nats an item, by which it must be better too: colder chains come to rest later
# Steps of a trial: cold chains stay near a good start for longer, and seem better until then. MCLMC and the like, whose
# runs have fewer steps, have a limit of their own
SHORTEST_RUN = 4000


class Temperatures(NamedTuple):
    """Trials from one start, by the temperature T of each, from hot to cold."""

    scores: Mapping[float, Tensor]  # (n,) negative log densities of the validation items
    reached: Mapping[float, float]  # T_eff


def choose_temperature(scores: Mapping[float, Tensor], reached: Mapping[float, float]) -> Choice:
    """The T that `hottest_good` finds.

    scores: (n,) negative log densities of the validation items by T, of the trials that came to rest. reached: T_eff of
    each trial, which is what its predictions show.
    """
    return Choice("temperature", hottest_good(scores), temperatures_in_words(scores, reached))


def hottest_good(scores: Mapping[float, Tensor]) -> float:
    """The first candidate, from hot to cold, that is not worse than the best by CLEAR standard errors and by GAIN.

    Cold chains fit the data soonest, and a trial is short: what is about as good in it is better in a run, whose chains
    have the time to spread. Colder ones may also predict too narrowly for rare items that no trial saw.

    scores: (n,) negative log densities of the validation items by candidate.
    """
    best = min(scores.values(), key=lambda nll: float(nll.mean()))
    return next(name for name, nll in scores.items() if not _is_clearly_above(nll, best))


def _is_clearly_above(nll: Tensor, best: Tensor) -> bool:
    loss = nll - best
    error = float(loss.std() / math.sqrt(len(loss))) if len(loss) > 1 else 0.0
    return float(loss.mean()) > max(CLEAR * error, GAIN)


def temperatures_in_words(scores: Mapping[float, Tensor], reached: Mapping[float, float]) -> str:
    """The mean score of each trial, in nats, and its T_eff, in words; and which trials have none."""
    values = ", ".join(f"{float(nll.mean()):.3f}" for nll in scores.values())
    temperatures = ", ".join(f"{reached[temperature]:.3g}" for temperature in scores)
    moving = ", ".join(f"{t:.3g}" for t in reached if t not in scores)
    left_out = f"; {moving} had not come to rest" if moving else ""
    return f"validation NLL {values} at T_eff {temperatures}{left_out}"
