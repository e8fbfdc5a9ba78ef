"""Steps and samples from a time: how long each takes, and how many fit."""

from __future__ import annotations

import time

import torch

from bdl.display import count_of
from bdl.samplers.dynamics.base import Transition
from bdl.samplers.dynamics.langevin import SGHMC
from bdl.samplers.priors.independent import Gaussian
from bdl.tune.choice import Choice
from bdl.tune.trial import Problem, Trial

TIMED = 0.2  # seconds of steps, at least, from which the time of a step is taken
STILL = 1e-9  # lr of timed steps
CALLBACKS = 1.15  # time of a step in a run, which keeps and measures samples, over the time of a step alone
FEWEST_RUN_STEPS = 100  # steps of a run
EVALUATION_SHARE = 0.25  # share of a budget in which the report may predict
FEWEST_SAMPLES = 10  # a chain keeps at least so many


def seconds_per_step(problem: Problem, dynamics: Transition) -> float:
    """The shortest of three measurements of a step of all chains; the first steps, which allocate, do not count."""
    plain = dynamics if dynamics.full_batch else SGHMC()
    trial = Trial(problem, plain, Gaussian(), STILL, "time")
    trial.run(3)
    steps, each = 5 if plain.full_batch else 1, []  # the lengths of any five paths of HMC have about the usual mean
    while len(each) < 3:
        began = time.perf_counter()
        trial.run(steps)
        seconds = time.perf_counter() - began
        if seconds < TIMED / 3:
            steps *= 2
        else:
            each.append(seconds / steps)
    return min(each)


@torch.no_grad()
def seconds_of_evaluation(problem: Problem, items: int) -> float:
    """Time to predict so many items with one sample of every chain, from a forward pass of some of them."""
    x = problem.items[0][:512]
    problem.stack.broadcast(x)
    began = time.perf_counter()
    problem.stack.broadcast(x)
    return (time.perf_counter() - began) * items / len(x)


def choose_steps(budget: float, per_step: float, stacks: int, before: float, after: float) -> Choice:
    """The steps for which the budget leaves time.

    budget, before, after: seconds in all, until the first step, and after the last. per_step: seconds of a step of one
    stack. stacks: how many one process carries after another.
    """
    left = budget - before - after
    steps = max(FEWEST_RUN_STEPS, int(left / (CALLBACKS * per_step * stacks)))
    reason = (
        f"{budget:,.0f} s, less {before:.0f} before and {after:.0f} after sampling, at {1e3 * per_step:.2g} ms a step"
    )
    return Choice("steps", steps, reason + (f", {stacks} stacks in turn" if stacks > 1 else ""))


def choose_samples(budget: float, per_sample: float, wanted: int) -> int:
    """Samples of a chain whose predictions leave the budget to the steps: as many as wanted, or fewer.

    per_sample: seconds in which the report predicts with one sample of every chain.
    """
    return min(wanted, max(FEWEST_SAMPLES, int(EVALUATION_SHARE * budget / per_sample)))


def choose_every(steps: int, burn_in: int, samples: int, wanted: int) -> Choice:
    """The steps between two samples that keep so many of a chain."""
    reason = f"the budget leaves time to predict with {count_of(samples, 'sample')} of a chain, not {wanted}"
    return Choice("every", max(1, -(-(steps - burn_in) // samples)), reason)
