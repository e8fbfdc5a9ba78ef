"""The posteriors by two kernels that check each other, and the mixture on a grid."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from literature.distances import total_variation
from literature.targets import integrate
from tools.results import save_arrays
from torch import Tensor

import bdl
from experiments.explore.methods import Draws, keep, late
from experiments.explore.problems import Explored, Mixture
from experiments.explore.scores import Reference, averages, convergence, find_modes, labels, shares_of

SEED = 1000  # apart from those of the methods
CHAINS = 32
EACH = 30  # draws of a chain that are looked at for modes
GRID = 64  # cells along each axis of the box [-8, 8]


def mclmc(problem: Explored, gradients: int, chains: int) -> Draws:
    """Microcanonical Langevin with a small error of its step, from many starts."""
    began, steps = time.process_time(), gradients // 2
    dynamics = bdl.MCLMC(energy_var=1e-3, energy_var_start=0.5, adapt_steps=steps // 4)
    run = problem.chains(dynamics, problem.start(chains, SEED), lr=1e-3, seed=SEED)
    kept = keep(run, late(steps), steps, lambda k: None)
    return Draws(*kept, 2 * steps * chains, time.process_time() - began, {})


def hmc(problem: Explored, gradients: int, chains: int) -> Draws:
    """HMC, exact at any step size, whose chains exchange states with hotter ones; the chains at T = 1 count."""
    began, steps = time.process_time(), gradients // 10
    ladder = bdl.Exchange(ladder=[1.0, 1.26, 1.59, 2.0], every=2)
    dynamics = bdl.HMC(leapfrog=10, adapt_steps=steps // 4)
    run = problem.chains(dynamics, problem.start(chains, SEED + 1), lr=1e-3, seed=SEED + 1, exchange=ladder)
    kept = keep(run, late(steps), steps, lambda k: None)
    rates = run.sampler.swap_rates
    about = {} if rates is None else {"swap_rates": [round(r, 2) for r in rates.tolist()]}
    return Draws(*kept, 10 * steps * chains, time.process_time() - began, about)


def exact(problem: Mixture, count: int) -> Draws:
    """Evenly spaced draws of the posterior on a grid."""
    cells = integrate(problem, -8, 8, GRID)
    places = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    rows = torch.searchsorted(cells.mass.cumsum(0), places).clamp_max(len(cells.mass) - 1)
    random = torch.Generator().manual_seed(0)
    within = cells.widths * (torch.rand(count, problem.dim, generator=random, dtype=torch.float64) - 0.5)
    states = (cells.nodes[rows] + within).float()[torch.randperm(count, generator=random)]
    return Draws(states.view(-1, CHAINS, problem.dim), torch.zeros(count // CHAINS, CHAINS), 0, 0.0, {})


def reference(problem: Explored, path: Path, gradients: int, chains: int = CHAINS) -> tuple[Reference, dict[str, Any]]:
    """The reference and its diagnostics, also those of an earlier run; draws of both kernels decide what is a mode.

    The one that mixes better, or the grid, gives probabilities and predictions; `between` is how far the other lies.
    """
    if path.exists():
        return stored(path)
    runs = {"MCLMC": mclmc(problem, gradients, chains), "HMC with exchange": hmc(problem, gradients, chains)}
    if isinstance(problem, Mixture):
        runs = {"grid": exact(problem, 100 * chains), "HMC with exchange": runs["HMC with exchange"]}
    numbers = {k: convergence(problem, r) | {"core_seconds": r.core_seconds, **r.about} for k, r in runs.items()}
    looked_at = {k: spaced_states(r) for k, r in runs.items()}
    centres = find_modes(problem, torch.cat(list(looked_at.values())))
    found = {k: seen(problem, centres, looked_at[k], runs[k]) for k in runs}
    best = "grid" if "grid" in runs else min(runs, key=lambda k: numbers[k]["rhat"])
    one, two = found[best], next(found[k] for k in runs if k != best)
    between = {
        "mode_tv": float(total_variation(one.shares, two.shares)),
        "tv": float(total_variation(one.predicted, two.predicted).mean()),
        "nll": abs(one.nll - two.nll),
    }
    shares = [round(s, 4) for s in one.shares.tolist()]
    about = {"kernel": best, "kernels": numbers, "between": between, "nll": one.nll, "shares": shares}
    save_arrays(path, {
        "centres": one.centres.numpy(), "shares": one.shares.numpy(), "predicted": one.predicted.float().numpy(),
        "about": np.array(json.dumps(about)),
    })  # fmt: skip
    return one, about


def stored(path: Path) -> tuple[Reference, dict[str, Any]]:
    with np.load(path, allow_pickle=False) as archive:
        about = json.loads(str(archive["about"]))
        parts = [torch.from_numpy(archive[k]) for k in ("centres", "shares", "predicted")]
    return Reference(parts[0], parts[1], parts[2].double(), about["nll"]), about


def spaced_states(draws: Draws) -> Tensor:
    """(n, d) at most EACH draws of every chain; all of a grid."""
    n = len(draws.states)
    if draws.gradients == 0:
        return draws.states.flatten(0, 1)
    return draws.states[torch.linspace(0, n - 1, min(EACH, n)).long()].flatten(0, 1)


def seen(problem: Explored, centres: Tensor, states: Tensor, draws: Draws) -> Reference:
    shares = shares_of(labels(problem, states, centres), torch.ones(len(states)), len(centres))
    every = draws.states.flatten(0, 1)
    return Reference(centres, shares, *averages(problem, every, torch.ones(len(every))))
