"""The composed configuration: its folder, its resolvers, its hash, and a copy with further values filled in.

This module imports neither torch nor Lightning: Hydra needs it before it can answer `--help`.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from bdl.disk.files import weights_of
from bdl.errors import ConfigError
from bdl.run.auto import choose_precision, count_stacks
from bdl.run.values import plain

# The one list of keys that do not change the samples. Two configurations that differ only in these have one hash,
# hence one run directory. `tuned` counts through the keys of the sampler that read it.
NO_EFFECT_ON_SAMPLES = (
    "hydra", "logger", "run_dir", "processes", "monitor_every", "checkpoint_every", "train_items", "experiment",
    "objective", "refit", "found", "tuned", "trainer.max_time", "data.root", "data.download", "data.cache",
    "data.loader", "data.workers",
)  # fmt: skip
PATHS = ("path", "test_path", "val_path")  # keys of the data whose files count, not their place
TABLE = "bdl.data.read_table"
BLOCK = 2**20  # bytes of a file that are in memory together
BEGINNING = 2**14  # bytes of each file of a folder; most small images have fewer


def config_folder() -> Path:
    """The folder conf/: part of an installed bdl, beside the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def register_resolvers() -> None:
    """Register `fraction`, `run_name`, `config_hash` and `wandb_offline` for conf/. Safe to call twice."""
    register(
        fraction=fraction, run_name=run_name, config_hash=lambda *, _root_: config_hash(_root_),
        wandb_offline=wandb_offline,
    )  # fmt: skip


def register(**resolvers: Callable[..., object]) -> None:
    """Register functions of conf/ by name, again where they are registered."""
    for name, function in resolvers.items():
        OmegaConf.register_new_resolver(name, function, replace=True)


def fraction(steps: object, part: float, least: int = 1) -> int:
    """The given part of a number of steps, rounded, and at least `least`."""
    if not isinstance(steps, int | float):
        raise ConfigError(f"trainer.max_steps must be a number of steps, got {steps!r}")
    return max(least, round(int(steps) * part))


def run_name(choices: Mapping[str, Any]) -> str:
    """The experiment's name, or data-model-sampler."""
    return choices.get("experiment") or "-".join(choices[k] for k in ("data", "model", "sampler"))


def wandb_offline() -> bool:
    """True unless WANDB_MODE or an API key says otherwise."""
    return "WANDB_MODE" not in os.environ and "WANDB_API_KEY" not in os.environ


def config_hash(cfg: DictConfig) -> str:
    """Eight hexadecimal digits of the keys that decide which samples are drawn."""
    settings = run_settings(cfg)
    settings["data"] = _with_contents(_with_effect("data", settings["data"]))
    if isinstance(start := settings.get("start"), dict):
        settings["start"] = start | ({"path": _weights(start["path"])} if "path" in start else {})
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def run_settings(cfg: DictConfig) -> dict[str, Any]:
    """The resolved configuration as config.yaml records it: every key with an effect, and where the data lie.

    `stacks` and `trainer.precision` stand in it as derived. All else that depends on the data is null (`fill_in`).
    """
    settings = {key: plain(cfg[key]) for key in map(str, cfg) if key not in NO_EFFECT_ON_SAMPLES}
    settings["trainer"] = _with_effect("trainer", settings["trainer"])
    settings["trainer"]["precision"] = choose_precision(cfg)
    return settings | {"stacks": count_stacks(cfg)}


def _with_contents(data: dict[str, Any]) -> dict[str, Any]:
    """The settings of the data, with checksums of the files in the place of their paths.

    A table that was moved keeps its run, and one that was changed makes a new run.
    """
    files = [key for key in PATHS if isinstance(data.get(key), str)]
    if data["_target_"] == TABLE:  # a folder is no table, and may hold everything that there is
        files = [key for key in files if not Path(data[key]).expanduser().is_dir()]
    return data | {key: checksum(data[key]) for key in files}


def _weights(path: str) -> str:
    """A checksum of the file of weights; of a folder, of that which `save_pretrained` left in it; else the path."""
    place = weights_of(path)
    return checksum(str(place)) if place.is_file() else path


def checksum(path: str) -> str:
    """A checksum of a file, or of the names, sizes and beginnings of all files in a folder; else the path itself."""
    place = Path(path).expanduser()
    if place.is_file():
        return _checksum((place,), (place.stat().st_mtime_ns,), None)
    if place.is_dir():
        files = tuple(sorted(file for file in place.rglob("*") if file.is_file()))
        return _checksum(files, tuple(file.stat().st_mtime_ns for file in files), BEGINNING, place)
    return path


@functools.lru_cache  # a command asks several times, and files may be large
def _checksum(files: tuple[Path, ...], modified: tuple[int, ...], most: int | None, folder: Path | None = None) -> str:
    """A checksum of at most `most` bytes of each file; in a folder also of the names and sizes of its files."""
    checksum = hashlib.sha256()
    for path in files:
        if folder is not None:
            checksum.update(f"{path.relative_to(folder)} {path.stat().st_size} ".encode())
        with path.open("rb") as file:
            while block := file.read(BLOCK if most is None else most):
                checksum.update(block)
                if most is not None:
                    break
    return checksum.hexdigest()


def fill_in(cfg: DictConfig, values: Mapping[str, Any]) -> DictConfig:
    """A copy of the configuration with these values by key, e.g. `steps`; keys that depend on them follow.

    `cfg` stays as it is, so that its hash remains the one in the name of the run directory.
    """
    filled = copy.deepcopy(cfg)
    put(filled, values)
    return filled


def put(cfg: DictConfig, values: Mapping[str, Any]) -> None:
    """Set these values by key."""
    for key, value in values.items():
        OmegaConf.update(cfg, key, value, merge=False)


def _with_effect(group: str, settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if f"{group}.{key}" not in NO_EFFECT_ON_SAMPLES}
