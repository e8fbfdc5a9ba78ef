"""The small files that describe a run: read with one line for each fault, and written at once."""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from bdl.disk.files import SMALL_FILE, parse_json, read_file
from bdl.disk.manifest import manifests_of, read_listed, write_listed
from bdl.errors import BdlWarning, ConfigError
from bdl.posterior.calibrated import Calibration, CalibrationRequest, from_plain
from bdl.posterior.calibration import ConformalSets, TemperatureScaling
from bdl.posterior.doubt import METRICS
from bdl.posterior.target_values import Units

CONFIG, PREPROCESSING, TIMING = "config.yaml", "preprocessing.json", "timing.json"  # METRICS is of the posterior
CALIBRATION = "calibration.json"
DEEPEST = 50  # levels of parts within parts in a config.yaml
EVALUATION = "evaluation"  # the folder in a run of what `evaluate` makes, unless another one is named
DISTILLED = "distilled"  # the folder in a run of the network that `distil` makes, unless another one is named
INFLUENCE = "influence"  # the folder in a run of what `influence` makes, unless another one is named
REFIT = "refit"  # the folder in a run of the posterior that `refit=all` samples from all rows
CONTINUED = "continued"  # the folder in a run of the states that `keep=true` stores
# Listed in the manifest of the whole run
RUN_FILES = (CONFIG, PREPROCESSING, METRICS, TIMING, CALIBRATION, "report.html")


def folders_of(words: str | Path | Sequence[str | Path] | None) -> list[Path]:
    """The folders that one word names, or each of several."""
    return [Path(word).expanduser() for word in ([words] if isinstance(words, str | Path) else words or ())]


def read_config(run: Path) -> DictConfig:
    """The config.yaml of a run directory. Raises ConfigError for a folder without one, and for a damaged one."""
    path = run / CONFIG
    if not path.exists():
        raise ConfigError(
            f"{run} is not a run directory: it has no config.yaml; runs=[...] takes folders that `bdl train` wrote"
        )
    try:
        text = read_file(path, SMALL_FILE)
        _refuse_strange(text)
        loaded = OmegaConf.load(io.BytesIO(text))
        if not isinstance(loaded, DictConfig):
            raise ValueError("it is no mapping")
        return loaded
    except Exception as error:  # the parsers may raise anything
        raise ConfigError(f"{path} is damaged ({_first_line(error)}): restore it") from error


def refitted(runs: Sequence[Path]) -> Sequence[Path]:
    """The refits of the runs, which `refit=all` has sampled from all rows; the runs themselves if not all have one.

    Warns of a refit that has not ended. Raises ConfigError for another run in its place.
    """
    refits = [run / REFIT for run in runs]
    for run, refit in zip(runs, refits, strict=True):
        if (refit / METRICS).exists() and not is_refit_of(run, refit):
            raise ConfigError(f"{refit} holds another run, and not the refit of {run}: move it away, or refit=false")
    for refit in refits:
        if refit.exists() and not (refit / METRICS).exists():
            line = f"{refit} has not ended, and is not used: the command of the run, with refit=all, goes on with it"
            warnings.warn(line, BdlWarning, stacklevel=2)
    return refits if all((refit / METRICS).exists() for refit in refits) else runs


def is_refit_of(run: Path, refit: Path) -> bool:
    """Whether a run in the place of a refit has the settings of the run's table, and all of its rows."""
    if not (run / CONFIG).exists():
        return True
    of_run, of_refit = (read_config(folder).get("data", {}) for folder in (run, refit))
    others = [key for key in of_refit.keys() & of_run.keys() if of_refit[key] != of_run[key]]
    return others == ["all_rows"] and bool(of_refit["all_rows"])


def _refuse_strange(text: bytes) -> None:
    """Raise ValueError for YAML that bdl never writes, and that takes for ever to build."""
    depth = 0
    for event in yaml.parse(text):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it repeats parts by aliases, which bdl never writes, and a few make billions of parts")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"its parts are nested more than {DEEPEST} deep, which bdl never writes")


def read_preprocessing(run: Path) -> dict[str, Any]:
    """What makes inputs of new data. Raises ConfigError for a run without it, and for a damaged file."""
    path = run / PREPROCESSING
    if not path.exists():
        raise ConfigError(
            f"{run} has no {PREPROCESSING}: it is no run on a table (data=csv or data=parquet), whose columns new rows "
            "could have; use bdl.Posterior in Python"
        )
    return read_json(path, "restore it")


def read_units(run: Path) -> list[Units]:
    """The units of the targets of a finished run, as its table's encoding has them; [] where there are none."""
    target = read_preprocessing(run).get("target") or {} if (run / PREPROCESSING).exists() else {}
    return [Units(p["name"], p["mean"], p["std"]) for p in target.get("parts", [target]) if "std" in p]


def is_calibrated(run: Path, request: CalibrationRequest) -> bool:
    """Whether a run, or its evaluation, has what the request would fit."""
    found = read_calibration(run)
    if found is None:
        return False
    if isinstance(found, TemperatureScaling):
        return request.method == "temperature"
    by_class = isinstance(found, ConformalSets) and isinstance(found.threshold, tuple)
    return request.method == "conformal" and found.level == request.level and by_class == (request.by == "class")


def read_calibration(run: Path) -> Calibration | None:
    """What `calibrate=` has fitted in a run, or in its evaluation, which came later; None without it.

    Raises ConfigError for a damaged file, and StoreError for one that was altered.
    """
    for folder in (run / EVALUATION, run):
        if (folder / CALIBRATION).exists():
            read_listed(manifests_of(folder), CALIBRATION)
            return from_plain(read_json(folder / CALIBRATION, "remove it"))
    return None


def read_seconds(path: Path) -> float:
    """The seconds of a timing.json. Raises ConfigError for a damaged file."""
    seconds = read_json(path, "remove it").get("seconds")
    if not isinstance(seconds, (int, float)):
        raise ConfigError(f"{path} is damaged (seconds is no number): remove it")
    return float(seconds)


def write_metrics(path: Path, metrics: Mapping[str, float]) -> None:
    """Write flat `name: number`, NaN and infinities as null."""
    write_json(path, {k: v if math.isfinite(v) else None for k, v in sorted(metrics.items())})


def read_metrics(path: Path) -> dict[str, float]:
    """The metrics. Raises ConfigError for a damaged file."""
    remedy = "remove it, and the same command makes it again"
    metrics = read_json(path, remedy)
    if not all(value is None or type(value) in (int, float) for value in metrics.values()):
        raise ConfigError(f"{path} is damaged (a metric is no number): {remedy}")
    return {k: math.nan if v is None else v for k, v in metrics.items()}


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    try:
        content = parse_json(read_file(path, SMALL_FILE))
        if not isinstance(content, dict):
            raise ValueError("it is no mapping")
        return content
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path} is damaged ({_first_line(error)}): {remedy}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def write_json(path: Path, content: object) -> None:
    write_listed(path, (json.dumps(content, indent=1) + "\n").encode())
