"""Several runs side by side: a row for each method, with means and standard errors over seeds. See conf/report.yaml."""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from bdl.errors import ConfigError
from bdl.files import write_atomically
from bdl.posterior.described import brief, first_difference
from bdl.posterior.report.comparison import Method, as_json, as_markdown, comparison_page, print_table
from bdl.posterior.store import SampleStore
from bdl.run.keys import leaves
from bdl.run.records import CONFIG, METRICS, TIMING, read_config, read_metrics, read_seconds, write_json
from bdl.run.stranger import warn_of_altered

HELD_OUT = ("val_fraction", "fold", "augment")  # they change training items; the test items stay
NOT_THE_METHOD = re.compile(
    r"(.*\.)?(seed|stack)|provenance\..*|found\.(seconds|reasons.*)|data\.(path|test_path|val_path)"
)
SHOWN = 3  # settings that tell two methods of one name apart


@dataclass(frozen=True)
class Run:
    """A finished run."""

    path: Path
    name: str  # data-model-sampler, or the experiment; the folder's name for a run of a Trainer of one's own
    number: tuple[Any, Any] | None  # seed and first stack, None where they are not known
    settings: dict[str, Any]  # by key, without those that do not belong to the method
    metrics: dict[str, float]
    seconds: float  # NaN where it is not known
    data: dict[str, Any]  # as target.json describes them


def compare(cfg: DictConfig) -> None:
    """Print the table, and write comparison.md, comparison.json and comparison.html."""
    runs = [read_run(path) for path in find_runs(cfg.runs)]
    refuse_other_data(runs)
    methods = methods_of(runs)
    out = Path(cfg.out or runs[0].path / "comparison")
    print_table(methods)
    write_atomically(out / "comparison.md", as_markdown(methods).encode())
    write_json(out / "comparison.json", as_json(methods, [str(run.path) for run in runs]))
    write_atomically(out / "comparison.html", comparison_page(methods, _facts(runs)).encode())
    print(f"report: {out / 'comparison.html'}")


def find_runs(given: Any) -> list[Path]:
    """The run directories; a word with * stands for all that match. Raises ConfigError for none, and for one twice."""
    words = [given] if isinstance(given, str) else list(given or [])
    paths = [Path(p) for word in words for p in (sorted(glob.glob(word)) if "*" in word else [word])]
    if not paths:
        raise ConfigError(
            f"runs={brief(words)} names no run directory: runs=[outputs/a,outputs/b], or runs='outputs/*/*'"
        )
    resolved = [path.resolve() for path in paths]
    for path in paths:
        if resolved.count(path.resolve()) > 1:
            raise ConfigError(f"{path} is given twice: name each run once")
    return paths


def read_run(path: Path) -> Run:
    """A run directory. Nothing that config.yaml names is built. Raises ConfigError for a run that has not ended."""
    target = SampleStore(path).target()
    if not (path / METRICS).exists():
        raise ConfigError(f"{path} has no {METRICS}: finish the run first, its command resumes it, or call bdl.report")
    config: Any = OmegaConf.to_container(read_config(path)) if (path / CONFIG).exists() else {}
    settings = {key: value for key, value in leaves(config, "") if not NOT_THE_METHOD.fullmatch(key)}
    name = (config.get("provenance") or {}).get("name") or path.name
    number = (config.get("seed"), config.get("stack")) if config else None
    warn_of_altered(path, METRICS)
    seconds = read_seconds(path / TIMING) if (path / TIMING).exists() else math.nan
    data = target.get("data")
    return Run(
        path, name, number, settings, read_metrics(path / METRICS), seconds, data if isinstance(data, dict) else {}
    )


def refuse_other_data(runs: Sequence[Run]) -> None:
    """Raise ConfigError for runs whose test items, or units, differ from those of the first."""
    first, numbers = runs[0], "test/bma/rmse" in runs[0].metrics
    for run in runs[1:]:
        if ("test/bma/rmse" in run.metrics) != numbers:
            raise ConfigError(f"{first.path} and {run.path} are not compared: one predicts classes, the other numbers")
        # Targets are standardised by the training rows, so that these decide the units of RMSE and NLL
        lax = () if numbers else HELD_OUT
        difference = first_difference(*({k: v for k, v in r.data.items() if k not in lax} for r in (first, run)))
        if difference is None and not numbers:
            key = "test/constant/nll"  # it follows from the test labels alone
            constants = [r.metrics.get(key, math.nan) for r in (first, run)]
            if abs(constants[0] - constants[1]) > 1e-6:
                difference = (key, *constants)
        if difference is not None:
            key, here, there = difference
            raise ConfigError(
                f"runs on different data are not compared: {key} is {brief(here)} in {first.path}, {brief(there)} in "
                f"{run.path}"
            )


def methods_of(runs: Sequence[Run]) -> list[Method]:
    """The runs by method, those that differ in nothing but the seed together; in the order in which they are given.

    Raises ConfigError for two runs of one method and one seed.
    """
    groups: list[list[Run]] = []
    for run in runs:
        same = [g for g in groups if run.number is not None and (g[0].name, g[0].settings) == (run.name, run.settings)]
        if not same:
            groups.append([run])
            continue
        if run.number in [other.number for other in same[0]]:
            raise ConfigError(f"{run.path} has the seed of another run of {run.name}: it adds nothing, leave it out")
        same[0].append(run)
    methods = []
    for label, group in zip(labels_of(groups), groups, strict=True):
        methods.append(Method(label, [r.metrics for r in group], [r.seconds for r in group]))
        if all("test/start/nll" in run.metrics for run in group):
            members = group[0].metrics["start/members"]
            metrics = [_of_start(run.metrics) for run in group]
            methods.append(Method(f"{label}: its start, a deep ensemble of {members:.0f}", metrics, [], judged=False))
    return methods


def labels_of(groups: Sequence[Sequence[Run]]) -> list[str]:
    """A name for each method: what the names do not share, and for equal names the settings that differ."""
    names = [group[0].name for group in groups]
    words = [name.split("-") for name in names]
    shared = 0
    while len(set(names)) > 1 and all(len(w) > shared + 1 for w in words) and len({w[shared] for w in words}) == 1:
        shared += 1
    labels = []
    for group, of_name in zip(groups, words, strict=True):
        rivals = [g[0].settings for g in groups if g[0].name == group[0].name]
        mine = group[0].settings
        differing = [k for k in mine if any(r.get(k) != mine[k] for r in rivals)]
        told = ", ".join(f"{key}={brief(mine[key])}" for key in differing[:SHOWN])
        labels.append("-".join(of_name[shared:]) + (f" ({told})" if told else ""))
    if len(set(labels)) < len(labels):  # runs without a config.yaml, in folders of the same name
        labels = [f"{label}, {group[0].path}" for label, group in zip(labels, groups, strict=True)]
    return labels


def _of_start(metrics: Mapping[str, float]) -> dict[str, float]:
    """The scores of the ensemble at which the chains began, under the names of an average."""
    return {k.replace("/start/", "/bma/"): v for k, v in metrics.items() if "/start/" in k}


def _facts(runs: Sequence[Run]) -> dict[str, str]:
    names = {name for run in runs if (name := (run.data or {}).get("_target_"))}
    data = {"data": ", ".join(sorted(str(name).rpartition(".")[2] for name in names))} if names else {}
    return {**data, "runs": f"{len(runs)}"}
