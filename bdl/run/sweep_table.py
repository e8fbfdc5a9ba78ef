"""The runs of a sweep as rows of equal settings, with means and standard errors over seeds. Runs are only read."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from bdl.errors import BdlWarning, ConfigError
from bdl.posterior.store import SampleStore
from bdl.posterior.verdict import Verdict, verdict
from bdl.run.keys import leaves
from bdl.run.records import CONFIG, METRICS, read_config, read_metrics
from bdl.run.stranger import plain_values, warn_of_altered

USUAL = (
    "val/bma/nll", "val/bma/accuracy", "val/bma/rmse", "test/bma/nll", "test/bma/accuracy", "test/bma/rmse",
    "test/bma/crps", "test/bma/ece", "test/one_sample/nll", "t_eff", "rhat/max",
)  # fmt: skip
REPLICAS = ("seed", "stack", "data.seed", "data.stack", "sampler.seed", "sampler.stack")  # another draw of one law
ABSENT = "–"


@dataclass(frozen=True)
class Run:
    """One run directory: what it was to sample, and what came out."""

    path: Path
    seed: int
    settings: Mapping[str, Any]  # flat; replicas differ in none of them
    metrics: Mapping[str, float] | None  # None before its end
    verdict: Verdict | None
    draw: tuple[str, ...] = ()  # its seeds and stacks; two runs with equal settings and draws are one and the same


@dataclass(frozen=True)
class Row:
    """Runs whose settings agree. mean and error: over the finished ones; the error of a single one is NaN."""

    settings: Sequence[str]
    runs: Sequence[Run]
    mean: Mapping[str, float]
    error: Mapping[str, float]

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.metrics is not None]


@dataclass(frozen=True)
class Sweep:
    columns: Sequence[str]  # settings that differ between rows
    follows: Mapping[str, Sequence[str]]  # by column: settings that change with it
    metrics: Sequence[str]
    rows: Sequence[Row]


def read_all(folder: Path) -> list[Run]:
    """All runs below a folder. Raises ConfigError if there is none, and for a damaged one."""
    if not folder.is_dir():
        raise ConfigError(f"folder={folder} is no folder: name that of a sweep, e.g. folder=outputs")
    configs = sorted(path for path in folder.rglob(CONFIG) if ".submitit" not in path.parts)
    runs: list[Run] = []
    for path in configs:
        if (run := read_run(path.parent)) is None:
            continue
        if twin := next((r for r in runs if (r.draw, r.settings) == (run.draw, run.settings)), None):
            warnings.warn(f"{run.path} is a copy of {twin.path} and is left out", BdlWarning, stacklevel=2)
        else:
            runs.append(run)
    if not runs:
        raise ConfigError(f"folder={folder} holds no run: name a folder above run directories, e.g. folder=outputs")
    return runs


def read_run(path: Path) -> Run | None:
    """One run; None for a config.yaml of another program."""
    config = read_config(path)
    name = OmegaConf.select(config, "provenance.name")
    if name is None or "seed" not in config:
        return None
    for _ in plain_values(config, path):  # refuses interpolations, which may name secrets of the environment
        pass
    warn_of_altered(path, METRICS)
    plain: Any = OmegaConf.to_container(config)
    del plain["provenance"]
    every = dict(leaves(joined_lists(plain), ""))
    settings = {"name": name, **{k: v for k, v in every.items() if k not in REPLICAS}}
    draw = tuple(str(every.get(key)) for key in REPLICAS)
    metrics = read_metrics(path / METRICS) if (path / METRICS).exists() else None
    judged = None if metrics is None else verdict(metrics)
    return Run(path, plain["seed"], settings | identity(path), metrics, judged, draw)


def joined_lists(value: Any) -> Any:
    """The same value with lists as texts: a list is one setting."""
    if isinstance(value, dict):
        return {key: joined_lists(part) for key, part in value.items()}
    return str(value) if isinstance(value, list) else value


def identity(path: Path) -> dict[str, Any]:
    """What the samples say of the data: a table that was changed between two runs is another setting."""
    if not (path / "samples" / "target.json").exists():
        return {}
    data = SampleStore(path).target().get("data") or {}
    return {f"data: {key}": str(value) for key, value in data.items() if not isinstance(value, dict)}


def arrange(runs: Sequence[Run], metrics: Sequence[str] | None = None) -> Sweep:
    """Rows of equal settings. Raises ConfigError for a metric that no run has."""
    known = {name for run in runs for name in run.metrics or ()}
    for name in metrics or ():
        if name not in known:
            raise ConfigError(f"metrics: {name} is no metric of these runs: choose among those of a metrics.json")
    columns, follows = differing(runs)
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(text(run.settings.get(column, ABSENT)) for column in columns), []).append(run)
    shown = [name for name in metrics or USUAL if name in known]
    rows = [summarise_row(settings, group, shown) for settings, group in groups.items()]
    return Sweep(columns, follows, shown, sorted(rows, key=lambda row: [sort_key(word) for word in row.settings]))


def differing(runs: Sequence[Run]) -> tuple[list[str], dict[str, list[str]]]:
    """The settings in which runs differ, and by setting those that change with it.

    The name (data-model-sampler, or the experiment) comes first. It stands for all settings that it decides.
    """
    names = dict.fromkeys(key for run in runs for key in run.settings)
    patterns: dict[tuple[int, ...], list[str]] = {}
    by_name: dict[str, set[str]] = {}
    for key in names:
        values = [text(run.settings.get(key, ABSENT)) for run in runs]
        for run, value in zip(runs, values, strict=True):
            by_name.setdefault(f"{key} {run.settings['name']}", set()).add(value)
        if key == "name" or any(len(by_name[f"{key} {run.settings['name']}"]) > 1 for run in runs):
            order = {value: i for i, value in enumerate(dict.fromkeys(values))}
            if len(order) > 1:
                patterns.setdefault(tuple(order[value] for value in values), []).append(key)
    return [keys[0] for keys in patterns.values()], {keys[0]: keys[1:] for keys in patterns.values() if keys[1:]}


def summarise_row(settings: Sequence[str], runs: Sequence[Run], names: Sequence[str]) -> Row:
    mean, error = {}, {}
    for name in names:
        values = np.array([run.metrics.get(name, math.nan) for run in runs if run.metrics is not None])
        values = values[~np.isnan(values)]
        mean[name] = float(values.mean()) if len(values) else math.nan
        error[name] = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return Row(settings, sorted(runs, key=lambda run: (run.seed, str(run.path))), mean, error)


def text(value: Any) -> str:
    """A setting as one writes it on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def sort_key(word: str) -> tuple[int, float, str]:
    """Numbers by their size, then words."""
    try:
        return 0, float(word), word
    except ValueError:
        return 1, 0.0, word


def count_of(row: Row) -> str:
    done, total = len(row.finished), len(row.runs)
    return f"{total}" if done == total else f"{done} of {total}"


def verdicts_of(row: Row) -> str:
    """How often each verdict was given, e.g. "2 wrong law, 1 trust"."""
    outcomes = [run.verdict.outcome for run in row.runs if run.verdict is not None]
    return ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))


def mean_and_error(mean: float, error: float) -> str:
    """A mean with two digits of its standard error, as 0.2034 ± 0.0021; four digits where there is none."""
    if math.isnan(mean):
        return "–"
    if math.isnan(error):
        return f"{mean:.4g}"
    digits = 4 if error == 0 else min(12, max(0, 1 - math.floor(math.log10(error))))
    return f"{mean:.{digits}f} ± {error:.{digits}f}"
