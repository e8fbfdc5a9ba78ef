"""The predictive distribution of the posterior, by long chains of two kernels that check each other."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tools.results import save_arrays
from torch import Tensor

import bdl
from bdl.posterior.diagnostics import mixing
from benchmarks.leaderboard.chains import Recipe, sample
from benchmarks.leaderboard.problems import Average, Problem

WATCHED = 60  # items whose predictions tell whether chains mix
SEED = 1000  # apart from those of the methods


@dataclass(frozen=True)
class Effort:
    """Gradients over all the data that each of the two kernels takes, and how. energy_var: of MCLMC; mass: of HMC."""

    passes: int
    leapfrog: int
    energy_var: float
    chains: int = 8
    mass: Literal["unit", "diagonal"] = "unit"
    draws: int = 1000


EFFORT = {
    "landsat": Effort(16_000, 25, 1e-2),
    "airfoil": Effort(300_000, 25, 1e-3),
    "diabetes": Effort(20_000, 20, 1e-3, chains=4),
    "cifar": Effort(50_000, 40, 1e-3, chains=4, mass="diagonal"),
}
QUICK = Effort(200, 5, 1e-2, chains=2, draws=20)


def reference(problem: Problem, effort: Effort, path: Path, record: dict[str, Any], keep: Callable[[], None]) -> Tensor:
    """(n, G) the average of the kernel that mixes better.

    Args:
        path: the averages, also those of an earlier run.
        record: the diagnostics by kernel, also those of an earlier run.
        keep: called when the record has more of them.
    """
    stored = dict(np.load(path)) if path.exists() else {}
    for name, recipe in recipes(effort).items():
        if name not in stored or name not in record:
            average, record[name] = long_run(recipe, problem, effort)
            stored[name] = average.mean.float().numpy()
            save_arrays(path, stored)
            keep()
    best = min(recipes(effort), key=lambda name: record[name]["rhat"])
    first, second = (torch.from_numpy(stored[name]).double() for name in recipes(effort))
    record |= {"kernel": best, "between": Average(problem, first, count=1).distance(second)}
    return torch.from_numpy(stored[best]).double()


def recipes(effort: Effort) -> dict[str, Recipe]:
    chains = effort.chains
    return {
        "hmc": Recipe(
            lambda n: bdl.HMC(effort.leapfrog, adapt_steps=max(50, int(0.3 * n)), mass=effort.mass), 0.01,
            gradients=effort.leapfrog, chains=chains,
        ),
        "mclmc": Recipe(
            lambda n: bdl.MCLMC(energy_var=effort.energy_var, adapt_steps=int(0.4 * n)), 1e-3, gradients=2,
            chains=chains,
        ),
    }  # fmt: skip


def long_run(recipe: Recipe, problem: Problem, effort: Effort) -> tuple[Average, dict[str, float]]:
    """The average over the second half, and how well its chains mixed."""
    quantities, energies = [], []
    rows = torch.linspace(0, len(problem.test[1]) - 1, min(WATCHED, len(problem.test[1]))).long()

    def watch(outputs: Tensor, energy: Tensor) -> None:
        means = problem.loss.mean(outputs[:, rows]) if not problem.classes else outputs[:, rows].softmax(-1)
        quantities.append(means.flatten(1).double().numpy())
        energies.append(energy.double().numpy().copy())

    average, seconds = sample(recipe, problem, effort.passes, SEED, watch, effort.draws)
    numbers = mixing(np.stack(quantities, 1), np.stack(energies, 1))
    return average, {
        "rhat": numbers["rhat/max"], "ess": numbers["ess/min"], "rhat_energy": numbers["rhat/energy"],
        "nll": average.nll, "core_seconds": seconds, "passes": effort.passes, "chains": effort.chains,
    }  # fmt: skip
