"""find_settings: the story of tuning, from the batch size to the prior."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bdl.data.split import hold_out
from bdl.engine.choose import Compile
from bdl.engine.stack import ChainStack
from bdl.errors import ConfigError
from bdl.likelihoods import Loss
from bdl.samplers.dynamics.base import Dynamics, Transition
from bdl.samplers.dynamics.langevin import SGHMC
from bdl.samplers.priors import Gaussian, Prior
from bdl.seeding import derive_seed
from bdl.tune.batch import choose_batch
from bdl.tune.burn_in import choose_burn_in, mean_trace
from bdl.tune.choice import Choice, Tuning
from bdl.tune.friction import autocorrelation_time, choose_friction
from bdl.tune.prior import CANDIDATES, SHORTEST, Score, choose_prior, prior_predictive
from bdl.tune.step import Limits, choose_lr, measure_noise, warm_up
from bdl.tune.trial import Items, Problem, Trial
from bdl.tune.work import trial_steps

NAMES = ("batch_size", "lr", "friction", "burn_in", "prior")
HELD_OUT = 0.2  # share of the training items that compares priors where there is no validation part
LARGEST_PART = 2048  # validation items
PROBES = 32  # items whose predictions are watched
DRAWS = 400  # draws in a trial


def find_settings(
    stack: ChainStack,
    loss: Loss,
    train: Items,
    validation: Items | None = None,
    dynamics: Transition | None = None,
    *,
    num_data: int | None = None,
    temperature: float = 1.0,
    steps: int = 80_000,
    given: Mapping[str, Any] = {},
    seed: int = 0,
    compiled: Compile = "auto",
) -> Tuning:
    """Settings with which to sample a stack, each with its reason. The stack stays as it is.

        >>> import bdl
        >>> x = torch.linspace(-1, 1, 300).unsqueeze(1)
        >>> stack = bdl.ChainStack(torch.nn.Linear(1, 2), chains=2)
        >>> tuning = find_settings(stack, bdl.HeteroscedasticNLL(), (x, x), steps=2000, given={"prior": bdl.Gaussian()})
        >>> list(tuning.settings), tuning.settings["batch_size"]
        (['batch_size', 'lr', 'friction', 'burn_in'], 300)

    Args:
        stack: C networks, at the parameters from which they will be sampled, on the device to do it on.
        loss: a negative log-likelihood per item (`bdl.likelihoods`), or any loss that returns its mean over the batch.
        train: x (n, ...) as the network takes it, and y (n, ...): the training items, or an even part of them.
        validation: items that compare priors; None holds out a part of `train` for that.
        dynamics: the sampler, `SGHMC()` for None. One whose `tunable` lacks "lr", because it adapts or preconditions
            its step, gets no lr, no friction and no burn-in.
        num_data: N, where `train` is a part; None means its length.
        temperature: T > 0.
        steps: of the run. The trials together take a fifth of them at most.
        given: settings that are fixed: "batch_size", "lr", "friction", "burn_in", or "prior" as an object.
        seed: with the same seed, stack and data, and on the same machine, the settings are the same.
        compiled: as `compile` of `BayesianModule`.

    Returns the settings that were not given, as plain numbers and words. "batch_size" is N for full batches, and
    missing where the dynamics takes no other; "prior" is the precision of a `Gaussian`, "burn_in" in steps.

    Raises ConfigError for T <= 0, a dynamics without noise, and an unknown name in `given`; DivergedError where even a
    tiny lr diverges.
    """
    began, dynamics = time.perf_counter(), SGHMC() if dynamics is None else dynamics
    _check(dynamics, temperature, given)
    search = _Search.begin(
        Problem(stack, loss, train, num_data or len(train[1]), 0, temperature, seed, compiled), dynamics, given, steps
    )
    prior, of_prior = _prior(search, validation)
    limits, times = _limits(search, prior)
    friction = search.friction(times)
    lr = search.lr(limits, friction.value)
    rehearsed, burn_in, step_seconds = _rehearse(search, prior, lr, friction)
    lr = lr if rehearsed.lr == lr.value else Choice("lr", rehearsed.lr, f"{lr.value:.3g} diverged in a rehearsal")
    order = [search.batch_size, lr, friction, burn_in, of_prior]
    choices = [choice for choice in order if search.wants(choice.name)]
    return Tuning(tuple(choices), time.perf_counter() - began, step_seconds)


@dataclass(frozen=True)
class _Search:
    """What all stages share. trial: steps of one trial."""

    problem: Problem
    dynamics: Dynamics  # what the trials run: SGHMC in place of one whose lr is not tuned
    tunable: frozenset[str]  # `tunable` of the sampler's dynamics
    full_batch: bool  # the sampler's dynamics takes all items at every step
    given: Mapping[str, Any]
    steps: int
    trial: int
    batch_size: Choice

    @staticmethod
    def begin(problem: Problem, dynamics: Transition, given: Mapping[str, Any], steps: int) -> _Search:
        weights = sum(p[0].numel() for p in problem.stack.parameters() if p.requires_grad)
        batch = choose_batch(problem.num_data, weights)
        size = given.get("batch_size", batch.value)
        size = problem.num_data if dynamics.full_batch else min(size or problem.num_data, problem.num_data)
        problem = replace(problem, batch_size=size)
        tried: Any = dynamics if "lr" in dynamics.tunable else SGHMC()
        return _Search(
            problem, tried, dynamics.tunable, dynamics.full_batch, given, steps, trial_steps(problem, steps), batch
        )

    def wants(self, name: str) -> bool:
        """Whether a setting is to be found: it is not given, and the sampler leaves it open."""
        if name == "batch_size" and self.full_batch:
            return False
        needed = {"lr": "lr", "friction": "friction", "burn_in": "lr"}.get(name)
        return (needed is None or needed in self.tunable) and name not in self.given

    def trial_of(
        self, prior: Prior, name: str, problem: Problem | None = None, lr: float | None = None, friction: Any = None
    ) -> Trial:
        dynamics: Any = self.dynamics if friction is None else replace(self.dynamics, friction=friction)  # type: ignore
        return Trial(problem or self.problem, dynamics, prior, lr or self.given.get("lr", 1e-3), name)

    def friction(self, times: tuple[Tensor, int]) -> Choice:
        present = self.dynamics.friction
        if not self.wants("friction"):
            return Choice("friction", present, "given")
        return choose_friction(times[0], present, times[1])

    def lr(self, limits: Limits, friction: float) -> Choice:
        return choose_lr(limits, friction) if "lr" not in self.given else Choice("lr", self.given["lr"], "given")


def _prior(search: _Search, validation: Items | None) -> tuple[Prior, Choice]:
    """The prior with the best predictions for items that its trials have not seen."""
    given = search.given.get("prior")
    if given is not None:
        return given, Choice("prior", None, "given")
    problem, held_out = _split(search.problem, validation)
    if search.trial < SHORTEST:
        about = prior_predictive(problem, Gaussian(), held_out[0][:PROBES])
        return Gaussian(), Choice("prior", 1.0, f"trials of {search.trial} steps are too short to compare; {about}")
    scores: dict[Any, Tensor] = {}
    for precision in CANDIDATES:
        trial, score = search.trial_of(Gaussian(precision), f"prior {precision}", problem), Score(held_out)
        warm_up(trial, search.trial // 2, fixed="lr" in search.given)
        trial.run_stably(search.trial // 2, score, max(1, search.trial // 40))
        scores[precision] = score.nll
    about = {p: prior_predictive(problem, Gaussian(p), held_out[0][:PROBES]) for p in CANDIDATES}
    choice = choose_prior(scores, about)
    return Gaussian(choice.value), choice


def _limits(search: _Search, prior: Prior) -> tuple[Limits, tuple[Tensor, int]]:
    """What bounds lr where the chains stay; and autocorrelation times (C, quantities) in draws, with their distance."""
    trial = search.trial_of(prior, "limits")
    limits = measure_noise(trial, warm_up(trial, search.trial, fixed="lr" in search.given))
    if "lr" not in search.given:
        trial.lr = limits.lr(search.dynamics.friction)
    draws, every = _watch(trial, search.trial)
    return measure_noise(trial, limits), (autocorrelation_time(draws), every)


def _rehearse(search: _Search, prior: Prior, lr: Choice, friction: Choice) -> tuple[Trial, Choice, float]:
    """A run from the start with the settings found: the trial, its burn-in, and the seconds of a step."""
    own = friction.value if search.wants("friction") else None
    trial = search.trial_of(prior, "rehearsal", lr=lr.value, friction=own)
    began = time.perf_counter()
    draws, every = _watch(trial, search.trial)
    seconds = (time.perf_counter() - began) / search.trial
    longest = float(autocorrelation_time(draws[len(draws) // 2 :]).mean(0).quantile(0.9)) * every
    burn_in = choose_burn_in([trial.energy_trace(), mean_trace(draws)], longest, search.steps)
    return trial, burn_in, seconds


def _watch(trial: Trial, steps: int) -> tuple[Tensor, int]:
    """Predictions (draws, C, quantities) along the steps, and the steps between two draws."""
    every, x = max(1, steps // DRAWS), trial.problem.items[0]
    x = x[torch.linspace(0, len(x) - 1, min(PROBES, len(x)), device=x.device).long()]
    draws: list[Tensor] = []
    trial.run_stably(steps, lambda trial: draws.append(trial.predictions(x)), every)
    return torch.stack(draws[-(steps // every) :]), every  # draws before a divergence do not count


def _split(problem: Problem, validation: Items | None) -> tuple[Problem, Items]:
    """The problem without the items that compare priors, and these; all of them, in both, where they are too few."""
    x, y = problem.items
    if validation is not None:
        return problem, (validation[0][:LARGEST_PART], validation[1][:LARGEST_PART])
    kept, out = hold_out(len(y), HELD_OUT, derive_seed("tune", problem.seed))
    if not len(out):
        return problem, problem.items
    out = out[:LARGEST_PART].to(y.device)
    kept = kept.to(y.device)
    return problem.on((x[kept], y[kept])), (x[out], y[out])


def describe_untuned(dynamics: Transition) -> str | None:
    """A line on what `find_settings` leaves as it is; None where it finds all settings."""
    if "lr" in dynamics.tunable:
        return None
    return f"tune: lr, friction and burn-in stay as they are, because {dynamics} adapts or preconditions its step"


def _check(dynamics: Transition, temperature: float, given: Mapping[str, Any]) -> None:
    if not (isinstance(temperature, int | float) and temperature > 0):
        raise ConfigError(f"tune=auto needs a temperature > 0, got {temperature}: an optimiser has other settings")
    if not dynamics.noisy or dynamics.variational:
        raise ConfigError(f"tune=auto finds settings of samplers, and {dynamics} is none: tune=false")
    if unknown := sorted(set(given) - set(NAMES)):
        raise ConfigError(f"given holds {unknown[0]!r}: the settings are {', '.join(NAMES)}")
