"""Candidates compared by the predictions that trials make for items which they have not seen."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bdl.likelihoods import Likelihood
from bdl.tune.trial import Trial, TrialItems


@dataclass
class Score:
    """The log density of validation items under the average of what a trial's chains predict.

    Args:
        total: (n,) log of the summed densities of all networks so far.
        networks: how many.
        weights: (n,) of the items; None for 1 each.
    """

    items: TrialItems
    total: Tensor | None = None
    networks: int = 0
    weights: Tensor | None = None
    seen: list[Tensor] = field(default_factory=list)  # (C, n) log densities under each chain's network at a time

    @torch.no_grad()
    def __call__(self, trial: Trial) -> None:
        """Add the networks at which the chains stand."""
        (x, y), loss = self.items, trial.problem.loss
        outputs = trial.outputs(x)
        if isinstance(loss, Likelihood):
            y, self.weights = loss.split(y)
            losses = loss.unweighted(outputs, y.expand(len(outputs), *y.shape)).double()
            self.seen.append(-losses.flatten(2).mean(-1) if losses.ndim > 2 else -losses)
            log_density = (-losses).logsumexp(0)
        else:  # only the mean over items is known
            log_density = -torch.stack([loss(o, y) for o in outputs]).double().mean().reshape(1)
        log_density = log_density.nan_to_num(nan=-math.inf)
        self.total = log_density if self.total is None else torch.logaddexp(self.total, log_density)
        self.networks += len(outputs) if isinstance(loss, Likelihood) else 1

    @property
    def nll(self) -> Tensor:
        """(n,) negative log density of every item, nats, times its weight."""
        assert self.total is not None
        nll = math.log(self.networks) - self.total
        return nll if self.weights is None else nll * self.weights

    @property
    def rhat(self) -> float:
        """R-hat that one item in ten exceeds, of its log density (Gelman and Rubin 1992); NaN for a single chain."""
        if len(self.seen) < 2 or len(self.seen[0]) < 2:
            return math.nan
        draws = torch.stack(self.seen)  # (times, C, n)
        within, between = draws.var(0).mean(0), draws.mean(0).var(0)
        return float((1 + between / within.clamp_min(1e-12)).sqrt().quantile(0.9))


def clear_winner(scores: dict[Any, Tensor], errors: float = 1.0) -> Any:
    """The candidate with the lowest score, if it is better than the first by more than so many standard errors.

    A wrong choice among candidates that are about equal costs little.

    scores: (n,) negative log densities of the validation items by candidate.
    """
    first = next(iter(scores))
    best = min(scores, key=lambda name: float(scores[name].mean()))
    gain = scores[first] - scores[best]
    error = float(gain.std() / math.sqrt(len(gain))) if len(gain) > 1 else 0.0
    return best if float(gain.mean()) > errors * error else first
