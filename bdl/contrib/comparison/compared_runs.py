"""The runs that `bdl compare` reads: settings, data and metrics of each. Nothing that a config.yaml names is built."""

from __future__ import annotations

import glob
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from bdl.errors import ConfigError
from bdl.posterior.samples import brief, first_difference
from bdl.posterior.store import SampleStore
from bdl.posterior.verdict import Verdict, verdict
from bdl.run.config import leaves
from bdl.run.records import CONFIG, METRICS, TIMING, read_config, read_metrics, read_seconds
from bdl.run.stored import refuse_interpolations, warn_of_altered

ABSENT = "–"
SECONDS = "seconds"  # timing.json has it; a compared run has it among its metrics
NUMBERS = "test/bma/rmse"  # a metric of every run that predicts numbers, and of no other
OF_THE_DRAW = re.compile(r"(.*\.)?(seed|stack)")  # another draw of one method
NOT_THE_METHOD = re.compile(r"provenance\..*|found\.(seconds|reasons.*)|data\.(path|test_path|val_path)")
HELD_OUT = ("val_fraction", "fold", "augment")  # they change training items; the test items stay


@dataclass(frozen=True)
class ComparedRun:
    """One run directory: what it was to sample, and what came out."""

    path: Path
    method: str  # data-model-sampler, or the experiment; the folder's name for a run of a Trainer of your own
    draw: Mapping[str, Any]  # the run's seeds and stacks by key
    settings: Mapping[str, Any]  # all others by key, lists as texts
    data: Mapping[str, Any]  # what target.json says of the data; empty before the first sample
    metrics: Mapping[str, float]  # metrics.json and SECONDS; empty before the end of the run

    @property
    def seed(self) -> str:
        return str(self.draw.get("seed", ABSENT))

    @cached_property
    def verdict(self) -> Verdict | None:
        """None before the end of the run."""
        return verdict(self.metrics) if self.metrics else None

    def setting(self, key: str) -> str:
        """A setting as one writes it on the command line."""
        value = self.settings.get(key, ABSENT)
        if value is None or isinstance(value, bool):
            return json.dumps(value)
        return f"{value:g}" if isinstance(value, float) else str(value)

    def with_data_as_settings(self) -> ComparedRun:
        of_data = {f"data: {key}": str(value) for key, value in self.data.items() if not isinstance(value, dict)}
        return replace(self, settings={**self.settings, **of_data})


def find_runs(words: str | Sequence[str]) -> tuple[list[ComparedRun], bool]:
    """The runs of folders, each once, and whether every folder is itself a run.

    words: run directories, or folders above them. A word with * stands for all that match.

    Raises ConfigError where there is none, and for a damaged run.
    """
    words = [words] if isinstance(words, str) else list(words)
    places = [Path(p).expanduser() for word in words for p in (sorted(glob.glob(word)) if "*" in word else [word])]
    for place in places:
        if not place.exists():
            raise ConfigError(f"{place} is not a run directory, and no folder above one: there is no such folder")
    runs: dict[Path, ComparedRun] = {}
    for run in (run for place in places for run in runs_below(place)):
        runs.setdefault(run.path.resolve(), run)
    if not runs:
        raise ConfigError(
            f"runs={brief(words)} holds no run: name run directories, or folders above them: runs=outputs"
        )
    return list(runs.values()), {place.resolve() for place in places} == runs.keys()


def runs_below(folder: Path) -> Iterator[ComparedRun]:
    """The folder if it is a run, otherwise all runs below it. Hidden folders are left out."""
    for place, names, _ in os.walk(folder):
        if (run := read_run(Path(place))) is not None:
            yield run
        names[:] = [] if run is not None else sorted(name for name in names if not name.startswith("."))


def read_run(path: Path) -> ComparedRun | None:
    """One run; None for another folder. Raises ConfigError for a damaged file, and for an interpolation in it."""
    config = read_config(path) if (path / CONFIG).exists() else None
    name = None if config is None else OmegaConf.select(config, "provenance.name")
    sampled = (path / "samples" / "target.json").exists()
    if name is None and not sampled:
        return None
    data = SampleStore(path).target().get("data") if sampled else {}
    metrics = {}
    if (path / METRICS).exists():
        metrics = read_metrics(path / METRICS)
        warn_of_altered(path, METRICS)
        metrics[SECONDS] = read_seconds(path / TIMING) if (path / TIMING).exists() else math.nan
    settings: dict[str, Any] = {"folder": str(path)}
    if config is not None and name is not None:
        refuse_interpolations(config, path)  # they may name secrets of the environment
        every = leaves(OmegaConf.to_container(config), lists=False)  # a list is one setting
        settings = {key: value for key, value in every if not NOT_THE_METHOD.fullmatch(key)}
    draw = {key: settings.pop(key) for key in list(settings) if OF_THE_DRAW.fullmatch(key)}
    return ComparedRun(path, name or path.name, draw, settings, data if isinstance(data, dict) else {}, metrics)


def data_difference(runs: Sequence[ComparedRun]) -> str | None:
    """Where the test items, or the units, of a run differ from those of the first; None where they are the same."""
    first, *others = [run for run in runs if run.data or run.metrics] or runs[:1]
    for run in others:
        numbers = [NUMBERS in r.metrics for r in (first, run)]
        if numbers[0] != numbers[1] and first.metrics and run.metrics:
            return f"{first.path} and {run.path}: one predicts classes, the other numbers"
        # Targets are standardised by the training rows, so that these decide the units of RMSE and NLL
        lax = () if any(numbers) else HELD_OUT
        difference = first_difference(*({k: v for k, v in r.data.items() if k not in lax} for r in (first, run)))
        if difference is None and not any(numbers):
            key = "test/constant/nll"  # it follows from the test labels alone
            constants = [r.metrics.get(key, math.nan) for r in (first, run)]
            if abs(constants[0] - constants[1]) > 1e-6:
                difference = (key, *constants)
        if difference is not None:
            key, here, there = difference
            return f"{key} is {brief(here)} in {first.path}, {brief(there)} in {run.path}"
    return None
