"""The default sampler of a table, and its number of steps. docs/results.md has the evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from bdl.samplers.dynamics.base import Transition
from bdl.samplers.dynamics.langevin import SGHMC
from bdl.samplers.dynamics.metropolis import HMC
from bdl.samplers.dynamics.microcanonical import MCLMC
from bdl.tune.choice import Choice

ON_BATCHES = SGHMC()  # the sampler of whoever chooses none and has batches
SAMPLERS: dict[str, Callable[[int], Transition]] = {  # builds each for a number of steps of burn-in
    "mclmc": lambda burn_in: MCLMC(energy_var=0.002, energy_var_start=0.5, adapt_steps=burn_in, adjusted=True),
    "hmc": lambda burn_in: HMC(adapt_steps=burn_in),
    "sghmc": lambda burn_in: ON_BATCHES,
}

FULL_BATCH_ROWS = 50_000  # the steps of `choose_length` then take some minutes on two cores, and 6 GB
FULL_BATCH_STEPS = 20_000  # steps of MCLMC; half as many cost 0.02 to 0.7 nats on tables with little noise
CHEAP_ROWS = 1_200  # at so many rows FULL_BATCH_STEPS take half a minute on one core
APART = 1.1  # R-hat in a trial of some hundred steps
LEAST_SHARE = 0.25  # of the steps; on noisy tables more of them buy no score (scripts/results/tables/length.md)
FEWEST_MCLMC_STEPS = 2_500  # steps of MCLMC with any number of rows
BATCH_STEPS = 80_000  # steps of SGHMC


def choose_sampler(rows: int) -> Literal["mclmc", "sghmc"]:
    """Microcanonical Langevin on all rows, up to FULL_BATCH_ROWS of them; beyond, SGHMC on batches."""
    return "mclmc" if rows <= FULL_BATCH_ROWS else "sghmc"


def choose_length(sampler: str, rows: int, rhat: float = math.nan) -> int:
    """Steps of a run. For a sampler that takes all rows at every step they fall with the root of the rows.

    rhat: of the chains in a trial. Where they agree from the beginning, a quarter of the steps does; where they sit
    apart, more steps still make predictions better, and all are taken. NaN: not known.
    """
    if sampler == "sghmc":
        return BATCH_STEPS
    steps = FULL_BATCH_STEPS * min(1.0, CHEAP_ROWS / rows) ** 0.5
    share = 1.0 if math.isnan(rhat) else min(1.0, max(LEAST_SHARE, (rhat - 1) / (APART - 1)))
    return max(FEWEST_MCLMC_STEPS, 100 * round(share * steps / 100))


def with_length(choices: Sequence[Choice], rhat: float, rows: int) -> tuple[Choice, ...]:
    """The choices, with the length of MCLMC for chains of which a trial tells R-hat."""
    if math.isnan(rhat) or any(choice.name == "sampler" for choice in choices):
        return tuple(choices)
    steps = choose_length("mclmc", rows, rhat)
    reason = f"steps of mclmc for {rows:,} training rows and chains with R-hat {rhat:.3g} in a trial"
    return tuple(Choice("length", steps, reason) if choice.name == "length" else choice for choice in choices)
