"""Search: what all stages of tuning share, and what follows from a multiplier once a weighting is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bdl.samplers.dynamics.base import Transition
from bdl.samplers.exchange import Exchange
from bdl.samplers.priors.base import Prior
from bdl.samplers.weighting.base import Flat, Weighting
from bdl.tune.batch import choose_batch
from bdl.tune.choice import Choice
from bdl.tune.sampler import ON_BATCHES
from bdl.tune.trial import Problem, Trial
from bdl.tune.work import trial_steps


@dataclass(frozen=True)
class Search:
    """What all stages share.

    trial: steps of one trial. weighting: that of the run, with its multiplier; trials at the temperature T over the
    multiplier, without weighting, are otherwise like it.
    """

    problem: Problem
    dynamics: Transition  # what the trials run: SGHMC in place of one with lr of its own for every coordinate
    tunable: frozenset[str]  # `tunable` of the sampler's dynamics
    given: Mapping[str, Any]
    steps: int
    trial: int
    batch_size: Choice
    scale_free: bool  # whether a factor on all gradients leaves the steps of the sampler's dynamics as they are
    weighting: Weighting = Flat()
    multiplier: float = 1.0
    exchange: Exchange | None = None  # in trials of the step: see `bdl.tune.ladder`

    @staticmethod
    def begin(problem: Problem, dynamics: Transition, given: Mapping[str, Any], steps: int) -> Search:
        batch = choose_batch(problem.count, problem.parameters)
        size = given.get("batch_size", batch.value)
        problem = replace(problem, batch_size=dynamics.batch_of(problem.count, size or None))
        tried = dynamics if dynamics.fits_trials else ON_BATCHES
        return Search(
            problem, tried, dynamics.tunable, given, steps, trial_steps(problem, steps), batch, dynamics.scale_free
        )

    @property
    def fixed_lr(self) -> float | None:
        """The lr of trials without weighting; None where they find one."""
        # SGHMC stands in the trials for a dynamics whose lr has another scale
        plain = self.given.get("plain_lr") if "lr" in self.tunable else None
        return self.given.get("lr", plain)

    @property
    def cooled(self) -> Search:
        """The search at the temperature at which plain chains sample what the weighting samples."""
        problem = replace(self.problem, temperature=self.problem.temperature / self.multiplier)
        return replace(self, problem=problem)

    def scaled_lr(self) -> tuple[Choice, ...]:
        """The lr that follows from a plain one, where that is given."""
        plain = self.given.get("plain_lr")
        if plain is None or self.multiplier == 1 or self.scale_free:
            return ()
        return (self.over_multiplier(Choice("lr", plain, "the lr without weighting")),)

    def over_multiplier(self, lr: Choice) -> Choice:
        """The lr of weighted chains that move as plain ones do with `lr` at their temperature."""
        if self.multiplier == 1 or "lr" in self.given:
            return lr
        return Choice(
            "lr", lr.value / self.multiplier, f"{lr.value:.4g} over the multiplier {self.multiplier:.3g}; {lr.reason}"
        )

    def wants(self, name: str) -> bool:
        """Whether a setting is to be found: it is not given, and the sampler leaves it open."""
        if name == "lr" and "plain_lr" in self.given:
            return self.multiplier != 1
        if name == "batch_size" and self.dynamics.full_batch:
            return False
        needed = {"lr": "lr", "lr_power": "lr", "swap_every": "lr", "friction": "friction", "burn_in": "lr"}.get(name)
        return (needed is None or needed in self.tunable) and name not in self.given

    def trial_of(self, prior: Prior, name: str, lr: float | None = None, friction: float | None = None) -> Trial:
        """A trial of the problem from its start, at the lr given where none is named."""
        dynamics: Any = self.dynamics if friction is None else replace(self.dynamics, friction=friction)  # type: ignore
        return Trial(
            self.problem,
            dynamics,
            prior,
            lr or self.fixed_lr or 1e-3,
            name,
            weighting=self.weighting,
            exchange=self.exchange,
        )
