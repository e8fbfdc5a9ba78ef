"""The lr of an optimiser: that of the trial whose networks predict held-out items best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bdl.errors import ConfigError, DivergedError
from bdl.samplers.dynamics.base import Transition
from bdl.samplers.priors.base import Prior
from bdl.samplers.weighting.base import AUTO, Weighting
from bdl.tune.choice import Choice
from bdl.tune.score import Score, clear_winner
from bdl.tune.trial import SMALLER, Problem, Trial, TrialItems
from bdl.tune.weighting import Explored
from bdl.tune.work import trial_steps

RATES_TRIED = (0.1, 0.03, 0.01, 0.003, 0.001, 3e-4, 1e-4, 3e-5)  # lr
BATCH = 100  # items of a batch where none is given
SPIKE = 2.0  # nats an item by which a loss above that of the start counts as diverged
STILL = 1e-9  # lr
FEWEST_STEPS = 100  # of a trial; in 20 steps an lr passed that diverged in 44
OPTIMISER_SCORES = 10  # times in the second half of a trial that its networks are scored


def is_optimiser(dynamics: Transition, temperature: float | None) -> bool:
    """Whether no noise moves the chains."""
    return not dynamics.variational and (not dynamics.noisy or temperature == 0)


def batches_of_optimiser(problem: Problem, given: Mapping[str, Any]) -> Problem:
    """The problem at T = 0, in batches also of few items: full ones would leave SWAG nothing to average."""
    return replace(problem, batch_size=min(given.get("batch_size") or BATCH, problem.count), temperature=0.0)


def choose_for_optimiser(
    problem: Problem,
    dynamics: Transition,
    weighting: Weighting,
    given: Mapping[str, Any],
    held_out: TrialItems,
    steps: int,
) -> tuple[Choice, ...]:
    """The lr, unless it is given, and no weighting where its zeta is to be found. steps: of the run.

    Raises ConfigError without a given prior.
    """
    plain = Explored.plain("an optimiser has no distribution to weight").choices
    of_weighting = plain if weighting.zeta == AUTO else ()
    if "lr" in given:
        return of_weighting
    if "prior" not in given:
        raise ConfigError(f"tune=auto finds no prior for {dynamics}, an optimiser: give one, such as bdl.Gaussian()")
    prior = problem.centred(given["prior"])
    trial = max(min(steps, FEWEST_STEPS), trial_steps(problem, steps, len(RATES_TRIED)))
    return (choose_lr_of_optimiser(problem, dynamics, prior, held_out, trial), *of_weighting)


def choose_lr_of_optimiser(
    problem: Problem, dynamics: Transition, prior: Prior, held_out: TrialItems, steps: int
) -> Choice:
    """The largest lr that is safe, unless a smaller candidate is better by more than a standard error.

    Safe is at most a quarter of every lr that diverged, or whose loss rises by SPIKE late: a run is longer than a
    trial, and meets steeper places. Each trial takes so many steps from the problem's start. Its score is that of the
    average over its second half, as a baseline such as SWAG averages. Raises DivergedError where every candidate
    diverges.
    """
    scores: dict[float, Tensor] = {}
    diverged = math.inf
    for lr in RATES_TRIED:
        trial, score = Trial(problem, dynamics, prior, lr, f"lr {lr}"), Score(held_out)
        try:
            trial.run(steps - steps // 2)
            trial.run(steps // 2, score, max(1, steps // 2 // OPTIMISER_SCORES))
            scores[lr] = score.nll
            losses = torch.stack(trial.losses)
            diverged = min(lr, diverged) if bool((losses[steps // 2 :] > losses[0] + SPIKE).any()) else diverged
        except DivergedError:
            diverged = min(lr, diverged)
            if lr == RATES_TRIED[-1]:
                raise
    safe = {lr: nll for lr, nll in scores.items() if lr <= diverged / SMALLER} or scores
    values = ", ".join(f"{float(nll.mean()):.3f}" for nll in safe.values())
    reason = f"validation NLL {values} at lr {', '.join(f'{lr:g}' for lr in safe)}"
    return Choice("lr", clear_winner(safe), reason + (f"; {diverged:g} diverged" if math.isfinite(diverged) else ""))


def stay_at_start() -> tuple[Choice, ...]:
    """The choices of a run that starts at trained networks and keeps its last state alone.

    Those networks are the ones of the lowest validation loss. SGD without early stopping goes on to fit the noise of
    the training items: on a table of 353 rows the NLL of the start, 1.13, became 168 in 3,000 steps.
    """
    reason = "the start has trained the networks up to their lowest validation loss, and they stay there"
    return Choice("lr", STILL, reason), Choice("length", 1, "there is nothing left to train")
