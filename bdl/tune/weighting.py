"""Adaptive weighting: how cold it is to sample, and the zeta and the bins that lead there.

Under form="full", the multiplier is 1 + zeta T / (width of a bin) while the energies stay above the lower one of two
bins. psi^zeta is then a straight line, and the weighted distribution that of exp(-U/T') with T' = T over the
multiplier. So a temperature T' that predicts best names zeta, and energies that trials saw name the bins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from bdl.samplers.weighting.base import Weighting
from bdl.samplers.weighting.weightings import HistogramWeighting
from bdl.tune.choice import Choice
from bdl.tune.temperature import hottest_good, temperatures_in_words

FORM = "full"  # see AdaptiveWeight
FLOOR_BELOW = 10.0  # ranges of the energies of all trials by which the floor lies below them


@dataclass(frozen=True)
class Temperatures:
    """Trials from one start, by the temperature T' of each, from hot to cold.

    Args:
        scores: (n,) negative log densities of the validation items.
        reached: T_eff.
        energies: (C, steps) of all steps, nats, of the kind that a step sees: of a batch, or of all items.
    """

    scores: Mapping[float, Tensor]
    reached: Mapping[float, float]
    energies: Mapping[float, Tensor]

    def level(self, temperature: float) -> float:
        """The median energy of the later half of a trial, nats."""
        energies = self.energies[temperature]
        return float(energies[:, energies.shape[1] // 2 :].median())

    def depth(self, coldest: float) -> float:
        """Nats by which log G falls from the energies of the first trial to those of a colder one.

        By thermodynamic integration: log G has the slope 1/T' - 1/T at the energies of a trial at T', T the first.
        Trapezoids between the trials.
        """
        temperatures = [t for t in self.scores if t >= coldest]
        slopes = [1 / self.reached[t] - 1 / self.reached[temperatures[0]] for t in temperatures]
        falls = [self.level(a) - self.level(b) for a, b in zip(temperatures, temperatures[1:], strict=False)]
        return sum(fall * (a + b) / 2 for fall, a, b in zip(falls, slopes, slopes[1:], strict=False))


def choose_weighting(trials: Temperatures) -> tuple[Choice, float]:
    """zeta, the edges of two bins and their form; and the multiplier, which is 1 where no colder chains predict better.

    Where the bins meet the weighting lets go: chains that stay lower lose their multiplier. A run is longer than a
    trial and goes on falling, on a table of 1,202 rows by several times the range of all trials. So the bins meet
    FLOOR_BELOW such ranges under the lowest energy of a trial; the upper bin holds all energies above.
    """
    first, best = next(iter(trials.scores)), hottest_good(trials.scores)
    scores = temperatures_in_words(trials.scores, trials.reached)
    if best == first:
        why = f"{scores}: colder chains do not predict clearly better, so that the weighting changes little"
        return Choice("weighting", {"zeta": 1.0}, why), 1.0
    lowest = min(float(energies.min()) for energies in trials.energies.values())
    highest = max(float(energies.max()) for energies in trials.energies.values())
    meet, multiplier = lowest - FLOOR_BELOW * (highest - lowest), first / best
    width = highest - meet
    zeta = (1 / best - 1 / first) * width
    levels = f"{trials.level(first):,.5g} to {trials.level(best):,.5g}"
    reason = (
        f"{scores}; the gradient is multiplied by 1 + zeta T / {width:.4g} = {multiplier:.3g}, as if T were "
        f"{best:.3g}; energies fall from {levels} nats, and log G by about {trials.depth(best):,.3g}"
    )
    return Choice("weighting", {"zeta": zeta, "edges": [meet - width, meet, highest], "form": FORM}, reason), multiplier


def in_trials(weighting: Weighting) -> Any:
    """The weighting as a trial has it: on energies of its batches, because those of all data would cost too much."""
    if not isinstance(weighting, HistogramWeighting) or weighting.energy == "batch":
        return weighting
    return replace(weighting, energy="batch", refresh=1)
