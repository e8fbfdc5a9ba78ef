"""The cycles of a cyclical schedule: their number, their peak, and the part that explores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bdl.samplers.priors.base import Prior
from bdl.samplers.priors.independent import Gaussian
from bdl.tune.choice import Choice
from bdl.tune.sampler import ON_BATCHES
from bdl.tune.trial import Problem, Trial
from bdl.tune.work import trial_steps

PEAK = 4.0  # times the lr at which chains stay; the energy diverges at 11 times, see `Limits.by_energy`
EXPLORE = 2 / 3  # phase at which the cosine has come down from the peak to that lr
MOTION = 0.1153  # steps at that lr that move as far as the sampling part of a cycle of one step: the mean of the cosine
MOST_CYCLES = 8
SAMPLES = 100  # of a chain


def choose_cycles(
    choices: Sequence[Choice], problem: Problem, dynamics: Any, prior: Prior, steps: int
) -> tuple[Choice, ...]:
    """The choices of a run at a constant lr, as those of a run in cycles. steps: of the run.

    lr at the start of a sampling part is the one that was found, so that chains sample as far as the step allows. A
    cycle is as long as its sampling part needs to move as far as a burn-in at that lr: a cycle explores without noise,
    and its chains come back from there. A trial tries the peak. The choices "lr" and "burn_in" are replaced; without
    them, the cycles stay as they are. prior: where no choice is one.
    """
    by_name = {choice.name: choice for choice in choices}
    if "burn_in" not in by_name:
        return tuple(choices)
    burn_in, count = by_name.pop("burn_in").value, MOST_CYCLES
    count = max(1, min(MOST_CYCLES, int(MOTION * steps / max(1, burn_in))))
    cycle = {"cycles": count, "explore": round(EXPLORE, 4)}
    reason = f"each moves in its sampling part as far as in a burn-in of {burn_in:,} steps"
    if count == 1:
        reason = f"one, because a burn-in takes {burn_in:,} steps and a longer run is needed for more"
    by_name["cycle"] = Choice("cycle", cycle, reason)
    length = -(-steps // count)
    samples = max(1, min(SAMPLES // count, int((1 - EXPLORE) * length) - 1))
    by_name["samples_per_cycle"] = Choice("samples_per_cycle", samples, f"about {SAMPLES} of a chain")
    if (lr := by_name.get("lr")) is not None:
        moving = dynamics if dynamics.fits_trials else ON_BATCHES
        moving = replace(moving, friction=by_name["friction"].value) if "friction" in by_name else moving
        chosen = Gaussian(by_name["prior"].value) if "prior" in by_name else problem.centred(prior)
        trial = Trial(problem, moving, chosen, PEAK * lr.value, "peak")
        trial.run_stably(trial_steps(problem, steps))
        reason = f"{trial.lr / lr.value:.3g} times the lr at which a sampling part begins; {lr.reason}"
        by_name["lr"] = Choice("lr", trial.lr, reason)
    return tuple(by_name.values())
