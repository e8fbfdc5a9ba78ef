"""The laws that the contestants of `bench.py jax` sample, checked on a linear regression whose law is known."""

import math
import tempfile
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.speed.problem import Quadratic, regression
from benchmarks.speed.torch_kernels import BareLoop, SamplerLoop, fit_like_train, samples

CHAINS, EVERY, BURN_IN = 64, 10, 250  # steps between energies, and before the first: 12 relaxation times 2 / friction
BATCH = 50  # energies whose mean counts as one independent number: 500 steps
TOLERANCE = 4  # standard errors


def check_torch() -> None:
    """Print the mean energy of bdl through train.py's callbacks, of a bare loop over its Sampler, and of plain torch.

    Exits as `compare` does.
    """
    torch.manual_seed(0)
    problem = regression()
    law, limit = Quadratic(problem), problem.dim * problem.temperature / 2
    loop, bare, exact = SamplerLoop(problem, CHAINS), BareLoop(problem), law.mean()
    compare("bdl train.py", law.energy(trained(100)), exact, limit)
    compare("bdl Sampler.step", law.energy(record(ten(loop.step), loop.theta, 200)), exact, limit)
    compare("bare torch loop", law.energy(record(ten(bare.step), bare.theta, 2500)), exact, limit)


def ten(step: Callable[[], object]) -> Callable[[], None]:
    """A function that takes as many steps as lie between two energies."""

    def run() -> None:
        for _ in range(EVERY):
            step()

    return run


def record(run: Callable[[], object], theta: Callable[[], np.ndarray], count: int) -> np.ndarray:
    """(count, chains, d) parameters, one per call of `run`, after the burn-in."""
    for _ in range(BURN_IN // EVERY):
        run()
    states = []
    for _ in range(count):
        run()
        states.append(theta())
    return np.stack(states)


def trained(count: int) -> np.ndarray:
    """(count, chains, d) parameters that a run with train.py's callbacks wrote to its store."""
    with tempfile.TemporaryDirectory() as folder:
        fit_like_train(regression(), CHAINS, folder, BURN_IN + count * EVERY, BURN_IN, EVERY)
        return samples(regression(), folder)


def compare(name: str, energies: np.ndarray, exact: float, limit: float) -> None:
    """Print the mean of energies (count, chains), nats, and its standard error from means of batches.

    exact: its expectation at the kernel's step size. limit: the same for a step size of 0.

    Exits with one line if the mean is more than TOLERANCE standard errors off.
    """
    count = len(energies) // BATCH * BATCH
    means = energies[:count].reshape(-1, BATCH, energies.shape[1]).mean(1)
    mean, error = means.mean(), means.std(ddof=1) / math.sqrt(means.size)
    line = f"{name}: mean energy {mean:.4f} +- {error:.4f} (exact {exact:.4f}; {limit:g} for lr -> 0)"
    if not abs(mean - exact) <= TOLERANCE * error:
        raise SystemExit(f"{line} is more than {TOLERANCE} standard errors off: this kernel samples another law")
    print(f"law checked: {line}", flush=True)
