"""Values that `null` and `auto` stand for in conf/: the number of stacks, the processes that carry them, the precision.

This module imports neither torch nor Lightning, because the hash of a configuration needs these values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from bdl.cpu import cpu
from bdl.errors import ConfigError

UNITS = {"s": 1, "m": 60, "h": 3600}
SMALL = 100_000  # weights of one network; that of Landsat, with 2,160, is the one that was measured
CONVOLUTIONAL = ("bdl.models.CNN", "bdl.models.ResNet", "bdl.models.WideResNet")
BF16_FLAGS = {"avx512_bf16", "amx_bf16"}  # x86 CPUs that multiply bf16 in hardware have one of them


def seconds_of(time: str) -> float | None:
    """The seconds of a time such as 90s, 10m or 1.5h; None for other words, and for no time at all.

    >>> seconds_of("10m")
    600.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", time)
    return float(match[1]) * UNITS[match[2]] or None if match is not None else None


# ---- stacks ----------------------------------------------------------------------------------------------------------


def count_stacks(cfg: DictConfig) -> int:
    """The number of stacks that the chains are divided into: `stacks`, or what null stands for.

    Null stands for 2 where chains that share nothing move small networks on a CPU, because two processes then carry
    them; otherwise it stands for 1. The machine has no say in it: another number of stacks gives other samples.
    """
    if cfg.stacks is not None:
        return cfg.stacks
    return 2 if divisible(cfg) and not shared_by_chains(cfg) and is_small(cfg.model) else 1


def divisible(cfg: DictConfig) -> bool:
    """Whether this is a run on one CPU device whose chains make two stacks of at least two."""
    return runs_on_one_cpu(cfg.trainer) and type(cfg.chains) is int and cfg.chains >= 4 and cfg.chains % 2 == 0


def runs_on_one_cpu(trainer: DictConfig) -> bool:
    return trainer.get("accelerator") == "cpu" and trainer.get("strategy", "auto") == "auto"


def shared_by_chains(cfg: DictConfig) -> bool:
    """Whether the chains of a stack share batches, swap their states, or fit one psi together."""
    shared_psi = OmegaConf.select(cfg, "sampler.weighting.shared", default=False)
    return bool(cfg.shared_batches or shared_psi) or exchanges(cfg)


def exchanges(cfg: DictConfig) -> bool:
    return OmegaConf.select(cfg, "sampler.exchange", default=None) is not None


def is_small(model: DictConfig) -> bool:
    """Whether this is an MLP of at most SMALL weights, biases left out. What the data decide counts as one unit."""
    if model.get("_target_") != "bdl.models.MLP":
        return False
    hidden: Any = model.get("hidden")
    sizes: Any = model.get("sizes") or ([1, *hidden, 1] if isinstance(hidden, Sequence) else [])
    if not sizes or not all(type(size) is int for size in sizes):
        return False
    return sum(a * b for a, b in zip(sizes, sizes[1:], strict=False)) <= SMALL


def check_stacks(cfg: DictConfig) -> None:
    """Raise ConfigError if the chains cannot be divided into that many stacks."""
    stacks = count_stacks(cfg)
    if cfg.chains % stacks:
        raise ConfigError(f"stacks={stacks} does not divide chains={cfg.chains}: choose a divisor, or leave it null")
    if stacks > 1 and not runs_on_one_cpu(cfg.trainer):
        raise ConfigError(
            f"stacks={stacks} divides the chains of a run on one CPU (trainer=cpu, debug): leave it null or set it to "
            "1; trainer=chains starts a stack on each of several devices"
        )
    if stacks > 1 and exchanges(cfg):
        raise ConfigError(
            f"stacks={stacks}, but the chains of a replica exchange belong together: leave stacks null or set it to 1"
        )


# ---- processes -------------------------------------------------------------------------------------------------------


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


# ---- what a job asks a cluster for ---------------------------------------------------------------------------------


def tasks_per_node(cfg: DictConfig) -> int:
    """The processes that SLURM starts on each machine: those of trainer=ddp and chains; otherwise one."""
    trainer = cfg.trainer
    several = trainer.get("strategy") in ("ddp", "chains")
    return trainer.devices * trainer.get("concurrent", 1) if several else 1


def cpus_per_task(cfg: DictConfig) -> int:
    """`threads` cores for each process of a task; a task of a run on one CPU carries all stacks, if it may."""
    stacks = count_stacks(cfg)
    return (cfg.threads or 1) * min(stacks, cfg.processes or stacks)


def gpus_per_node(cfg: DictConfig) -> int | None:
    """`trainer.devices` where they are GPUs; None on CPUs, and where the machine decides."""
    return cfg.trainer.devices if cfg.trainer.accelerator in ("gpu", "cuda") else None


# ---- precision -------------------------------------------------------------------------------------------------------


def choose_precision(cfg: DictConfig) -> Any:
    """The precision of the trainer: `trainer.precision`, or what auto stands for.

    Auto stands for bf16-mixed where a CPU that multiplies bf16 in hardware trains one of bdl's convolutional networks;
    otherwise it stands for 32-true. Parameters, momenta, noise and energies are fp32 in both.
    """
    given = cfg.trainer.get("precision")
    if given != "auto":
        return given
    convolutional = cfg.model.get("_target_") in CONVOLUTIONAL
    faster = convolutional and cfg.trainer.get("accelerator") == "cpu" and bool(BF16_FLAGS & cpu_flags())
    return "bf16-mixed" if faster else "32-true"


def cpu_flags() -> set[str]:
    """The features of the CPU; empty where Linux does not list them."""
    return set(cpu().get("flags", "").split())
