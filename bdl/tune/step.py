"""The step size: as large as the energy error and the batch noise allow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from bdl.samplers.sampler import Sampler
from bdl.tune.choice import Choice
from bdl.tune.curvature import Curvature
from bdl.tune.trial import SMALLER, Trial

ENERGY_BUDGET = 0.1  # share by which the energy of the stiffest direction may be too large
NOISE_BUDGET = 0.1  # share by which batch noise may heat the chain: noise_ratio
TOLERATED = 1.1  # times NOISE_BUDGET, by which the estimate of the noise may lie above it
BLOCKS = 5  # parts of a trial, after each of which the curvature is measured
RISE = 4.0  # most by which lr rises from one part to the next


@dataclass
class Limits:
    """What bounds lr at friction a.

    Args:
        curvature: the largest that the chains met, of U/N.
        diverged_at: the smallest lr that diverged.
        noise_per_lr: noise_ratio / lr at friction 1; it is in proportion to lr / a. 0 without batch noise.
    """

    curvature: float
    diverged_at: float = math.inf
    noise_per_lr: float = 0.0

    def by_energy(self, friction: float) -> float:
        """The lr at which the stiffest direction has the share ENERGY_BUDGET too much energy.

        On a Gaussian, SGHMC and SGLD (a = 1) give a direction of curvature h (of U/N) the variance
        (tau / h) / (1 - lr h / (2 (2 - a))): solve the recursion θ' = (2 - a - lr h) θ - (1 - a) θ_before + noise. Its
        energy is as much too large. The same recursion diverges at lr h = 2 (2 - a), eleven times this lr.
        """
        return 2 * (2 - friction) / self.curvature * ENERGY_BUDGET / (1 + ENERGY_BUDGET)

    def by_noise(self, friction: float) -> float:
        """The lr at which noise_ratio = lr Var(g) / (2 a tau) is NOISE_BUDGET; infinite without batch noise."""
        return friction * NOISE_BUDGET / self.noise_per_lr if self.noise_per_lr > 0 else float("inf")

    def lr(self, friction: float) -> float:
        return min(self.by_energy(friction), self.by_noise(friction), self.diverged_at / SMALLER)

    def energy_error(self, lr: float, friction: float) -> float:
        e = lr * self.curvature
        return e / (2 * (2 - friction) - e)


def warm_up(trial: Trial, steps: int, fixed: bool = False) -> Limits:
    """Move the chains from their start to where they stay, at the largest lr that the energy error allows.

    The curvature is that of the stiffest direction in any chain so far: a run passes the same places. fixed: keep the
    lr, which was given.
    """
    curvature, a = Curvature(trial), trial.sampler.dynamics.friction
    limits = Limits(float(curvature(trial).max()))
    trial.lr = trial.lr if fixed else limits.by_energy(a)
    for _ in range(BLOCKS):
        trial.run_stably(max(1, steps // BLOCKS))
        limits.curvature = max(limits.curvature, float(curvature(trial).max()))
        limits.diverged_at = trial.diverged_at
        trial.lr = trial.lr if fixed else min(RISE * trial.lr, limits.lr(a))
    return limits


def measure_noise(trial: Trial, limits: Limits) -> Limits:
    """The limits with the batch noise that the trial's sampler has measured in its steps so far."""
    ratio = trial.sampler.noise_ratio
    if not trial.problem.full_batch and bool(torch.isfinite(ratio).all()):
        limits.noise_per_lr = float(ratio.mean()) * trial.sampler.dynamics.friction / trial.lr
    return limits


def heat_of(sampler: Sampler) -> float:
    """The share by which batches heat the chains that count, T_eff/T - 1, their mean; NaN where it is unknown."""
    temperature = torch.as_tensor(sampler.settings().temperature).to(sampler.t_eff)
    share = sampler.t_eff / temperature - 1
    return float(share[sampler.target_chains].mean() if sampler.chains else share)


def choose_lr(limits: Limits, friction: float) -> Choice:
    """The lr that both budgets allow."""
    lr = limits.lr(friction)
    noise, energy = limits.noise_per_lr * lr / friction, limits.energy_error(lr, friction)
    if lr == limits.diverged_at / SMALLER:
        reason = f"a trial with {limits.diverged_at:.3g} diverged"
    elif limits.by_noise(friction) < limits.by_energy(friction):
        reason = f"noise adds {noise:.0%} to the temperature, the budget is {NOISE_BUDGET:.0%}"
    else:
        reason = f"the stiffest direction has {energy:.0%} too much energy, the budget is {ENERGY_BUDGET:.0%}"
        reason += f"; noise adds {noise:.1%} to the temperature" if noise else ""
    return Choice("lr", lr, reason)
