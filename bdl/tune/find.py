"""find_settings: the story of tuning, from the batch size to the prior."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from bdl.data.split import hold_out
from bdl.engine.choose import Compile
from bdl.engine.stack import ChainStack
from bdl.errors import ConfigError
from bdl.likelihoods import Loss
from bdl.samplers.combinations import refuse_weighted_exchange
from bdl.samplers.dynamics.base import Transition
from bdl.samplers.exchange import Exchange
from bdl.samplers.priors.base import Prior
from bdl.samplers.priors.independent import Gaussian
from bdl.samplers.weighting.base import AUTO, Flat, Weighting
from bdl.seeding import derive_seed
from bdl.tune import ladder
from bdl.tune.burn_in import MOST_BURN_IN, MOVES, movement
from bdl.tune.choice import Choice, Tuning
from bdl.tune.heat import HEAT_OF_BATCHES
from bdl.tune.optimiser import batches_of_optimiser, choose_for_optimiser, is_optimiser
from bdl.tune.prior import (
    OF_NUMBERS,
    at_share,
    at_temperature,
    candidates,
    choose_prior,
    prior_predictive,
    steps_to_act,
)
from bdl.tune.rehearse import step_of
from bdl.tune.sampler import ON_BATCHES
from bdl.tune.score import Score, clear_winner
from bdl.tune.search import Search
from bdl.tune.step import heat_of, measure_noise, warm_up
from bdl.tune.temperature import SHORTEST_RUN as SHORTEST_OF_T
from bdl.tune.temperature import TEMPERATURES_TRIED as TEMPERATURES
from bdl.tune.temperature import Temperatures, choose_temperature
from bdl.tune.trial import Problem, Trial, TrialItems
from bdl.tune.weighting import explore, in_trials
from bdl.tune.work import trial_steps

TUNED_NAMES = ("batch_size", "lr", "plain_lr", "lr_power", "swap_every", "friction", "burn_in", "prior")
HELD_OUT_SHARE = 0.2  # share of the training items that compares priors where there is no validation part
LARGEST_PART = 2048  # validation items
PRIOR_PROBES = 32  # items at which a prior shows what it predicts
ERRORS_OF_MOVING = 3.0  # standard errors by which a prior must be better than one whose trial still moves
TRIAL_SCORES = 20  # times in a trial that its predictions are scored
SHORTEST_TRIAL = 100  # steps of a trial that compares; in fewer, nothing has moved


def find_settings(
    stack: ChainStack,
    loss: Loss,
    train: TrialItems,
    validation: TrialItems | None = None,
    dynamics: Transition | None = None,
    *,
    num_data: int | None = None,
    weighting: Weighting = Flat(),
    exchange: Exchange | None = None,
    temperature: float | None = 1.0,
    steps: int = 80_000,
    given: Mapping[str, Any] = {},
    seed: int = 0,
    compiled: Compile = "auto",
    heat: float = HEAT_OF_BATCHES,
    labels: int = 1,
    groups: torch.Tensor | None = None,
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
        num_data: N, where `train` is a part; None means its length times `labels`.
        weighting: of the sampler. Under `AdaptiveWeight(zeta="auto")` the posterior is at its target T0, or at the
            temperature given here; zeta and the bins are found, and the hottest T from which chains come back to the
            energies of T0, see `bdl.tune.weighting`. Where there is none, the chains are plain ones at T0.
        exchange: of the sampler. lr then fits the first rung of its ladder, "lr_power" the others; "swap_every" is its
            `every`.
        temperature: T > 0. None: found by the predictions for validation items, among 1, 0.3, 0.1 and 0.03. 0, or a
            dynamics without noise, is an optimiser: its lr alone is found, by the predictions for validation items.
        steps: the length of the run. The trials together take a fifth of them at most, another one where T is found,
            and up to half of them where zeta is.
        given: settings that are fixed: "batch_size", "lr", "lr_power", "swap_every", "friction", "burn_in", or "prior"
            as an object. "plain_lr" is an lr without weighting, from which "lr" follows once zeta is found.
        seed: with the same seed, stack and data, and on the same machine, the settings are the same.
        compiled: see `compile` of `BayesianModule`.
        heat: the share by which batch noise may heat the direction that it heats most. Where no lr down to a twentieth
            of the largest keeps to it, lr keeps the mean over directions to 10 %, and its reason says how hot the
            hottest one is.
        labels: of each item, such as the tokens of a window of text; N counts them all.
        groups: (n,) of the items of `train`; those that compare priors are then whole groups.

    Returns the settings that were not given, as plain numbers and words. "batch_size" is N for full batches, and
    missing where the dynamics takes no other; "prior" is the precision of a `Gaussian`, "burn_in" in steps, "weighting"
    a mapping with arguments of `AdaptiveWeight`, or "flat" for none.

    Raises ConfigError for T < 0, a heat of 0 or less, a variational dynamics, an optimiser without `given["prior"]`, an
    unknown name in `given`, and where both T and zeta are to be found; DivergedError where even a tiny lr diverges.
    """
    began, dynamics = time.perf_counter(), ON_BATCHES if dynamics is None else dynamics
    _check(dynamics, temperature, weighting, given, heat)
    if exchange is not None:
        refuse_weighted_exchange(weighting)
    first = TEMPERATURES[0] if temperature is None else temperature
    items = num_data or labels * len(train[1])
    problem = Problem(stack, loss, train, items, 0, first, seed, compiled, labels=labels, groups=groups)
    if is_optimiser(dynamics, temperature):
        problem, held_out = _split(batches_of_optimiser(problem, given), validation)
        found = choose_for_optimiser(problem, dynamics, weighting, given, held_out, steps)
        return Tuning(found, time.perf_counter() - began, 0.0)
    search = Search.begin(problem, dynamics, given, steps)
    prior, of_prior, rhat = _prior(search, validation)
    choices = [search.batch_size, of_prior]
    if temperature is None:
        found_t = _temperature(search, prior, validation)
        search = replace(search, problem=replace(search.problem, temperature=found_t.value))
        prior = _at(search, prior, found_t.value)
        choices = [search.batch_size, at_temperature(of_prior, prior, found_t.value), found_t]
    if weighting.zeta == AUTO:
        search, steps_found, found = explore(search, prior, weighting, heat)
        choices += found
    else:
        multiplier, rungs = _multiplier(search, prior, weighting), ladder.in_trials(exchange, stack.chains)
        search = replace(search, weighting=in_trials(weighting), multiplier=multiplier, exchange=rungs)
        steps_found = step_of(search, prior, heat)
    choices += steps_found.choices
    wanted = tuple(choice for choice in choices if search.wants(choice.name))
    seconds = time.perf_counter() - began
    return Tuning(wanted, seconds, steps_found.step_seconds, steps_found.hottest, steps_found.noise_ratio, rhat)


