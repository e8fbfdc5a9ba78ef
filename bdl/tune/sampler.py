"""The default sampler of a table, and its number of steps. docs/results.md has the evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from bdl.samplers.dynamics.base import Transition
from bdl.samplers.dynamics.langevin import SGHMC
from bdl.samplers.dynamics.metropolis import HMC
from bdl.samplers.dynamics.microcanonical import MCLMC

ON_BATCHES = SGHMC()  # the sampler of whoever chooses none and has batches
SAMPLERS: dict[str, Callable[[int], Transition]] = {  # builds each for a number of steps of burn-in
    "mclmc": lambda burn_in: MCLMC(energy_var=0.01, energy_var_start=0.5, adapt_steps=burn_in),
    "hmc": lambda burn_in: HMC(adapt_steps=burn_in),
    "sghmc": lambda burn_in: ON_BATCHES,
}

FULL_BATCH_ROWS = 50_000  # the steps of `choose_length` then take some minutes on two cores, and 6 GB
FULL_BATCH_STEPS = 20_000  # steps of MCLMC; half as many cost 0.02 to 0.7 nats on tables with little noise
CHEAP_ROWS = 1_200  # at so many rows FULL_BATCH_STEPS take half a minute on one core
FEWEST_MCLMC_STEPS = 2_500  # steps of MCLMC with any number of rows
BATCH_STEPS = 80_000  # steps of SGHMC


def choose_sampler(rows: int) -> Literal["mclmc", "sghmc"]:
    """Microcanonical Langevin on all rows, up to FULL_BATCH_ROWS of them; beyond, SGHMC on batches."""
    return "mclmc" if rows <= FULL_BATCH_ROWS else "sghmc"


def choose_length(sampler: str, rows: int) -> int:
    """Steps of a run. For a sampler that takes all rows at every step they fall with the root of the rows."""
    if sampler == "sghmc":
        return BATCH_STEPS
    return max(FEWEST_MCLMC_STEPS, round(FULL_BATCH_STEPS * min(1.0, CHEAP_ROWS / rows) ** 0.5))
