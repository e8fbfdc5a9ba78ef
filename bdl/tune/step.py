"""The step size: as large as the energy error and the batch noise allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bdl.advice import key_or_argument
from bdl.samplers.dynamics.base import mean
from bdl.samplers.sampler import Sampler
from bdl.snapshot import numbers, per_chain
from bdl.tune.choice import Choice
from bdl.tune.curvature import Curvature
from bdl.tune.heat import AFFORDABLE, HEAT_OF_BATCHES, BatchHeat, CoolDirections
from bdl.tune.trial import SMALLER, Trial

ENERGY_BUDGET = 0.1  # share by which the energy of the stiffest direction may be too large
NOISE_BUDGET = 0.1  # share by which batch noise may heat the mean over directions: noise_ratio
TOLERATED = 1.1  # times NOISE_BUDGET, by which the estimate of the noise may lie above it
UNEVEN = 1.25  # times the mean noise ratio at which the hottest direction is as hot as promised
SPARED = 0.9  # times the budget: to this heat lr falls, because the heat may still grow
MOMENTA_BUDGET = 0.2  # share by which batch noise and the error of the step together may heat the momenta
MOMENTA_TOLERATED = 0.25  # share from which lr falls; the verdict calls it another temperature from there
STEP_ERRORS = 4.0  # standard errors of measured temperatures
FEWEST_HEATS = 8  # measured temperatures that show whether heat lasts
TRIAL_PARTS = 5  # parts of a trial, after each of which the curvature is measured
LR_RISE = 4.0  # most by which lr rises from one part to the next


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
    for _ in range(TRIAL_PARTS):
        trial.run_stably(max(1, steps // TRIAL_PARTS))
        limits.curvature = max(limits.curvature, float(curvature(trial).max()))
        limits.diverged_at = trial.diverged_at
        trial.lr = trial.lr if fixed else min(LR_RISE * trial.lr, limits.lr(a))
    return limits


def measure_noise(trial: Trial, limits: Limits) -> Limits:
    """The limits with the batch noise that the trial's sampler has measured in its steps so far, at the lr and T of its
    first rung."""
    sampler, problem = trial.sampler, trial.problem
    ratio = sampler.noise_ratio
    ratio = ratio * torch.as_tensor(sampler.settings().temperature).to(ratio) / problem.temperature
    if not problem.takes_all and bool(torch.isfinite(ratio).all()):
        limits.noise_per_lr = float(ratio.mean()) * trial.sampler.dynamics.friction / trial.lr
    return limits


def heat_of(sampler: Sampler) -> float:
    """The share by which batches heat the chains that count, T_eff/T - 1, their mean; NaN where it is unknown."""
    temperature = torch.as_tensor(sampler.settings().temperature).to(sampler.t_eff)
    share = sampler.t_eff / temperature - 1
    return float(share[sampler.target_chains].mean() if sampler.chains else share)


def factor_by_hottest(sampler: Sampler, promised: CoolDirections | None) -> tuple[float, str]:
    """By what lr is to be multiplied where the hottest direction is hotter than promised, and why; 1 where it is not.

    Its heat is to the mean noise ratio as it was in the trials.
    """
    if promised is None:
        return 1.0, ""
    ratio = float(sampler.noise_ratio[sampler.target_chains].mean() if sampler.chains else sampler.noise_ratio)
    if not ratio > UNEVEN * promised.noise_ratio:
        return 1.0, ""
    heat = promised.heat * ratio / promised.noise_ratio
    reason = f"batches heat the hottest direction by about {heat:.0%}, the budget is {promised.heat:.0%}"
    return SPARED * promised.noise_ratio / ratio, reason


def kinetic_ratio(sampler: Sampler) -> float:
    """The temperature that the momenta show now over T, the mean of the chains that count; NaN without momenta or T."""
    shown = numbers({"shown": sampler.kinetic_temperature}, sampler.chains)["shown"]
    meant = per_chain(sampler.settings().temperature, sampler.chains)
    ratios = [shown[c] / meant[c] if meant[c] else math.nan for c in sampler.target_chains]
    return sum(ratios) / len(ratios)


def momentum_heat(steps: Sequence[int], ratios: Sequence[float], momenta: int, friction: float) -> tuple[float, float]:
    """The share by which momenta are hotter than T, and the one that they surely exceed; NaN where too few are known.

    ratios: of `kinetic_ratio` after the `steps`. momenta: their number in all chains. They are normal, so that a ratio
    has the relative variance 2 / momenta; friction makes momenta s steps apart correlated by exp(-friction s) at most.
    What scatters by more is heat that comes and goes, as of chains that are unstable for some time. The second number
    is STEP_ERRORS standard errors below the first.
    """
    known = [(step, ratio) for step, ratio in zip(steps, ratios, strict=True) if not math.isnan(ratio)]
    if len(known) < FEWEST_HEATS:
        return math.nan, math.nan
    mean = sum(ratio for _, ratio in known) / len(known)
    correlation = math.exp(-friction * (known[-1][0] - known[0][0]) / (len(known) - 1))
    independent = len(known) * (1 - correlation) / (1 + correlation)
    return mean - 1, mean * (1 - STEP_ERRORS * math.sqrt(2 / (momenta * independent))) - 1


def heat_of_fall(steps: Sequence[int], energies: Sequence[float], sampler: Sampler) -> float:
    """The share by which momenta are hotter than T because the chains still move downhill; 0 where U does not fall.

    Friction turns the work of the gradient into heat. A steady force moves m to lr g / a, whose kinetic temperature is
    (2 - a) / (2 a d) times the work of a step, which is the fall of U in nats times the weighting's multiplier.
    energies: (n,) mean U of the chains after the `steps`, nats; NaN where unknown.
    """
    known = [(step, energy) for step, energy in zip(steps, energies, strict=True) if not math.isnan(energy)]
    if len(known) < 4:
        return 0.0
    at, energy = torch.tensor(known, dtype=torch.float64).T
    slope = float(torch.dot(at - at.mean(), energy) / (at - at.mean()).square().sum())
    a, parameters = sampler.dynamics.friction, sampler.chain.theta.shape[-1]
    work = max(0.0, -slope) * mean(sampler.multiplier)
    return work * (2 - a) / (2 * a * parameters) / mean(sampler.settings().temperature)


def factor_by_momenta(heat: float, surely: float) -> float:
    """By what lr is to be multiplied where momenta are hotter than T by the share `heat`; 1 where that may be noise.

    surely: the share that they exceed beyond their error. On a Gaussian of curvature h, SGHMC's momenta have the
    temperature T / (1 - e), e = lr h / (2 (2 - a)), by the recursion of `Limits.by_energy`. So e = heat / (1 + heat),
    which is in proportion to lr. Batch noise heats by less than a proportion of e, and has a budget of its own. The
    heat that is left is that of `Limits.by_energy`, because a curvature that has grown will grow further.
    """
    if not surely > MOMENTA_TOLERATED:
        return 1.0
    return ENERGY_BUDGET / (1 + ENERGY_BUDGET) * (1 + heat) / heat


def choose_lr(
    limits: Limits, friction: float, batches: BatchHeat | None = None, heat: float = HEAT_OF_BATCHES
) -> Choice:
    """The lr that the budgets of energy and of the mean noise allow, lowered until the hottest direction is cool, too.

    Where that takes an lr below 1/AFFORDABLE of what the mean allows, lr stays, and the reason says how hot the
    directions are. Chains that move so much more slowly would not come to rest in the same run.

    batches: the heat of the hottest direction; None where there is none, or it is not known. heat: the share by which
    batches may heat that direction.
    """
    most = limits.lr(friction)
    mean = _reason(limits, most, friction)
    if batches is None or batches.share(most, friction) <= heat:
        hottest = "" if batches is None else f"; the hottest direction has {1 + batches.share(most, friction):.3g} T"
        return Choice("lr", most, mean + hottest)
    lr = batches.largest_lr(most, friction, heat)
    if lr >= most / AFFORDABLE:
        ratio = batches.noise_ratio(lr, friction)
        reason = f"batches heat the hottest direction by {heat:.0%}, the budget, and "
        return Choice("lr", lr, f"{reason}the mean over directions by {ratio:.1%}; that mean would allow {most:.3g}")
    return Choice("lr", most, f"{mean}; {_too_hot(batches, most, lr, friction, heat)}")


def _too_hot(batches: BatchHeat, most: float, lr: float, friction: float, heat: float) -> str:
    """What T the sampled distribution has by direction where lr stays at the most that the mean allows."""
    shown, slower = 1 + batches.share(most, friction), most / lr
    larger = f"{key_or_argument('data.batch_size')}={batches.larger_batch(slower)}"
    return (
        f"batches of {batches.batch_size:,} heat the hottest direction to about {shown:.2g} T. {1 + heat:.3g} T would "
        f"take lr {lr:.2g}, with chains {slower:,.0f} times as slow, or {larger}, or a sampler without "
        "batch noise, such as sampler=mclmc"
    )


def _reason(limits: Limits, lr: float, friction: float) -> str:
    """Which of the budgets decides, with the numbers."""
    noise, energy = limits.noise_per_lr * lr / friction, limits.energy_error(lr, friction)
    if lr == limits.diverged_at / SMALLER:
        return f"a trial with {limits.diverged_at:.3g} diverged"
    if limits.by_noise(friction) < limits.by_energy(friction):
        return f"noise adds {noise:.0%} to the temperature, the budget is {NOISE_BUDGET:.0%}"
    reason = f"the stiffest direction has {energy:.0%} too much energy, the budget is {ENERGY_BUDGET:.0%}"
    return reason + (f"; noise adds {noise:.1%} to the temperature" if noise else "")
