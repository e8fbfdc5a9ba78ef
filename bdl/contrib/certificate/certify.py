"""The certificate of a run: its last samples go on by exact HMC, and what changes is told. See conf/verify.yaml."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from rich.markup import escape
from rich.table import Table

import bdl
from bdl.contrib.certificate.certificate import Certificate, EnergyChange, PredictionChange
from bdl.contrib.certificate.continued import ContinuedSamples
from bdl.data.module import DataModule
from bdl.data.slices import TensorSlices
from bdl.disk.manifest import Manifest
from bdl.disk.temporary import own_folder
from bdl.display import count_of, print_whole
from bdl.errors import ConfigError
from bdl.identity import identity
from bdl.law.continuation import LEAPFROG
from bdl.law.directions import DirectionTemperature
from bdl.law.measure import joined_temperatures, spreads, thermometers
from bdl.law.thermometer import GRADIENTS, STATES, Thermometer
from bdl.posterior.index import temperatures_of
from bdl.posterior.report.pictures import name_of_direction
from bdl.run.console import WorkProgress
from bdl.run.directory import refuse_links_of
from bdl.run.evaluate import recorded_data
from bdl.run.records import CONTINUED, METRICS, write_metrics
from bdl.run.sampler_settings import SamplerSettings
from bdl.run.section import Section
from bdl.run.stored import load_runs

LAW = "law.json"
LEAST, MOST = 20, 400  # trajectories of every chain
READ = 0.25  # share of the time that goes to the temperatures
PATIENCE = 10  # times `seconds` that LEAST trajectories may take
SHOWN = 24  # rows of the table of temperatures


@dataclass(frozen=True)
class StoredRun:
    posterior: bdl.Posterior
    config: DictConfig
    data: DataModule
    sampler: bdl.Sampler
    loss: Any

    @classmethod
    def load(cls, run: Path, trust: Sequence[str] | str, device: str | None) -> StoredRun:
        """Raises ConfigError in one line for a run whose law no continuation can follow."""
        posterior, config = load_runs([run], trust, device)
        refuse_other_laws(posterior, config)
        data, settings = recorded_data(config, posterior), SamplerSettings.of(Section.of(config.sampler))
        chains = len(posterior.records[0].chains)
        stack = bdl.ChainStack(started(posterior, config), chains, only=settings.only, start="given")
        settings = replace(settings, num_data=posterior.target["num_data"], gradient=None)
        sampler = settings(stack.net.named_parameters(), chains)
        if sampler.dynamics.variational:
            raise ConfigError(f"{run} holds draws of a variational approximation: it samples no law at a temperature")
        if identity(sampler.law()["prior"]) != posterior.target["prior"]:
            raise ConfigError(f"the prior in the config.yaml of {run} is not that of its samples: restore the file")
        return cls(posterior, config, data, sampler, Section.of(config.loss).build())

    @property
    def temperature(self) -> float:
        return float(np.mean(self.posterior.records[-1].temperature))

    def items(self) -> TensorSlices:
        """The training rows. Raises ConfigError where they are augmented, or no tensors in memory."""
        items = self.data.slices("train")
        if not isinstance(items, TensorSlices) or self.config.data.get("augment") is not None:
            what = "augmented" if isinstance(items, TensorSlices) else "no tensors in memory"
            raise ConfigError(f"all training rows are needed again and again, and those of this run are {what}")
        return items

    def thermometers(self) -> list[Thermometer]:
        """One for each stack. Raises ConfigError where all rows together have no energy of their own."""
        items = self.items()
        size = self.config.data.get("batch_size")
        batch = size if isinstance(size, int) else self.data.num_data
        found = thermometers(self.posterior, self.sampler, self.loss, items, self.posterior.records, 0, batch)
        each = list(found)
        if not each or any(t.potential.chains != self.sampler.chains for t in each):
            raise ConfigError("chains were left out of a stack whose prior is learned; it has no certificate")
        if each[0].potential.is_random:
            raise ConfigError("dropout makes the energy of this network random, so that none can stay")
        if each[0].potential.has_batch_statistics:
            raise ConfigError("BatchNorm mixes the rows of a batch, so that all rows have no energy together")
        return each


def refuse_other_laws(posterior: bdl.Posterior, config: DictConfig) -> None:
    """Raise ConfigError for samples of another law than exp(-U/T) at one T > 0."""
    if posterior.target.get("approximation") or "sampler" not in config:
        raise ConfigError("these networks are draws of an approximation, which samples no law at a temperature")
    temperatures = temperatures_of(posterior.records)
    if temperatures[0] == 0:
        raise ConfigError("at T = 0 a run is an optimiser, and there is no law to continue")
    if len(temperatures) > 1:
        several = ", ".join(f"{t:g}" for t in temperatures)
        raise ConfigError(f"the samples have several temperatures ({several}), and a certificate is for one")
    if any(record.zeta != 0 for record in posterior.records):
        raise ConfigError(
            "the samples are of a weighted distribution, whose weights a continuation would lose; "
            "sampler=sghmc or the like samples the posterior itself"
        )


def started(posterior: bdl.Posterior, config: DictConfig) -> Any:
    """The network of the run, at the weights of its checkpoint where its prior is centred there."""
    start = Section.optional(config.get("start"))
    if start is not None and start.target == "bdl.CheckpointStart" and "prior" in config.sampler:
        if config.sampler.prior.get("mean") == "start":
            start.build().load(posterior.net)
    return posterior.net


def certify(cfg: DictConfig, run: Path) -> None:
    """Continue the last samples of all stacks, print what changes, and keep the states under `keep=true`."""
    stored = StoredRun.load(run, cfg.trust, cfg.device)
    thermometers = stored.thermometers()
    states, trajectories = plan(thermometers, cfg.trajectories, cfg.seconds)
    refuse_links_of(run)
    with folder_of(run / CONTINUED if cfg.keep else None) as folder:
        samples = ContinuedSamples(folder, stored.posterior)
        found = carry_out(stored, thermometers, samples, states, trajectories)
        samples.finish()
        after = bdl.Posterior.opened(folder, stored.posterior.net, likelihood=stored.posterior.given_likelihood)
        certificate = Certificate(*found, predictions(stored, after))
        if cfg.keep:
            write(folder, certificate)
        show(certificate)
    if cfg.keep:
        print(f"kept: {count_of(after.samples, 'network')} in {folder}, which evaluate and predict read like a run")
    print(certificate.sentence())


def plan(thermometers: Sequence[Thermometer], trajectories: int | None, seconds: float) -> tuple[int, int]:
    """How many states of a chain are read, and for how many trajectories it goes on.

    trajectories: as many, whatever they cost; None: as `seconds` allow. Raises ConfigError where the fewest that say
    something would take much longer.
    """
    first = thermometers[0]
    theta = first.potential.put(first.posterior.read_record(first.records[-1]))
    first.potential(theta)  # what is compiled at the first call does not count
    began = time.perf_counter()
    first.potential(theta)
    gradient = (time.perf_counter() - began) * len(thermometers)  # seconds, of all chains
    states = min(STATES, max(4, int(READ * seconds / (GRADIENTS * gradient))))
    if trajectories is not None:
        return states, trajectories
    if (least := LEAST * LEAPFROG * gradient) > PATIENCE * seconds:
        raise ConfigError(
            f"a gradient over all {first.potential.num_data:,} rows takes {gradient:.2g} s here, and {LEAST} "
            f"trajectories {least / 60:,.0f} min: trajectories={LEAST} waits for them, device=cuda may be faster"
        )
    return states, min(MOST, max(LEAST, int((1 - READ) * seconds / (LEAPFROG * gradient))))


@contextmanager
def folder_of(kept: Path | None) -> Iterator[Path]:
    """The folder of the continued samples: this one, or one that is removed at the end."""
    if kept is not None:
        yield kept
        return
    with own_folder() as temporary:
        yield temporary


def carry_out(
    stored: StoredRun, thermometers: Sequence[Thermometer], samples: ContinuedSamples, states: int, trajectories: int
) -> tuple[float, EnergyChange, float, float, Sequence[DirectionTemperature]]:
    """What the certificate says, but for predictions."""
    readings, continuations = [], []
    with WorkProgress("continuing exactly") as progress:
        for number, thermometer in enumerate(thermometers):
            readings.append(thermometer.read(states))
            write = samples.writer(thermometer.potential, thermometer.records[-1], trajectories)
            done = number * trajectories

            def seen(count: int, *state: Any, write: Any = write, done: int = done) -> None:
                write(count, *state)
                progress(done + count, trajectories * len(thermometers))

            continuations.append(thermometer.continued_for(trajectories, seen))
    t, directions = stored.temperature, joined_temperatures([r for r in readings if r is not None])
    kept = torch.from_numpy(stored.posterior.recorded("energy_full")).mean(1)  # NaN where the run recorded none
    energy = EnergyChange.of(continuations, kept if bool(kept.isfinite().all()) else None)
    return t, energy, *spreads(stored.posterior, stored.sampler, t), directions


def write(folder: Path, certificate: Certificate) -> None:
    """The certificate, and the metrics of the continued run that its evaluation reads: no batch heats it."""
    numbers = {name: None if math.isnan(value) else value for name, value in certificate.numbers().items()}
    Manifest(folder).write(LAW, "law", (json.dumps(numbers, indent=1) + "\n").encode())
    exact = {"temperature": certificate.temperature, "noise_ratio": 0.0, "t_eff": certificate.temperature}
    write_metrics(folder / METRICS, exact | {"acceptance": certificate.energy.acceptance})


def predictions(stored: StoredRun, after: bdl.Posterior) -> PredictionChange | None:
    """On test items, or on those of training where there are none."""
    data = stored.data
    split = next((s for s in ("test", "val") if data.has(s)), "train")
    with WorkProgress("evaluating") as progress:
        before = stored.posterior.evaluate_all({"": data.slices(split)}, progress)[""]
        return PredictionChange.between(before, after.evaluate_all({"": data.slices(split)}, progress)[""])


def show(certificate: Certificate) -> None:
    """Two tables: T by direction, and what a continuation changes."""
    rows = certificate.hot_to_cold()
    left_out = len(rows) - SHOWN
    rows = rows if left_out <= 0 else [*rows[: SHOWN // 2], *rows[-(SHOWN // 2) :]]
    temperatures = Table("direction of the kept samples", "T", box=None, pad_edge=False)
    for number, direction in enumerate(rows):
        if left_out > 0 and number == SHOWN // 2:
            temperatures.add_row(f"... {left_out} between them", "")
        temperatures.add_row(escape(name_of_direction(direction.name)), str(certificate.at(direction)))
    if rows:
        print_whole(temperatures)
    print_whole(changes(certificate))


def changes(certificate: Certificate) -> Table:
    energy, p = certificate.energy, certificate.predictions
    table = Table("exact continuation", "before", "after", "change", box=None, pad_edge=False)
    after = energy.before + energy.change.value
    table.add_row("U (nats)", f"{energy.before:.1f}", f"{after:.1f}", str(energy.change))
    if p is not None:
        for name, pair, change in (
            ("NLL of the average", p.nll, p.nll_change), ("NLL of single networks", p.single, p.single_change),
        ):  # fmt: skip
            table.add_row(name, f"{pair[0]:.4f}", f"{pair[1]:.4f}", str(change))
        what = "means, in predictive sd" if p.of_numbers else "probabilities"
        table.add_row(f"{what} (rms)", "", "", f"{p.change:.4f} beyond ± {p.monte_carlo:.4f}")
    before = "" if math.isnan(certificate.along) else f"{certificate.along:.1f}"
    normal = f"{certificate.gaussian:.1f} if U were quadratic"
    table.add_row("sd of U along a chain", before, f"{energy.along:.1f}", normal)
    table.add_row("acceptance", "", f"{energy.acceptance:.2f}", f"{energy.trajectories} trajectories")
    return table
