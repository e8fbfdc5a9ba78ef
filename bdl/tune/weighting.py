"""Adaptive weighting: how hot chains may move so that weights still lead back to the posterior's temperature T0.

Chains at T = k T0 pass barriers that hold chains at T0. A weighting brings them down to the energies of T0 again and
again, so that weights to T0 rest on many samples (Liang 2024, on temperatures above the target's). What it costs is log
G, the log mass of the energies of T0 under exp(-U/T): about d/2 (log k - 1 + 1/k) nats for d parameters. A chain has to
walk that way in both directions, and counting its round trips shows whether it does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bdl.samplers.priors.base import Prior
from bdl.samplers.weighting.base import Weighting
from bdl.samplers.weighting.histogram_weighting import HistogramWeighting
from bdl.samplers.weighting.partition import HIGHEST, LOWEST, MARGIN
from bdl.tune.burn_in import MOVES, movement
from bdl.tune.choice import Choice
from bdl.tune.rehearse import Rehearsed, step_of
from bdl.tune.search import Search
from bdl.tune.trial import Trial
from bdl.tune.work import trial_steps

PLAIN = "flat"  # the choice where no hotter T pays
HOTTER = (4.0, 2.0)  # T / T0, from hot to cold
ZETAS = (1.0, 4.0)  # the larger zeta, the lower the energies and the larger the multiplier, which divides lr
MOST_NATS = 60.0  # of log G that chains walked with zeta = 4, a Gaussian of 100 parameters at 4 T0
FEWEST_TRIPS = 0.2  # round trips of a chain in the later half of a weighted trial, a twentieth of the run
USABLE = 0.05  # effective share of the samples of a trial, in which psi may still change
TRIALS = 10  # without weighting, that share the budget; a weighted one is five times as long
MOST_SHARE = 0.5  # of the steps of the run that all trials may take
WEIGHTED = 5  # times the steps of a trial without weighting, because psi has to come to rest
SHORTEST = 200  # steps of a trial without weighting, below which psi does not come to rest in a weighted one
STEEPEST = 0.99  # quantile of the multipliers that lr has to bear


@dataclass(frozen=True)
class Explored:
    """What `explore` has found: the choices, and by how much the weighting steepens the gradient."""

    choices: tuple[Choice, ...]
    multiplier: float = 1.0
    settled: int = 0  # steps that psi needs

    @classmethod
    def plain(cls, why: str) -> Explored:
        return cls((Choice("weighting", PLAIN, f"chains without weighting, because {why}"),))


def nats_of_gaussian(parameters: int, ratio: float) -> float:
    """By how much log G falls between the mean energies at k T0 and at T0, for a Gaussian of so many parameters.

    The energies under exp(-U/T) are T times a chi-square variable with d degrees of freedom over two; its tail below
    1/k of its mean falls as exp(-d/2 (log k - 1 + 1/k)) (Chernoff).
    """
    return parameters / 2 * (math.log(ratio) - 1 + 1 / ratio)


def ratios_within_reach(parameters: int) -> tuple[float, ...]:
    """The T / T0, from hot to cold, between which and T0 a chain may walk."""
    return tuple(k for k in HOTTER if nats_of_gaussian(parameters, k) <= MOST_NATS)


def round_trips(energies: Tensor, low: float, high: float) -> Tensor:
    """(C,) how often each chain of energies (C, n) went from `high` or above to `low` or below, and back."""
    place = torch.where(energies >= high, 1, torch.where(energies <= low, -1, 0))
    trips = []
    for chain in place:
        ends = chain[chain != 0]
        turns = ends[torch.cat([ends.new_ones(1).bool(), ends.diff() != 0])] if len(ends) else ends
        trips.append(max(0, (len(turns) - 1) // 2))
    return torch.tensor(trips)


@dataclass(frozen=True)
class Level:
    """The energies (C, n) of a trial at a temperature, once it rests, nats."""

    temperature: float
    energies: Tensor
    noise: float = 0.0  # standard deviation of a batch's energy around that of all data

    @property
    def median(self) -> float:
        return float(self.energies.median())

    def quantile(self, share: float) -> float:
        return float(torch.quantile(self.energies.flatten().double(), share))


@dataclass(frozen=True)
class Explorer:
    """Trials that look for the hottest T from which weights lead back to T0.

    search: of plain chains at T0. lr, friction: those of plain chains; None: the dynamics' own. weighting: that of the
    run, but for zeta and what is found with it. ratios: T / T0 to try, from hot to cold.
    """

    search: Search
    prior: Prior
    lr: float | None
    friction: float | None
    weighting: HistogramWeighting
    ratios: Sequence[float]

    @property
    def target(self) -> float:
        return self.search.problem.temperature

    def find(self) -> Explored:
        """The hottest T with round trips and usable weights, or plain chains and why."""
        steps = trial_steps(self.search.problem, self.search.steps, TRIALS, most=self.search.steps)
        if steps < SHORTEST:
            return Explored.plain(f"trials of {steps:,} steps are too short to look for a hotter T")
        cold = self._level(1.0, steps)
        if cold is None:
            return Explored.plain(f"trials of {steps:,} steps are too far from rest to look for a hotter T")
        tried, left = [], MOST_SHARE * self.search.steps - steps
        for ratio in self.ratios:
            hot, left = self._level(ratio, steps), left - steps
            if hot is None or hot.median <= cold.median:
                continue
            for zeta in ZETAS:
                if left < WEIGHTED * steps:
                    break
                if (found := self._weighted(cold, hot, zeta, WEIGHTED * steps)) is not None:
                    return found
                tried.append(f"{ratio:g} T0")
                left -= WEIGHTED * steps
        hotter = ", ".join(dict.fromkeys(tried)) or "hotter chains"
        return Explored.plain(f"no trial at {hotter} went between the energies of T0 and its own and came back")

    def _level(self, ratio: float, steps: int) -> Level | None:
        """The energies of plain chains at k T0; None where they still move."""
        trial, _ = self._trial(ratio, f"level {ratio:g}", steps)
        late = trial.energy_trace()[:, -(steps // 2) :]
        temperature = ratio * self.target
        if movement(late.mean(0), temperature, self.search.problem.parameters) > MOVES:
            return None
        noise = 0.0
        if not self.search.problem.takes_all:  # what changes from one step to the next is noise of batches, nearly
            noise = float((late.diff(dim=1).square().mean() / 2).sqrt())
        return Level(temperature, late, noise)

    def _weighted(self, cold: Level, hot: Level, zeta: float, steps: int) -> Explored | None:
        """What a weighted trial finds; None where its chains make no round trips, or its weights are of no use."""
        weighting = self.with_bins(cold, hot, zeta)
        trial, multipliers = self._trial(hot.temperature / self.target, f"zeta {zeta:g}", steps, weighting)
        late = trial.energy_trace()[:, steps // 2 :]
        trips = float(round_trips(late, cold.median, hot.median).double().mean())
        share = self._effective_share(trial, late, cold.noise)
        if trips < FEWEST_TRIPS or share < USABLE:
            return None
        value = {name: getattr(weighting, name) for name in ("zeta", "target", "low", "high")}
        reason = (
            f"chains at {hot.temperature:.3g} make {trips:.2g} round trips in {steps // 2:,} steps to the energies of "
            f"T0 = {self.target:.3g}, whose median is {cold.median:,.5g} for {hot.median:,.5g} nats, and weights back "
            f"have {share:.0%} effective samples"
        )
        hotter = Choice("temperature", hot.temperature, f"where chains move; weights lead to T0 = {self.target:.3g}")
        steep = max(1.0, float(multipliers[-(steps // 2) :].quantile(STEEPEST)), self.lr / trial.lr if self.lr else 1.0)
        return Explored((hotter, Choice("weighting", value, reason)), steep, steps)

    def with_bins(self, cold: Level, hot: Level, zeta: float) -> HistogramWeighting:
        """The weighting with bins from below the energies of T0 to above those of T."""
        low, high = cold.quantile(LOWEST), hot.quantile(HIGHEST)
        below = MARGIN * (cold.quantile(HIGHEST) - low)
        return replace(
            self.weighting, zeta=zeta, target=self.target, low=low - below, high=high + MARGIN * (high - low)
        )

    def _trial(self, ratio: float, name: str, steps: int, weighting: Any = None) -> tuple[Trial, Tensor]:
        """A trial of so many steps at k T0, and the multipliers (n, C).

        A weighted one has an lr for the multiplier k, which chains have where exp(-U/T0) lives.
        """
        problem = replace(self.search.problem, temperature=ratio * self.target)
        search = replace(self.search, problem=problem)
        search = search if weighting is None else replace(search, weighting=in_trials(weighting))
        lr = self.lr if self.lr is None or weighting is None or search.scale_free else self.lr / ratio
        trial = search.trial_of(self.prior, f"{name} at {ratio:g}", lr, self.friction)
        seen: list[Tensor] = []
        trial.run_stably(steps, lambda trial: seen.append(trial.sampler.multiplier.clone()))
        return trial, torch.stack(seen[-steps:])

    def _effective_share(self, trial: Trial, late: Tensor, noise: float) -> float:
        """Kish's effective share of the weights at the energies (C, n), less what batch noise takes of it."""
        weighting, h = trial.weighting, trial.sampler.reweighting.histogram
        toward = weighting.toward(trial.problem.temperature)  # type: ignore[attr-defined]
        if h is None or h.edges is None:
            return 0.0
        weights = toward.weights(late.T.to(h.psi), h, weighting.zeta)
        kish = float(weights.sum() ** 2 / weights.square().sum()) / weights.numel()
        return kish * math.exp(-((noise * toward.tilt) ** 2))


