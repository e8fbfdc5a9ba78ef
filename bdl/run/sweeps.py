"""Sweeps: keys of swept choices, what a launcher asks a cluster for, and the name of an optimising sweep.

Hydra's plugins bring the configurations of their launchers. `register_sweeps` changes their defaults, so that jobs are
requeued, and adds the sweeper `optuna`. This module imports neither torch nor a plugin.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from bdl.parts import has_parts, part
from bdl.run.config import count_stacks, register

OPTUNA_SWEEPER = "hydra_plugins.bdl.OptunaSweeper"
LOCAL = "LocalLauncher"  # of submitit: all jobs of a sweep side by side on this machine
GPUS = "BDL_GPUS"  # the variable that names this machine's GPUs to such jobs
DEFAULTS: dict[str, dict[str, Any]] = {
    "launcher/submitit_slurm": {
        "nodes": "${oc.select:trainer.num_nodes,1}",
        "tasks_per_node": "${tasks_per_node:}",
        "cpus_per_task": "${cpus_per_task:}",
        "gpus_per_node": "${gpus_per_node:}",
        "max_num_timeout": 20,  # starts of a job that ran out of `timeout_min`; preemptions do not count
        "additional_parameters": {"requeue": True},
    },
    "launcher/submitit_local": {
        "timeout_min": 10_000,  # a week; submitit restarts a job that is out of time, three times at most
        "gpus_per_node": "${gpus_per_node:}",
    },
}


def register_sweeps() -> None:
    """Register the resolvers of DEFAULTS, and DEFAULTS over what installed plugins register. Safe to call twice."""
    register(
        tasks_per_node=tasks_per_node, cpus_per_task=cpus_per_task, gpus_per_node=gpus_per_node, study_name=study_name
    )  # fmt: skip
    Plugins.instance()  # finds the plugins, which register their configurations
    store = ConfigStore.instance()
    for name, settings in DEFAULTS.items():
        group, _, option = name.partition("/")
        stored = store.repo["hydra"].get(group, {}).get(f"{option}.yaml")
        if stored is not None:
            node = OmegaConf.merge(stored.node, settings)
            store.store(group=f"hydra/{group}", name=option, node=node, provider=stored.provider)
    if find_spec("optuna") is not None and has_parts():  # else a command that names the sweeper says what it needs
        part("hydra/sweeper=optuna")()


def of_each_job(name: str, words: Sequence[str], conf: Path) -> list[str]:
    """The words of a sweep, where a key that only its swept choices have becomes a sweep over its one value.

    Hydra first composes a configuration without what is swept, and would refuse such a key there. Jobs alone have it.
    Words that Hydra does not take stay as they are: Hydra says what is wrong.

    conf: the folder of the configurations.
    """
    if not {"-m", "--multirun"} & set(words):
        return list(words)
    try:
        overrides = OverridesParser.create().parse_overrides([word for word in words if not word.startswith("-")])
        groups = [each for each in overrides if (conf / each.key_or_group.partition("@")[0]).is_dir()]
        if not any(each.is_sweep_override() for each in groups):
            return list(words)
        with initialize_config_dir(str(conf), version_base="1.3"):
            first = compose(name, [str(each.input_line) for each in groups if not each.is_sweep_override()])
    except HydraException:
        return list(words)
    keys = {
        each.input_line: each.key_or_group
        for each in overrides
        if each.type == OverrideType.CHANGE and each not in groups and not each.is_sweep_override()
    }
    only_swept = {line for line, key in keys.items() if not key.startswith("hydra") and not _has(first, key)}
    return [f"{keys[word]}=choice({word.partition('=')[2]})" if word in only_swept else word for word in words]


def _has(config: DictConfig, key: str) -> bool:
    """Whether a configuration has a key, which may be null."""
    parent, _, last = key.rpartition(".")
    node: Any = OmegaConf.select(config, parent) if parent else config
    return isinstance(node, DictConfig) and last in node


def is_optimising(hydra: Any) -> bool:
    """Whether a job belongs to a sweep by Optuna, which handles the job's error."""
    return hydra.mode is not None and hydra.mode.name == "MULTIRUN" and hydra.sweeper._target_ == OPTUNA_SWEEPER


def tasks_per_node(*, _root_: DictConfig) -> int:
    """The processes that SLURM starts on each machine: those of trainer=ddp and chains; otherwise one."""
    trainer = _root_.trainer
    several = trainer.get("strategy") in ("ddp", "chains")
    return trainer.devices * trainer.get("concurrent", 1) if several else 1


def cpus_per_task(*, _root_: DictConfig) -> int:
    """`threads` cores for each process of a task; a task of a run on one CPU carries all stacks, if it may."""
    stacks = count_stacks(_root_)
    return (_root_.threads or 1) * min(stacks, _root_.processes or stacks)


def gpus_per_node(*, _root_: DictConfig) -> int | None:
    """`trainer.devices` where they are GPUs; None on CPUs, and where the machine decides."""
    return _root_.trainer.devices if _root_.trainer.accelerator in ("gpu", "cuda") else None


def note_gpus(hydra: DictConfig, devices: Path = Path("/dev")) -> None:
    """Name the GPUs of this machine to the jobs of a sweep that runs side by side; those that its command may see."""
    if hydra.launcher._target_.endswith(LOCAL):
        every = range(len([*devices.glob("nvidia[0-9]*")]))  # CUDA counts from 0 whichever a container has
        os.environ[GPUS] = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, every)))


def take_gpus(hydra: Any, trainer: DictConfig) -> None:
    """Leave a job of such a sweep `trainer.devices` of these GPUs, in turn. submitit gives every job the first ones."""
    gpus = [gpu for gpu in os.environ.get(GPUS, "").split(",") if gpu]
    if gpus and hydra.launcher._target_.endswith(LOCAL) and isinstance(count := trainer.get("devices", 1), int):
        turn = range(hydra.job.num * count, (hydra.job.num + 1) * count)
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(dict.fromkeys(gpus[k % len(gpus)] for k in turn))


def study_name(choices: DictConfig, overrides: Sequence[str], params: Mapping[str, Any] | None) -> str:
    """The name of an optimising sweep: the same overrides and parameters, in any order, find the same study."""
    words = "\n".join(sorted([*overrides, *(f"{key}={value}" for key, value in (params or {}).items())]))
    return f"{choices.data}-{choices.model}-{choices.sampler}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"
