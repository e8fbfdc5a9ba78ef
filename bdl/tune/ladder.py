"""How lr follows the temperatures of a ladder: by the curvature that hot chains meet."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from bdl.samplers.exchange import Exchange
from bdl.tune.choice import Choice
from bdl.tune.curvature import Curvature
from bdl.tune.trial import Problem, Trial
from bdl.tune.work import BACKWARD

OFTEN = 10  # steps between swaps; as many as a momentum lasts by default
ENERGY_SHARE = 0.1  # share of the time of the steps, in which energies of all the data are evaluated
NEVER = 10**12  # steps between swaps of a trial, whose chains show what one temperature does
CLEAR = 2.0  # standard errors by which curvature has to grow
LARGEST_POWER = 2.0  # of the lr of a rung; a slope between temperatures that hardly differ may be anything


def in_trials(exchange: Exchange | None, chains: int) -> Exchange | None:
    """The exchange as a trial has it: chains at the temperatures of the first ladder, with one lr and without swaps."""
    if exchange is None or chains < 2:
        return None
    return replace(exchange, every=NEVER, energy="batch", adapt_steps=0, lr_power=0.0)


def choose_lr_power(trial: Trial) -> Choice:
    """p, as the curvature where the trial's chains are now grows with T**p; 0 where it does not clearly grow."""
    curvature, temperature = Curvature(trial)(trial), torch.as_tensor(trial.sampler.settings().temperature)
    p, error = slope(temperature.log(), curvature.log().to(temperature))
    p = min(LARGEST_POWER, p) if p > CLEAR * error else 0.0
    factor = hottest(trial)
    return Choice("lr_power", float(f"{p:.3g}"), f"the curvature is {factor**p:.3g} times as large at {factor:.3g} T")


def choose_swaps(problem: Problem) -> Choice:
    """The steps between two swaps whose energies, of all the data, take ENERGY_SHARE of the time of the steps."""
    if problem.takes_all:
        return Choice("swap_every", OFTEN, "energies of all the data come with the steps")
    forward = problem.num_data / problem.batch_size / BACKWARD  # in steps
    every = max(OFTEN, math.ceil(forward / ENERGY_SHARE))
    return Choice("swap_every", every, f"energies of all the data take {forward / every:.0%} of the time of the steps")


def hottest(trial: Trial) -> float:
    """The temperature of the last rung of the trial, over that of the first."""
    temperature = torch.as_tensor(trial.sampler.settings().temperature)
    return float(temperature.max() / temperature.min())


def slope(x: Tensor, y: Tensor) -> tuple[float, float]:
    """That of the least-squares line through points (n,) each, and its standard error; 0 and infinite for two."""
    x, y = x - x.mean(), y - y.mean()
    if len(x) < 3:
        return 0.0, math.inf
    b = (x @ y) / (x @ x)
    error = (y - b * x).square().sum() / (len(x) - 2) / (x @ x)
    return float(b), float(error.sqrt())