def explore(
    search: Search, prior: Prior, weighting: Weighting, heat: float
) -> tuple[Search, Rehearsed, tuple[Choice, ...]]:
    """The settings of plain chains at T0, and the hottest T from which weights lead back; then lr is for it.

    A temperature beside another target is kept, and zeta is found for it.
    """
    assert isinstance(weighting, HistogramWeighting)
    moves = search.problem.temperature
    target = weighting.target or moves
    search = replace(search, problem=replace(search.problem, temperature=target))
    weights = search.problem.parameters
    ratios = ratios_within_reach(weights) if moves == target else (moves / target,)
    open_settings = any(search.wants(name) for name in ("lr", "friction", "burn_in"))
    found = step_of(search, prior, heat) if open_settings else Rehearsed(())
    of = {choice.name: choice.value for choice in found.choices}
    if not ratios:
        explored = Explored.plain(f"{weights:,} weights leave no hotter T from which chains come back")
    else:
        lr = of.get("lr", search.fixed_lr)
        explored = Explorer(search, prior, lr, of.get("friction"), weighting, ratios).find()
    if moves != target and explored.choices[0].value == PLAIN:  # plain chains at the given T would miss it
        back = Choice("temperature", target, f"that of the posterior, since chains at {moves:.3g} lead nowhere")
        explored = replace(explored, choices=(back, *explored.choices))
    search = replace(search, multiplier=explored.multiplier)
    plain = found.choices if "lr" in of else (*found.choices, *search.scaled_lr())
    adapted = tuple(_for_weighted(choice, search, explored) for choice in plain)
    return search, replace(found, choices=adapted), explored.choices


def _for_weighted(choice: Choice, search: Search, explored: Explored) -> Choice:
    """A setting of plain chains as the weighted ones need it."""
    if choice.name == "lr" and "plain_lr" not in search.given:
        return search.over_multiplier(choice)
    if choice.name == "burn_in" and explored.settled > choice.value:
        return Choice("burn_in", explored.settled, f"psi needs as many steps; {choice.reason}")
    return choice


def in_trials(weighting: Weighting) -> Any:
    """The weighting as a trial has it: on energies of its batches, because those of all data would cost too much."""
    if not isinstance(weighting, HistogramWeighting) or weighting.energy == "batch":
        return weighting
    return replace(weighting, energy="batch", refresh=1)
