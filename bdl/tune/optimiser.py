"""The lr of an optimiser: that of the trial whose networks predict held-out items best."""

from __future__ import annotations

import math

from torch import Tensor

from bdl.errors import DivergedError
from bdl.samplers.dynamics.base import Transition
from bdl.samplers.priors import Prior
from bdl.tune.choice import Choice
from bdl.tune.score import Score, clear_winner
from bdl.tune.trial import SMALLER, Items, Problem, Trial

CANDIDATES = (0.1, 0.03, 0.01, 0.003, 0.001, 3e-4, 1e-4, 3e-5)  # lr
SCORED = 10  # times in the second half of a trial that its networks are scored


def choose_lr_of_optimiser(problem: Problem, dynamics: Transition, prior: Prior, held_out: Items, steps: int) -> Choice:
    """The largest lr that is safe, unless a smaller candidate is better by more than a standard error.

    Safe is at most a quarter of every lr that diverged: a run is longer than a trial, and meets steeper places. Each
    trial takes so many steps from the problem's start. Its score is that of the average over its second half, as a
    baseline such as SWAG averages. Raises DivergedError where every candidate diverges.
    """
    scores: dict[float, Tensor] = {}
    diverged = math.inf
    for lr in CANDIDATES:
        trial, score = Trial(problem, dynamics, prior, lr, f"lr {lr}"), Score(held_out)
        try:
            trial.run(steps - steps // 2)
            trial.run(steps // 2, score, max(1, steps // 2 // SCORED))
            scores[lr] = score.nll
        except DivergedError:
            diverged = min(lr, diverged)
            if lr == CANDIDATES[-1]:
                raise
    safe = {lr: nll for lr, nll in scores.items() if lr <= diverged / SMALLER} or scores
    values = ", ".join(f"{float(nll.mean()):.3f}" for nll in safe.values())
    reason = f"validation NLL {values} at lr {', '.join(f'{lr:g}' for lr in safe)}"
    return Choice("lr", clear_winner(safe), reason + (f"; {diverged:g} diverged" if math.isfinite(diverged) else ""))
