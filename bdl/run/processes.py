"""The processes of one run: the rank of this one, their number, and the steps that each has done."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.warnings import PossibleUserWarning
from omegaconf import OmegaConf
from torch.distributed.rendezvous import rendezvous

from bdl.errors import ConfigError


@dataclass(frozen=True)
class ProcessInfo:
    """Rank among all processes of a run, rank on this machine, and their total number."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    launched: bool = False  # whether torchrun, SLURM or `launch` has started it
    store: str = "env://"  # address of the key-value store that the processes share

    @property
    def is_main(self) -> bool:
        return self.rank == 0


SINGLE = ProcessInfo()
STORE = "BDL_STORE"  # the variable that tells a process of `launch` the address of the store


def process_info() -> ProcessInfo:
    """The ranks that `launch`, torchrun or SLURM gave this process; SINGLE where none of them did."""
    store = os.environ.get(STORE)
    cluster = None if store else _cluster()  # a job of a cluster may launch processes too
    if cluster is not None:
        return ProcessInfo(cluster.global_rank(), cluster.local_rank(), cluster.world_size(), True)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    if not all(name in os.environ for name in names):
        return SINGLE
    rank, local_rank, world_size = (int(os.environ[name]) for name in names)
    return ProcessInfo(rank, local_rank, world_size, True, store or "env://")


def processes_per_machine(trainer: Mapping[str, Any]) -> int:
    """How many processes the trainer's settings ask for on each machine. Raises ConfigError for impossible ones."""
    devices = trainer.get("devices", 1)
    if trainer.get("strategy") in ("ddp", "chains"):
        return count_processes(trainer["accelerator"], devices, trainer.get("concurrent", 1))
    if devices != 1 and not (OmegaConf.is_list(devices) and len(devices) == 1):
        raise ConfigError(
            f"trainer.devices={devices}: trainer=ddp runs one chain on several devices, trainer=chains independent ones"
        )
    return 1


def count_processes(accelerator: str, devices: object, concurrent: object = 1) -> int:
    """The number of processes on a machine, `concurrent` on each device; on a CPU, a device is a core.

    Both must be numbers, because they are part of the configuration that identifies a run. Raises ConfigError for
    anything else and for more devices than the machine has.
    """
    if not isinstance(concurrent, int) or concurrent < 1:
        raise ConfigError(f"trainer.concurrent must be a number of processes on each device, got {concurrent}")
    if not isinstance(devices, int) or devices < 1:
        raise ConfigError(
            f"trainer.devices must be a number of devices, got {devices}; CUDA_VISIBLE_DEVICES chooses among them"
        )
    gpus = torch.cuda.device_count()
    on_cpu = accelerator == "cpu" or accelerator == "auto" and gpus == 0
    available, kind = (os.cpu_count() or 1, "CPU cores") if on_cpu else (gpus, "GPUs")
    if devices > available:
        raise ConfigError(f"trainer.devices={devices}, but this machine has {available} {kind}: set at most that many")
    return devices * concurrent


def check_count(process: ProcessInfo, expected: int) -> None:
    """Raise ConfigError if torchrun or SLURM launched another number of processes than the trainer expects."""
    if process.world_size != expected:
        raise ConfigError(
            f"{process.world_size} processes were launched, but the trainer expects {expected}, devices x concurrent x "
            "num_nodes: launch that many"
        )


class StepStore:
    """The number of steps that each process has done, shared through torch's key-value store.

    There is no process group, so nothing slows the independent chains down. The store of `launch` is a file; that of a
    cluster is a server in its first process (TCPStore). The constructor waits until every process has called it.
    """

    def __init__(self, process: ProcessInfo):
        cluster = _cluster() if process.store == "env://" else None
        if cluster is not None:  # reading the addresses writes them into the environment
            _ = cluster.main_address, cluster.main_port
        self.process = process
        self._store: Any = next(iter(rendezvous(process.store, process.rank, process.world_size)))[0]
        self.set(1, "here")
        self.wait("here")

    def set(self, number: int, name: str = "steps") -> None:
        """Publish a number of this process, its steps."""
        self._store.set(f"{name}/{self.process.rank}", str(number))

    def wait(self, name: str = "steps") -> list[int]:
        """The numbers of every process, by rank. Waits until each of them has called `set`."""
        keys = [f"{name}/{rank}" for rank in range(self.process.world_size)]
        while not self._store.check(keys):
            time.sleep(0.02)
        return [int(self._store.get(key)) for key in keys]


def _cluster() -> ClusterEnvironment | None:
    # In an allocation of SLURM a command has a number of its own only where srun or a batch script started it
    slurm = [SLURMEnvironment] if "SLURM_PROCID" in os.environ else []
    kinds: list[type[ClusterEnvironment]] = [TorchElasticEnvironment, *slurm]
    with warnings.catch_warnings():
        # Where an `srun` is on the PATH, as on every login node, Lightning advises to use it. Most runs need none.
        warnings.simplefilter("ignore", PossibleUserWarning)
        return next((kind() for kind in kinds if kind.detect()), None)
