"""What a long exact continuation says of a run: whether its energy stays, and how its predictions change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bdl.law.continuation import Continuation
from bdl.law.directions import DirectionTemperature
from bdl.posterior.class_evaluation import ClassEvaluation
from bdl.posterior.evaluation import PosteriorEvaluation
from bdl.posterior.report.pictures import name_of_direction
from bdl.posterior.value_evaluation import ValueEvaluation

MOVED_ERRORS = 3  # standard errors by which the energy must move
SURE_OF_ONE = 4  # the same for the hottest or the coldest of many directions, whose errors come from few chains


@dataclass(frozen=True)
class Measured:
    """A number with its standard error, NaN where that is not known."""

    value: float
    error: float

    def __str__(self) -> str:
        """The value with as many digits as its error has meaning.

        >>> print(Measured(-446.31, 55.2), Measured(0.01234, 0.0021), Measured(2.0, math.nan))
        -446 ± 55 0.0123 ± 0.0021 2
        """
        if not (math.isfinite(self.error) and self.error > 0):
            return f"{self.value:.4g}"
        digits = max(0, 1 - math.floor(math.log10(self.error)))
        return f"{self.value:.{digits}f} ± {self.error:.{digits}f}"

    @classmethod
    def over_chains(cls, of_chain: Tensor, least: float = 0.0) -> Measured:
        """The mean of (C,) numbers. The error of one chain is NaN. least: bound of the error, for one number."""
        count = len(of_chain)
        between = float(of_chain.std()) if count > 1 else math.nan
        spread = least if math.isnan(between) and least else max(between, least)
        return cls(float(of_chain.mean()), spread / math.sqrt(count))


@dataclass(frozen=True)
class EnergyChange:
    """U after an exact continuation less that of the kept samples, nats.

    change, before: means over chains. along: the sd of U along a chain while it goes on exactly, mean over chains, at
    most that of the law where the chain is short. acceptance: mean over chains. trajectories: of every chain.
    """

    change: Measured
    before: float
    along: float
    acceptance: float
    trajectories: int

    @classmethod
    def of(cls, stacks: Sequence[Continuation], kept: Tensor | None = None) -> EnergyChange:
        """From the second half of the trajectories of every chain.

        kept: (C,) mean U over the kept samples of every chain, of which one by itself says less; where they are not
        known, that of the last one. Few chains may agree by chance: the error is no smaller than if one state of each
        stood for its chain, with the spread `along`.
        """
        before = torch.cat([s.energies[:, 0] for s in stacks]) if kept is None else kept
        late, chains = torch.cat([s.late for s in stacks]), [len(s.energies) for s in stacks]
        along = float(late.std(1).mean())
        acceptance = sum(s.acceptance * count for s, count in zip(stacks, chains, strict=True)) / sum(chains)
        change = Measured.over_chains(late.mean(1) - before, along)
        return cls(change, float(before.mean()), along, acceptance, stacks[0].energies.shape[1] - 1)

    @property
    def is_sure(self) -> bool:
        return abs(self.change.value) > MOVED_ERRORS * self.change.error


@dataclass(frozen=True)
class PredictionChange:
    """How the average over chains predicts after a continuation, beside before, on the same items.

    change: root mean square over items, beyond Monte Carlo error: of probabilities, or of means in predictive standard
    deviations. monte_carlo: the error that was taken off. nll, single: NLL before and after, nats, of the average and
    of the last network of a chain. That of the average is without what few chains add to it, by a jackknife.
    nll_change, single_change: after less before, errors over chains.
    """

    items: int
    of_numbers: bool
    change: float
    monte_carlo: float
    nll: tuple[float, float]
    nll_change: Measured
    single: tuple[float, float]
    single_change: Measured

    @classmethod
    def between(cls, before: PosteriorEvaluation, after: PosteriorEvaluation) -> PredictionChange:
        """From evaluations of the same chains on the same items. One chain tells no Monte Carlo error."""
        moved = _values(after, before) - _values(before, before)  # (C, n, k)
        chains = len(moved)
        noise = moved.var(0).mean() / chains if chains > 1 else torch.tensor(0.0)
        square = float(moved.mean(0).square().mean() - noise)
        nll = _jackknife(torch.stack([_logs(e.chain_bma, e) for e in (before, after)]))
        alone = [-_logs(e.one_sample, e).mean(1) for e in (before, after)]  # (C,) each
        return cls(
            before.items, isinstance(before, ValueEvaluation), math.sqrt(max(square, 0.0)), math.sqrt(float(noise)),
            *nll,
            (float(alone[0].mean()), float(alone[1].mean())), Measured.over_chains(alone[1] - alone[0]),
        )  # fmt: skip


def _values(evaluation: PosteriorEvaluation, before: PosteriorEvaluation) -> Tensor:
    """(C, n, k) what every chain's average predicts: probabilities, or means in standard deviations of `before`."""
    if isinstance(evaluation, ClassEvaluation):
        return evaluation.chain_bma.double()
    return torch.stack([p.mean.double() for p in evaluation.chain_bma]) / before.bma.std.double()


