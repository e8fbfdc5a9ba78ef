"""lr, friction and burn-in, from one trial that measures what bounds them, and a rehearsal of the run."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bdl.samplers.priors.base import Prior
from bdl.samplers.weighting.base import Flat
from bdl.tune.burn_in import choose_burn_in, mean_trace
from bdl.tune.choice import Choice
from bdl.tune.friction import autocorrelation_time, choose_friction
from bdl.tune.heat import BatchHeat, measure_heat
from bdl.tune.ladder import choose_lr_power, choose_swaps, hottest
from bdl.tune.prior import steps_to_act
from bdl.tune.search import Search
from bdl.tune.step import Limits, choose_lr, measure_noise, warm_up
from bdl.tune.trial import Trial

WATCHED_ITEMS = 32  # items whose predictions are watched
TRIAL_DRAWS = 400  # draws in a trial


@dataclass(frozen=True)
class Rehearsed:
    """What the trials of a step have found. step_seconds: of a step of a rehearsal. Others: see `Tuning`."""

    choices: tuple[Choice, ...]
    step_seconds: float = 0.0
    hottest: float | None = None
    noise_ratio: float | None = None


def step_of(search: Search, prior: Prior, heat: float) -> Rehearsed:
    """lr, friction and burn-in, where the sampler leaves them open."""
    return find_step(search, prior, heat) if "lr" in search.tunable else Rehearsed(search.scaled_lr())


def find_step(search: Search, prior: Prior, heat: float) -> Rehearsed:
    """lr, friction and burn-in, which a rehearsal has tried."""
    limits, times, every, batches, power = _limits(replace(search.cooled, weighting=Flat()), prior)
    a = search.dynamics.friction
    friction = choose_friction(times, a, every) if search.wants("friction") else Choice("friction", a, "given")
    fixed = search.fixed_lr is not None
    lr = Choice("lr", search.fixed_lr, "given") if fixed else choose_lr(limits, friction.value, batches, heat)
    lr = search.over_multiplier(lr)
    if search.exchange is not None:
        search = replace(search, exchange=replace(search.exchange, lr_power=power.value))
    rehearsed, burn_in, step_seconds = _rehearse(search, prior, lr, friction)
    lr = lr if rehearsed.lr == lr.value else Choice("lr", rehearsed.lr, f"{lr.value:.3g} diverged in a rehearsal")
    plain, a = rehearsed.lr * search.multiplier, friction.value
    found = (
        (lr, friction, burn_in)
        if search.exchange is None
        else (lr, power, choose_swaps(search.problem), friction, burn_in)
    )
    if batches is None:
        return Rehearsed(found, step_seconds, *((1.0, 0.0) if search.problem.takes_all else (None, None)))
    return Rehearsed(found, step_seconds, 1 + batches.share(plain, a), batches.noise_ratio(plain, a))


def _limits(search: Search, prior: Prior) -> tuple[Limits, Tensor, int, BatchHeat | None, Choice]:
    """What bounds lr where the chains stay; autocorrelation times (C, quantities) in draws, with their distance; the
    heat of the hottest direction; and how lr follows T under replica exchange, whose limits are those of the first
    rung."""
    trial = search.trial_of(prior, "limits")
    limits = measure_noise(trial, warm_up(trial, search.trial, fixed=search.fixed_lr is not None))
    if search.fixed_lr is None:
        trial.lr = limits.lr(search.dynamics.friction)
    draws, every = _watch(trial, search.trial)
    limits, batches = measure_noise(trial, limits), measure_heat(trial, search.dynamics)
    power = Choice("lr_power", 0.0, "one temperature")
    if search.exchange is not None:
        power = choose_lr_power(trial) if search.wants("lr_power") else Choice("lr_power", search.given["lr_power"], "")
        limits.curvature /= hottest(trial) ** power.value  # the largest, which is that of the hottest rung
    return limits, autocorrelation_time(draws), every, batches, power


def _rehearse(search: Search, prior: Prior, lr: Choice, friction: Choice) -> tuple[Trial, Choice, float]:
    """A run from the start with the settings found: the trial, its burn-in, and the seconds of a step."""
    own = friction.value if search.wants("friction") else None
    trial = search.trial_of(prior, "rehearsal", lr.value, own)
    began = time.perf_counter()
    draws, every = _watch(trial, search.trial)
    seconds = (time.perf_counter() - began) / search.trial
    longest = float(autocorrelation_time(draws[len(draws) // 2 :]).mean(0).quantile(0.9)) * every
    acts = steps_to_act(prior, search.problem, trial.lr * search.multiplier, friction.value)
    burn_in = choose_burn_in([trial.energy_trace(), mean_trace(draws)], longest, acts, search.steps)
    return trial, burn_in, seconds


def _watch(trial: Trial, steps: int) -> tuple[Tensor, int]:
    """Predictions (draws, C, quantities) along the steps, and the steps between two draws."""
    every, x = max(1, steps // TRIAL_DRAWS), trial.problem.items[0]
    x = x[torch.linspace(0, len(x) - 1, min(WATCHED_ITEMS, len(x)), device=x.device).long()]
    draws: list[Tensor] = []
    trial.run_stably(steps, lambda trial: draws.append(trial.predictions(x)), every)
    return torch.stack(draws[-(steps // every) :]), every  # draws before a divergence do not count