def _prior(search: Search, validation: TrialItems | None) -> tuple[Prior, Choice, float]:
    """The prior with the best predictions for items that its trials have not seen, and R-hat for the length."""
    given = search.given.get("prior")
    if given is not None:
        return search.problem.centred(given), Choice("prior", None, "given"), math.nan
    problem, held_out = _split(search.problem, validation)
    tried = candidates(problem.loss, problem.shapes, search.dynamics.full_batch)
    compared = replace(search, problem=problem, trial=trial_steps(problem, search.steps, len(tried)))
    scores, about, left_out, rhat, lr, errors = {}, {}, {}, {}, math.inf, 1.0
    for precision in tried:
        prior, acts = Gaussian(precision), 0.0
        if scores and "lr" in search.tunable:
            acts = steps_to_act(prior, problem, lr, search.dynamics.friction)
        if acts > MOST_BURN_IN * search.steps:
            left_out[precision] = f"is left out, because it needs {acts:,.0f} steps to act"
            continue
        about[precision] = prior_predictive(problem, prior, held_out[0][:PRIOR_PROBES])
        trial, score, unusable = _compared(compared, prior, held_out, f"prior {precision}")
        may_move = compared.dynamics.full_batch and compared.trial >= SHORTEST_TRIAL
        if unusable and not scores and not may_move:
            kept = f"the default stays, because {unusable} to compare others (run longer, or give a prior)"
            return prior, Choice("prior", precision, f"{kept}; {about[precision]}"), math.nan
        if unusable and scores:
            left_out[precision] = "is left out, because its trial had not come to rest"
            continue
        errors = ERRORS_OF_MOVING if unusable else errors
        scores[precision], lr, rhat[precision] = score.nll, trial.lr, score.rhat
    of_first = rhat[tried[0]] if tried is OF_NUMBERS and search.dynamics.full_batch else math.nan
    choice = choose_prior(scores, about, left_out, errors, of_first)
    # The trial of a prior that has won a tie is too short to show how slowly its chains come together
    telling = choice.value if choice.value == clear_winner(scores, errors) else tried[0]
    return Gaussian(choice.value), choice, rhat[telling]


def _temperature(search: Search, prior: Prior, validation: TrialItems | None) -> Choice:
    """T by the predictions of chains at several T."""
    trials = _at_several(search, prior, validation)
    if isinstance(trials, str):
        return Choice("temperature", TEMPERATURES[0], f"T stays, because {trials}")
    return choose_temperature(trials.scores, trials.reached)


def _at(search: Search, prior: Prior, temperature: float) -> Prior:
    """The prior that goes with T: where tuning has chosen it, a colder T leaves it as it is, see `at_share`."""
    return prior if "prior" in search.given else at_share(prior, temperature / TEMPERATURES[0], search.problem)


