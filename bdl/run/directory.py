"""The run directory: whose it is, how far it got, and the small files that describe it."""

from __future__ import annotations

import json
import math
import pickle
import resource
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import load, save
from torch import Tensor

from bdl.errors import ConfigError
from bdl.files import write_atomically
from bdl.posterior.report.numbers import Trace
from bdl.run.config import config_hash, identity, provenance


class RunDirectory:
    """One configuration's folder. Raises ConfigError when the folder holds another run.

    name: of the checkpoint; of several stacks in one folder, each has its own.
    """

    def __init__(self, path: str | Path, cfg: DictConfig, name: str = "last"):
        self.path, self.cfg, self.name = Path(path), cfg, name
        self.hash = config_hash(cfg)  # before anything derived from the data is filled in, as in the folder's name
        self._refuse_other_run()

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint to go on from, or None. Raises ConfigError for one that is not whole."""
        path = self.path / "checkpoints" / f"{self.name}.ckpt"
        if path.exists() and not _is_checkpoint(path):
            raise ConfigError(
                f"{path} is cut short, altered, or no checkpoint: put back that of this run, or remove it to start anew"
            )
        return path if path.exists() else None

    @property
    def metrics(self) -> dict[str, float] | None:
        """The metrics of a finished run, or None."""
        path = self.path / "metrics.json"
        return read_metrics(path) if path.exists() else None

    def write_timing(self, steps: int, sampling: float, total: float) -> None:
        """Seconds and memory, apart from metrics.json, which is reproducible to the bit.

        Memory is the peak of this process, in MiB.
        """
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)
        timing = {
            "seconds": total,
            "seconds_sampling": sampling,
            "steps_per_second": steps / sampling,
            "peak_memory_mib": memory,
        }
        write_json(self.path / "timing.json", timing)

    def write_trace(self, stack: int, trace: Trace) -> None:
        """Leave what `Monitor` saw of a stack to the process that writes the report."""
        write_atomically(self._trace(stack), save({name: column.contiguous() for name, column in trace.items()}))

    def read_traces(self, stacks: Iterable[int]) -> list[dict[str, Tensor]]:
        return [load(self._trace(stack).read_bytes()) for stack in stacks]

    def _trace(self, stack: int) -> Path:
        return self.path / "checkpoints" / f"trace-{stack}.safetensors"

    def write_config(self, name: str, device: torch.device) -> None:
        """name: of the experiment, or what the run was put together from; device: where it runs."""
        about = {"name": name, **provenance(device), "config_hash": self.hash}
        described = {**identity(self.cfg), "provenance": about}
        write_atomically(self.path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(described)).encode())

    def _refuse_other_run(self) -> None:
        config = self.path / "config.yaml"
        if not config.exists():
            if any(self.path.glob("samples/*")) or (self.path / "checkpoints").exists():
                raise ConfigError(
                    f"{self.path} holds samples or checkpoints without a config.yaml: choose another hydra.run.dir"
                )
            return
        found = OmegaConf.select(OmegaConf.load(config), "provenance.config_hash")
        if found != self.hash:
            raise ConfigError(
                f"{self.path} already holds a run of another configuration ({found}, this is {self.hash}): "
                "choose another hydra.run.dir or remove that folder"
            )


def _is_checkpoint(path: Path) -> bool:
    """Is this a whole file of Lightning's, of tensors and numbers alone?"""
    try:
        if zipfile.ZipFile(path).testzip():  # torch writes checksums, and does not look at them
            return False
        return "pytorch-lightning_version" in torch.load(path, "cpu", weights_only=True, mmap=True)
    except (zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, TypeError):
        return False


def write_metrics(path: Path, metrics: Mapping[str, float]) -> None:
    """Flat `name: number`, NaN and infinities as null."""
    clean = {k: v if math.isfinite(v) else None for k, v in sorted(metrics.items())}
    write_atomically(path, (json.dumps(clean, indent=1) + "\n").encode())


def read_metrics(path: Path) -> dict[str, float]:
    return {k: math.nan if v is None else v for k, v in json.loads(path.read_text()).items()}


def write_json(path: Path, content: Any) -> None:
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
