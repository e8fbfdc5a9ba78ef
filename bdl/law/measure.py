"""What a report says of the law that a run has sampled: T by direction, the energy's spread, a short continuation."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bdl.display import Progress
from bdl.errors import BdlWarning, ConfigError
from bdl.law.continuation import Continuation
from bdl.law.directions import DirectionReading, DirectionTemperature, temperatures
from bdl.law.exact import ExactPotential
from bdl.law.thermometer import DIRECTION_KINDS, StackReadings, Thermometer
from bdl.likelihoods import Loss
from bdl.posterior.index import Record
from bdl.posterior.judge_law import ERRORS
from bdl.posterior.predict import Posterior
from bdl.samplers.sampler import Sampler
from bdl.seeding import generator


@dataclass(frozen=True)
class LawMeasurement:
    """T along directions, over T, and energies: what exact gradients say of the kept states.

    along, gaussian: the sd of U along a chain, and that of a normal distribution of as many parameters, nats; NaN where
    energies over all data are not known.
    """

    temperature: float
    directions: Sequence[DirectionTemperature] = ()
    continuations: Sequence[Continuation] = ()
    along: float = math.nan
    gaussian: float = math.nan

    def metrics(self) -> dict[str, float]:
        """Flat, as in metrics.json; temperatures in the units of T, energies in nats."""
        t, found = self.temperature, {"energy/along": self.along, "energy/gaussian": self.gaussian}
        for d in self.directions:
            found |= {f"temperature/direction/{d.name}": d.ratio * t, f"temperature/direction/{d.name}_se": d.error * t}
        if self.directions:
            hottest = max(self.directions, key=lambda d: d.ratio - ERRORS * d.error)  # as the verdict asks
            coldest = min(self.directions, key=lambda d: d.ratio + ERRORS * d.error)
            for name, d in (("hottest", hottest), ("coldest", coldest)):
                key = f"temperature/directions/{name}"
                found |= {key: d.ratio * t, f"{key}_se": d.error * t}
            found["temperature/directions/median"] = float(np.median([d.ratio for d in self.directions])) * t
        if self.continuations:
            change = torch.cat([c.change for c in self.continuations])
            found["energy/continuation"] = float(change.mean())
            found["energy/continuation_se"] = float(change.std() / math.sqrt(len(change)))  # NaN for one chain
        return {name: value for name, value in found.items() if not math.isnan(value)}


def measure_law(
    posterior: Posterior, sampler: Sampler, loss: Loss, batches: Iterable[Any], steps: int, batch: int,
    progress: Progress | None = None, states: int | None = None,
) -> dict[str, float]:  # fmt: skip
    """What exact gradients say of the samples of a run, for metrics.json; {} where they say nothing.

    T by direction, and how far the energy falls when the last states go on by exact HMC, at about 4 % of the gradients
    that the run has taken. Nothing is measured at T = 0, of approximations and weighted distributions, with dropout,
    and where batches have no fixed order.

    Args:
        sampler: that of the run, for prior, N and what is sampled.
        batches: training batches in a fixed order, without augmentation.
        steps, batch: of the run, which bound what the measurement may cost.
        states: read so many of each chain by all rows, whatever they cost; None for what the bound allows.

    Warns with BdlWarning where the measurement fails: the samples are as good without it.
    """
    records = [r for r in posterior.records if np.mean(r.temperature) > 0 and r.zeta == 0]
    if not records or sampler.dynamics.variational or posterior.target.get("approximation"):
        return {}
    try:
        return _measured(posterior, sampler, loss, batches, records, steps, batch, progress, states)
    except (ConfigError, RuntimeError) as error:  # a network or a loader that only training knows how to treat
        reason = " ".join(str(error).split())
        warnings.warn(f"the temperature by direction was not measured: {reason}", BdlWarning, stacklevel=2)
        return {}


def _measured(
    posterior: Posterior, sampler: Sampler, loss: Loss, batches: Iterable[Any], records: Sequence[Record], steps: int,
    batch: int, progress: Progress | None, states: int | None,
) -> dict[str, float]:  # fmt: skip
    """See `measure_law`. records: those that have a temperature."""
    found = list(thermometers(posterior, sampler, loss, batches, records, steps * batch, batch))
    readings, continuations = [], []
    for done, thermometer in enumerate(found):
        readings.append(thermometer.read(states))
        continuations.append(thermometer.continued())
        if progress is not None:
            progress(done + 1, len(found))
    temperature = float(np.mean(records[-1].temperature))
    directions = joined_temperatures([r for r in readings if r is not None])
    kept = [c for c in continuations if c is not None]
    return LawMeasurement(temperature, directions, kept, *spreads(posterior, sampler, temperature)).metrics()


def thermometers(
    posterior: Posterior, sampler: Sampler, loss: Loss, batches: Iterable[Any], records: Sequence[Record], work: float,
    batch: int,
) -> Iterator[Thermometer]:  # fmt: skip
    """One for each stack whose chains all count."""
    prior = copy.deepcopy(sampler.prior)  # what it has learned is put back to that of every state
    for stack in sorted({r.stack for r in records}):
        of_stack = [r for r in records if r.stack == stack]
        chains = len(of_stack[-1].chains)
        if prior.learns and chains != (sampler.chains or 1):
            continue
        potential = ExactPotential(
            posterior.net, chains, loss, prior, batches, sampler.num_data, posterior.read, sampler.only
        )
        potential.put(posterior.frozen)
        yield Thermometer(
            posterior, potential, [r for r in of_stack if len(r.chains) == chains], work, batch,
            generator("cpu", "law", sampler.seed, stack),
        )  # fmt: skip


def joined_temperatures(stacks: Sequence[StackReadings]) -> list[DirectionTemperature]:
    """The temperatures along all directions, from the readings of all stacks side by side."""
    directions: list[DirectionTemperature] = []
    for kind in DIRECTION_KINDS if stacks else ():
        count = min(len(s.readings[kind]) for s in stacks)
        together = [
            DirectionReading(
                torch.cat([s.readings[kind][i].square for s in stacks]),
                torch.cat([s.readings[kind][i].curvature for s in stacks]),
            )
            for i in range(count)
        ]
        t = torch.cat([s.temperature[:count] for s in stacks], 1)
        directions += temperatures(stacks[0].names[kind], together, t)
    return directions


def spreads(posterior: Posterior, sampler: Sampler, temperature: float) -> tuple[float, float]:
    """The sd of U along a chain, the mean over chains, and sqrt(d/2) T, nats."""
    energies = posterior.recorded("energy_full")
    finite = energies[:, np.isfinite(energies).all(0)]
    d = sampler.chain.theta.shape[-1]
    along = float(finite.std(1, ddof=1).mean()) if finite.shape[1] > 1 else math.nan
    return along, math.sqrt(d / 2) * temperature
