"""The heat of the hottest direction: how unevenly batch noise spreads over directions, and what lr it allows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bdl.samplers.batch_noise import left_by_a_pass
from bdl.samplers.dynamics.base import Transition
from bdl.tune.trial import Problem, Trial

HEAT_OF_BATCHES = 0.1  # share by which batches may heat the hottest direction
AFFORDABLE = 20.0  # times by which lr may fall for that below what the mean over directions allows
FEWEST_GRADIENTS, MOST_GRADIENTS = 16, 64  # gradients of batches at one θ
GRADIENTS_ALONG = 4  # of them, along a direction that the others have found
BOUND = 1.5  # times the variance there, that the hottest direction may have
GRADIENT_SHARE = 0.1  # of the steps of a trial: as many gradients are taken
HEAT_TOLERANCE = 1.01  # times the heat allowed, which a bisection may reach
MOST_NUMBERS = 2**26  # numbers of all these gradients, 256 MB in single precision


@dataclass(frozen=True)
class BatchHeat:
    """How hot batches make directions, at any lr and friction of a dynamics.

    Args:
        dynamics: that of the chains.
        tau: T/N.
        hottest: c_1, the variance of a batch's gradient of U/N along the direction where it is largest.
        mean: that variance over all directions.
        batch_size: of those batches.
        items: from which they are drawn.
    """

    dynamics: Transition
    tau: float
    hottest: float
    mean: float
    batch_size: int
    items: int

    def share(self, lr: float, friction: float) -> float:
        """The share by which the hottest direction is too hot."""
        dynamics: Any = self.dynamics
        if friction != dynamics.friction:
            dynamics = replace(dynamics, friction=friction)
        return dynamics.heat_along(self.hottest, self.mean, lr, self.tau) - 1

    def noise_ratio(self, lr: float, friction: float) -> float:
        """lr Var(g) / (2 a tau), the mean over directions."""
        return lr * self.mean / (2 * friction * self.tau)

    def largest_lr(self, most: float, friction: float, heat: float) -> float:
        """The largest lr up to `most` at which the hottest direction has T (1 + heat) at most, by bisection."""
        if self.share(most, friction) <= heat:
            return most
        low, high = math.log(most) - 40, math.log(most)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.share(math.exp(middle), friction) <= heat else (low, middle)
        return math.exp(low)

    def larger_batch(self, factor: float) -> int:
        """The size of batches of a pass whose noise is so many times weaker: 1/B - 1/N decides it."""
        whole = 1 / self.items
        return min(self.items, math.ceil(1 / (whole + (1 / self.batch_size - whole) / factor)))


@dataclass(frozen=True)
class CoolDirections:
    """What tuning promises of the hottest direction.

    Args:
        heat: the share by which batches heat it at most.
        noise_ratio: the mean over directions at which it has so much heat, as far as trials saw. The run can measure
            the mean alone, and takes the ratio of both to be that of the trials.
    """

    heat: float
    noise_ratio: float

    @classmethod
    def of(cls, hottest: float | None, noise_ratio: float | None, heat: float) -> CoolDirections | None:
        """None where the settings found do not keep to it, or nothing is heated. hottest: see `Tuning`."""
        if hottest is None or noise_ratio is None or not 0 < hottest - 1 <= heat * HEAT_TOLERANCE:
            return None
        return cls(heat, noise_ratio * heat / (hottest - 1))


def measure_heat(trial: Trial, dynamics: Transition) -> BatchHeat | None:
    """The batch noise of the hottest direction where the trial's chains are now, and the mean over directions.

    None for batches of all the data, and for a single gradient that does not fit.
    """
    problem = trial.problem
    if problem.takes_all or problem.batch_size >= len(problem.items[1]):
        return None
    count = max(FEWEST_GRADIENTS, min(MOST_GRADIENTS, int(GRADIENT_SHARE * len(trial.energies))))
    count -= count % GRADIENTS_ALONG
    rows = min(trial.stack.chains, MOST_NUMBERS // (count * trial.sampler.chain.theta.shape[-1]))
    if rows < 1:
        return None
    gradients = trial.gradients(count, rows)  # (M, rows, d)
    hottest = torch.stack([strongest(gradients[:, c].double()) for c in range(rows)]).mean()
    share = _share(problem, count)
    mean = gradients.var(0).double().mean()
    return BatchHeat(
        dynamics, problem.tau, share * float(hottest), share * float(mean), problem.batch_size, problem.count
    )


def _share(problem: Problem, draws: int) -> float:
    """Var(g) in the run over the variance of so many consecutive batches of the trial around their mean.

    In a trial and in the run a batch has (1 - B/n) S²/B, n of their items. See `left_by_a_pass` for the covariance of
    two batches of a pass, which is -S²/n: it makes the variance of draws around their mean larger, as far as they are
    of one pass.
    """
    passes = len(problem.items[1]) / problem.batch_size
    independent = left_by_a_pass(max(passes, draws)) / left_by_a_pass(passes)  # S²/B over the variance of the draws
    return independent * left_by_a_pass(problem.count / problem.batch_size)


def strongest(draws: Tensor) -> Tensor:
    """() the largest eigenvalue of the covariance of independent draws (M, d).

    That of the sample covariance is too large, by far where M is below d. The variance of some draws along the top
    direction of all others is too small, because that direction is not quite the right one. To first order in 1/M the
    two errors are the sum over j of λ_1 λ_j / (M (λ_1 - λ_j)), with opposite signs (Lawley 1956), and the mean of both
    is right. Where no direction stands apart, as in even noise, the expansion fails and the first one is of no use: so
    the second, which is never too large, bounds the mean.
    """
    blocks = len(draws) // GRADIENTS_ALONG
    block = torch.arange(len(draws), device=draws.device) % blocks
    held_out = torch.stack([_along_top(draws[block != b], draws[block == b]) for b in range(blocks)]).mean()
    centred = draws - draws.mean(0)
    of_sample = torch.linalg.eigvalsh(centred @ centred.T)[-1] / (len(draws) - 1)
    return torch.minimum((held_out + of_sample) / 2, BOUND * held_out)


def _along_top(learns: Tensor, measures: Tensor) -> Tensor:
    """() variance of the draws `measures` (n, d) along the top direction of the draws `learns`, (m, d)."""
    learns, measures = learns - learns.mean(0), measures - measures.mean(0)
    weights = torch.linalg.eigh(learns @ learns.T).eigenvectors[:, -1]
    direction = weights @ learns
    along = measures @ (direction / direction.norm().clamp_min(torch.finfo(learns.dtype).tiny))
    return along.square().sum() / (len(measures) - 1)
