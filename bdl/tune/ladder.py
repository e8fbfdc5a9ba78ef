"""How lr follows the temperatures of a ladder: by the curvature that hot chains meet."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bdl.samplers.exchange import Exchange
from bdl.tune.choice import Choice
from bdl.tune.curvature import Curvature
from bdl.tune.trial import Trial

NEVER = 10**12  # steps between swaps of a trial, whose chains show what one temperature does
LARGEST_POWER = 2.0  # of the lr of a rung; a slope between temperatures that hardly differ may be anything


def in_trials(exchange: Exchange | None, chains: int) -> Exchange | None:
    """The exchange as a trial has it: chains at the temperatures of the first ladder, with one lr and without swaps."""
    if exchange is None or chains < 2:
        return None
    return replace(exchange, every=NEVER, energy="batch", adapt_steps=0, lr_power=0.0)


def choose_lr_power(trial: Trial) -> Choice:
    """p, as the curvature where the trial's chains are now grows with T**p; 0 where it falls."""
    curvature, temperature = Curvature(trial)(trial), torch.as_tensor(trial.sampler.settings().temperature)
    p = min(LARGEST_POWER, max(0.0, slope(temperature.log(), curvature.log().to(temperature))))
    factor = hottest(trial)
    return Choice("lr_power", float(f"{p:.3g}"), f"the curvature is {factor**p:.3g} times as large at {factor:.3g} T")


def hottest(trial: Trial) -> float:
    """The temperature of the last rung of the trial, over that of the first."""
    temperature = torch.as_tensor(trial.sampler.settings().temperature)
    return float(temperature.max() / temperature.min())


def slope(x: Tensor, y: Tensor) -> float:
    """Of the least-squares line through the points (n,) each."""
    x = x - x.mean()
    return float((x @ y) / (x @ x))
