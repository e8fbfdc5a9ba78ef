"""The composed configuration: its folder, its resolvers, its hash, what `null` and `auto` in it stand for, and copies.

This module imports neither torch nor Lightning: Hydra needs it before it can answer `--help`.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from bdl.cpu import cpu
from bdl.disk.files import is_on_disk, weights_of
from bdl.errors import ConfigError

# The one list of keys that do not change the samples. Two configurations that differ only in these have one hash,
# hence one run directory. `tuned` counts through the keys of the sampler that read it.
NO_EFFECT_ON_SAMPLES = (
    "hydra", "logger", "run_dir", "processes", "monitor_every", "checkpoint_every", "train_items", "experiment",
    "objective", "refit", "calibrate", "weights", "found", "tuned", "trainer.max_time", "trainer.timeout",
    "data.root", "data.download", "data.cache", "data.loader", "data.workers",
)  # fmt: skip
PATHS = ("path", "test_path", "val_path")  # keys of the data whose files count, not their place
TABLE = "bdl.data.read_table"
BLOCK = 2**20  # bytes of a file that are in memory together
BEGINNING = 2**14  # bytes of each file of a folder; most small images have fewer
UNITS = {"s": 1, "m": 60, "h": 3600}
SMALL = 100_000  # weights of one network; that of Landsat, with 2,160, is the one that was measured
CONVOLUTIONAL = ("bdl.models.CNN", "bdl.models.ResNet", "bdl.models.WideResNet")
BF16_FLAGS = {"avx512_bf16", "amx_bf16"}  # x86 CPUs that multiply bf16 in hardware have one of them


def config_folder() -> Path:
    """The folder conf/: part of an installed bdl, beside the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def register_resolvers() -> None:
    """Register `fraction`, `least`, `run_name`, `config_hash` and `wandb_offline` for conf/. Safe to call twice."""
    register(
        fraction=fraction, least=min, run_name=run_name, config_hash=lambda *, _root_: config_hash(_root_),
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
    data = _with_effect("data", settings["data"])
    settings["data"] = data | checksums_of_files(data)  # a table that was moved keeps its run, a changed one does not
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


def checksums_of_files(data: Mapping[str, Any]) -> dict[str, str]:
    """The checksum of each file that the settings of the data name, by the key of its path."""
    files = [key for key in PATHS if isinstance(data.get(key), str)]
    if data.get("_target_") == TABLE:  # a folder is no table, and may hold everything that there is
        files = [key for key in files if not Path(data[key]).expanduser().is_dir()]
    return {key: checksum(data[key]) for key in files}


def _weights(path: str) -> str:
    """A checksum of the file of weights; of a folder, of that which `save_pretrained` left in it; else the path."""
    place = weights_of(path)
    return checksum(str(place)) if is_on_disk(place) else path


def checksum(path: str) -> str:
    """A checksum of a file, or of the names, sizes and beginnings of all files in a folder; else the path itself."""
    place = Path(path).expanduser()
    if not (is_on_disk(place) or place.is_dir()):
        return path
    files = tuple(sorted(file for file in place.rglob("*") if is_on_disk(file))) if place.is_dir() else (place,)
    return _checksum(place, files, tuple(file.stat().st_mtime_ns for file in files))


@functools.lru_cache  # a command asks several times, and files may be large
def _checksum(place: Path, files: tuple[Path, ...], modified: tuple[int, ...]) -> str:
    checksum = hashlib.sha256()
    for path in files:
        if path != place:
            checksum.update(f"{path.relative_to(place)} {path.stat().st_size} ".encode())
        with path.open("rb") as file:
            while block := file.read(BLOCK if path == place else BEGINNING):
                checksum.update(block)
                if path != place:
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


# ---- plain values ----------------------------------------------------------------------------------------------------


def plain(value: object) -> Any:
    """The value; a part of a configuration as nested dicts and lists, with its interpolations resolved."""
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def leaves(value: object, key: str = "", lists: bool = True) -> Iterator[tuple[str, Any]]:
    """The values below a plain mapping or list, with their keys. lists: whether the parts of a list have keys too."""
    if not isinstance(value, Mapping) and not (lists and isinstance(value, list)):
        yield key, value
        return
    for name, part in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from leaves(part, f"{key}.{name}" if key else str(name), lists)


# ---- what null and auto stand for ------------------------------------------------------------------------------------


def count_stacks(cfg: DictConfig) -> int:
    """The number of stacks that the chains are divided into: `stacks`, or what null stands for.

    Null stands for 2 where chains that share nothing move small networks on a CPU, because two processes then carry
    them; otherwise it stands for 1. The machine has no say in it: another number of stacks gives other samples.
    """
    if cfg.stacks is not None:
        return cfg.stacks
    divisible = type(cfg.chains) is int and cfg.chains >= 4 and cfg.chains % 2 == 0
    shared_psi = OmegaConf.select(cfg, "sampler.weighting.shared", default=False)
    alone = not (cfg.shared_batches or shared_psi or exchanges(cfg))
    return 2 if runs_on_one_cpu(cfg) and divisible and alone and is_small(cfg.model) else 1


def runs_on_one_cpu(cfg: DictConfig) -> bool:
    return cfg.trainer.get("accelerator") == "cpu" and cfg.trainer.get("strategy", "auto") == "auto"


def exchanges(cfg: DictConfig) -> bool:
    return OmegaConf.select(cfg, "sampler.exchange") is not None


def is_small(model: DictConfig) -> bool:
    """Whether this is an MLP of at most SMALL weights, biases left out. What the data decide counts as one unit."""
    if model.get("_target_") != "bdl.models.MLP":
        return False
    hidden: Any = model.get("hidden")
    if hidden == "auto" and model.get("sizes") is None:
        return True
    sizes: Any = model.get("sizes") or ([1, *hidden, 1] if isinstance(hidden, Sequence) else [])
    if not sizes or not all(type(size) is int for size in sizes):
        return False
    return sum(a * b for a, b in zip(sizes, sizes[1:], strict=False)) <= SMALL


def check_stacks(cfg: DictConfig) -> None:
    """Raise ConfigError if the chains cannot be divided into that many stacks."""
    stacks = count_stacks(cfg)
    if cfg.chains % stacks:
        raise ConfigError(f"stacks={stacks} does not divide chains={cfg.chains}: choose a divisor, or leave it null")
    if stacks > 1 and not runs_on_one_cpu(cfg):
        raise ConfigError(
            f"stacks={stacks} divides the chains of a run on one CPU (trainer=cpu, debug): leave it null or set it to "
            "1; trainer=chains starts a stack on each of several devices"
        )
    if stacks > 1 and exchanges(cfg):
        raise ConfigError(
            f"stacks={stacks}, but the chains of a replica exchange belong together: leave stacks null or set it to 1"
        )


def count_carriers(cfg: DictConfig) -> int:
    """How many processes carry the stacks of a run on one CPU: `processes`, or one for each core that is free to use.

    There are never more processes than stacks. The samples do not depend on their number.
    """
    free = usable_cores() // (cfg.threads or 1)
    return max(1, min(count_stacks(cfg), cfg.processes or free))


def usable_cores() -> int:
    """The CPU cores that this process may use; a cluster may have bound it to some of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_precision(cfg: DictConfig) -> str | None:
    """The precision of the trainer: `trainer.precision`, or what auto stands for.

    Auto stands for bf16-mixed where a GPU, or a CPU that multiplies bf16 in hardware, trains one of bdl's convolutional
    networks; otherwise it stands for 32-true, under which the gradient of an MLP is written out and becomes a CUDA
    graph. Parameters, momenta, noise and energies are fp32 in both.
    """
    given = cfg.trainer.get("precision")
    if given != "auto":
        return given
    convolutional = cfg.model.get("_target_") in CONVOLUTIONAL
    accelerator = cfg.trainer.get("accelerator")
    fast = accelerator in ("gpu", "cuda") or accelerator == "cpu" and bool(BF16_FLAGS & cpu_flags())
    return "bf16-mixed" if convolutional and fast else "32-true"


def cpu_flags() -> set[str]:
    """The features of the CPU; empty where Linux does not list them."""
    return set(cpu().get("flags", "").split())


def seconds_of(time: str) -> float | None:
    """The seconds of a time such as 90s, 10m or 1.5h; None for other words, and for no time at all.

    >>> seconds_of("10m")
    600.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", time)
    return float(match[1]) * UNITS[match[2]] or None if match is not None else None