def _logs(predictions: Sequence, evaluation: PosteriorEvaluation) -> Tensor:  # type: ignore[type-arg]
    """(C, n) log probabilities or densities of y by the predictions of each chain."""
    if isinstance(evaluation, ClassEvaluation):
        return -torch.stack([evaluation.losses_of(probs) for probs in predictions])
    return torch.stack([p.log_density(evaluation.y).double() for p in predictions])


def _jackknife(logs: Tensor) -> tuple[tuple[float, float], Measured]:
    """The NLL of two averages over C chains, from log probabilities (2, C, n) by each, and its change.

    The jackknife (Quenouille 1956): averages that leave one chain out tell the error, and the share of 1/C in each NLL,
    which is taken off.
    """
    chains = logs.shape[1]
    whole = math.log(chains) - logs.logsumexp(1).mean(1)  # (2,)
    if chains == 1:
        return (float(whole[0]), float(whole[1])), Measured(float(whole[1] - whole[0]), math.nan)
    rest = [[c for c in range(chains) if c != left] for left in range(chains)]
    each = torch.stack([math.log(chains - 1) - logs[:, r].logsumexp(1).mean(1) for r in rest])  # (C, 2)
    first, last = (chains * whole - (chains - 1) * each.mean(0)).tolist()
    error = float((chains - 1) / math.sqrt(chains) * (each[:, 1] - each[:, 0]).std())
    return (first, last), Measured(last - first, error)


@dataclass(frozen=True)
class Certificate:
    """Whether a run has sampled exp(-U/T), by what exact gradients say of it.

    directions: temperatures over T at kept samples, in any order. along, gaussian: the sd of U along a chain of the
    run, NaN where it is not recorded, and sqrt(d/2) T, nats.
    """

    temperature: float
    energy: EnergyChange
    along: float
    gaussian: float
    directions: Sequence[DirectionTemperature]
    predictions: PredictionChange | None = None

    def hot_to_cold(self) -> list[DirectionTemperature]:
        return sorted(self.directions, key=lambda d: -d.ratio)

    def off(self) -> DirectionTemperature | None:
        """The direction that is surely off T, the hottest one first; None without one."""
        surest = max(self.directions, key=lambda d: d.ratio - SURE_OF_ONE * d.error, default=None)
        if surest is not None and surest.ratio - SURE_OF_ONE * surest.error > 1:
            return surest
        surest = min(self.directions, key=lambda d: d.ratio + SURE_OF_ONE * d.error, default=None)
        return surest if surest is not None and surest.ratio + SURE_OF_ONE * surest.error < 1 else None

    def sentence(self) -> str:
        """What is found, in one sentence."""
        t, change, off = f"T = {self.temperature:g}", self.energy.change, self.off()
        along = "" if off is None else f"along {name_of_direction(off.name)} it was at T = {self.at(off)}"
        size = Measured(abs(change.value), change.error)
        if self.energy.is_sure:
            way, law = ("falls", "hotter") if change.value < 0 else ("rises", "colder")
            tail = f"; {along}" if along else ""
            return f"the energy {way} by {size} nats: the run sampled a {law} law than {t}{tail}"
        stays = f"the energy stays (change {change} nats)"
        if off is None:
            return f"{stays}: nothing contradicts {t}"
        return f"{stays}, but the run sampled another law than {t}: {along}"

    def at(self, direction: DirectionTemperature) -> Measured:
        return Measured(direction.ratio * self.temperature, direction.error * self.temperature)

    def numbers(self) -> dict[str, float]:
        """Flat, as a JSON file has them; NaN where a number is not known."""
        e, found = self.energy, {"temperature": self.temperature, "energy/gaussian": self.gaussian}
        found["energy/along"] = self.along
        found |= {"energy/continuation": e.change.value, "energy/continuation_se": e.change.error}
        found |= {"energy/along_exact": e.along, "acceptance": e.acceptance, "trajectories": float(e.trajectories)}
        for d in self.directions:
            at, error = self.at(d).value, self.at(d).error
            found |= {f"temperature/direction/{d.name}": at, f"temperature/direction/{d.name}_se": error}
        if (p := self.predictions) is not None:
            found |= {"predictions/change": p.change, "predictions/monte_carlo": p.monte_carlo}
            found |= {"nll/before": p.nll[0], "nll/after": p.nll[1], "nll/change_se": p.nll_change.error}
            found |= {"single/nll/before": p.single[0], "single/nll/after": p.single[1]}
            found |= {"single/nll/change_se": p.single_change.error}
        return found