def _multiplier(search: Search, prior: Prior, weighting: Weighting) -> float:
    """By how much a given weighting steepens the gradient, in 95 % of a trial; 1 where no lr is to be found."""
    if not (weighting.needs_energy and search.wants("lr")):
        return 1.0
    trial, seen = replace(search, weighting=in_trials(weighting)).trial_of(prior, "multiplier"), []
    warm_up(trial, search.trial // 2)
    trial.run_stably(search.trial // 2, lambda trial: seen.append(trial.sampler.multiplier.max().clone()))
    return max(1.0, float(torch.stack(seen).quantile(0.95)))


def _at_several(search: Search, prior: Prior, validation: TrialItems | None) -> Temperatures | str:
    """A trial at each candidate for T, all from one start and equally long, so that T alone is compared.

    Chains that went on from one T to the next would be trained for longer at the colder one, and would predict better
    for that. So would cold chains that are still on their way. Returns why nothing can be compared: trials would be too
    short, or that at the first T is not at rest.
    """
    problem, held_out = _split(search.problem, validation)
    steps = trial_steps(problem, search.steps, len(TEMPERATURES), most=search.steps)
    shortest = SHORTEST_TRIAL if search.dynamics.full_batch else SHORTEST_OF_T
    if steps < shortest:
        return f"trials of {steps:,} steps are too short to compare others, which takes {shortest:,}"
    scores, reached = {}, {}
    for share in TEMPERATURES:
        temperature = share * problem.temperature
        compared = replace(search, problem=replace(problem, temperature=temperature), trial=steps)
        trial, score, unusable = _compared(compared, _at(search, prior, temperature), held_out, f"T {temperature}")
        if unusable and not scores:
            return f"{unusable} to compare others"
        reached[temperature] = temperature * (1 + (0.0 if problem.takes_all else heat_of(trial.sampler)))
        if not unusable:
            scores[temperature] = score.nll
    return Temperatures(scores, reached)


def _compared(search: Search, prior: Prior, held_out: TrialItems, name: str) -> tuple[Trial, Score, str | None]:
    """A trial, the score of its second half, and why the score does not count; None where the chains are at rest."""
    half, dynamics, problem = search.trial // 2, search.dynamics, search.problem
    trial = Trial(problem, dynamics.adapting_in(half), prior, search.fixed_lr or 1e-3, name)
    score = Score(held_out)
    if search.trial < SHORTEST_TRIAL:
        return trial, score, f"trials of {search.trial:,} steps are too short"
    if dynamics.full_batch:
        trial.run_stably(half)
    else:
        limits = measure_noise(trial, warm_up(trial, half, fixed=search.fixed_lr is not None))
        trial.lr = trial.lr if search.fixed_lr is not None else limits.lr(dynamics.friction)
    seen = len(trial.energies)
    trial.run_stably(half, score, max(1, half // TRIAL_SCORES))
    energies = trial.energy_trace()[:, seen:].mean(0)
    moved = movement(energies, problem.temperature, trial.sampler.chain.theta.shape[-1]) > MOVES
    return trial, score, f"trials of {search.trial:,} steps are too far from rest" if moved else None


def rows_of_trials(items: int, seed: int, groups: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The items of trials, and those that compare what they predict, which the start of a trial has not seen either."""
    return hold_out(items, HELD_OUT_SHARE, derive_seed("tune", seed), groups=groups)


def _split(problem: Problem, validation: TrialItems | None) -> tuple[Problem, TrialItems]:
    """The problem without the items that compare priors, and these; all of them, in both, where they are too few."""
    x, y = problem.items
    if validation is not None:
        return problem, (validation[0][:LARGEST_PART], validation[1][:LARGEST_PART])
    kept, out = rows_of_trials(len(y), problem.seed, problem.groups)
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


def _check(
    dynamics: Transition, temperature: float | None, weighting: Weighting, given: Mapping[str, Any], heat: float
) -> None:
    if not heat > 0:
        raise ConfigError(f"heat must be > 0, got {heat} (the share by which batches may heat the hottest direction)")
    if temperature is None and weighting.zeta == AUTO:
        raise ConfigError(
            "tune.temperature=true looks for a colder T and zeta=auto for a hotter one: give sampler.temperature or "
            "sampler.weighting.zeta"
        )
    if temperature is not None and not (isinstance(temperature, int | float) and temperature >= 0):
        raise ConfigError(f"tune=auto needs a temperature of at least 0, got {temperature}")
    if dynamics.variational:
        raise ConfigError(f"tune=auto finds settings of samplers, and {dynamics} is not one: set tune=false")
    if unknown := sorted(set(given) - set(TUNED_NAMES)):
        raise ConfigError(f"given holds {unknown[0]!r}: the settings are {', '.join(TUNED_NAMES)}")
