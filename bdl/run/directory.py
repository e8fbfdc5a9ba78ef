"""The run directory: which run it belongs to, its checkpoint, and the small files that describe it."""

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
from bdl.run.provenance import provenance

PREPROCESSING = "preprocessing.json"


class RunDirectory:
    """The folder of one run. Raises ConfigError when the folder holds another run.

    hash: `config_hash` of the configuration as the user gave it.
    """

    def __init__(self, path: str | Path, hash: str):
        self.path, self.hash = Path(path), hash
        self._refuse_other_run()

    def checkpoint(self, name: str = "last") -> Path | None:
        """The checkpoint to resume from, or None. Raises ConfigError for a damaged or foreign file.

        name: each of several stacks in one folder has a checkpoint of its own.
        """
        path = self.path / "checkpoints" / f"{name}.ckpt"
        if path.exists() and not _is_checkpoint(path):
            raise ConfigError(
                f"{path} is truncated, altered or no checkpoint: restore that of this run, or remove it to start over"
            )
        return path if path.exists() else None

    @property
    def metrics(self) -> dict[str, float] | None:
        """The metrics of a finished run, or None."""
        path = self.path / "metrics.json"
        return read_metrics(path) if path.exists() else None

    def write_timing(self, steps: int, sampling: float, total: float) -> None:
        """Write seconds and the peak memory of this process in MiB.

        They have a file of their own because metrics.json is reproducible to the bit.
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
        """Leave the trace of `Monitor` for the process that writes the report."""
        write_trace(self.path, stack, trace)

    def read_traces(self, stacks: Iterable[int]) -> list[dict[str, Tensor]]:
        return read_traces(self.path, stacks)

    def write_config(
        self,
        settings: Mapping[str, Any],
        name: str,
        device: torch.device,
        preprocessing: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the settings of the run (`run_settings`), its name, and its provenance on `device`.

        preprocessing: what makes inputs of new data, for `preprocessing.json`; None where there is nothing to do.
        """
        if preprocessing is not None:
            write_json(self.path / PREPROCESSING, preprocessing)
        about = {"name": name, **provenance(device), "config_hash": self.hash}
        described = {**settings, "provenance": about}
        write_atomically(self.path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(described)).encode())

    def _refuse_other_run(self) -> None:
        config = self.path / "config.yaml"
        if not config.exists():
            if any(self.path.glob("samples/*")) or (self.path / "checkpoints").exists():
                raise ConfigError(
                    f"{self.path} holds samples or checkpoints without a config.yaml: choose another hydra.run.dir"
                )
            return
        recorded = OmegaConf.select(OmegaConf.load(config), "provenance.config_hash")
        if recorded != self.hash:
            raise ConfigError(
                f"{self.path} already holds a run of another configuration ({recorded}, this is {self.hash}): "
                "choose another hydra.run.dir or remove that folder"
            )


def write_trace(run: Path, stack: int, trace: Trace) -> None:
    """Write the trace of `Monitor` of one stack."""
    columns = {name: column.contiguous() for name, column in trace.items()}
    write_atomically(_trace_of(run, stack), save(columns))


def read_traces(run: Path, stacks: Iterable[int]) -> list[dict[str, Tensor]]:
    """The traces of these stacks; those that were not written are left out."""
    paths = [path for stack in stacks if (path := _trace_of(run, stack)).exists()]
    return [load(path.read_bytes()) for path in paths]


def _trace_of(run: Path, stack: int) -> Path:
    return run / "checkpoints" / f"trace-{stack}.safetensors"


def read_config(run: Path) -> DictConfig:
    """The config.yaml of a run directory. Raises ConfigError for a folder without one."""
    path = run / "config.yaml"
    if not path.exists():
        raise ConfigError(
            f"{run} is not a run directory: it has no config.yaml; runs=[...] takes folders that `bdl train` wrote"
        )
    loaded = OmegaConf.load(path)
    assert isinstance(loaded, DictConfig)
    return loaded


def read_preprocessing(run: Path) -> dict[str, Any]:
    """What makes inputs of new data. Raises ConfigError for a run without it, and for a damaged file."""
    path = run / PREPROCESSING
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(
            f"{run} has no {PREPROCESSING}: it is no run on a table (data=csv or data=parquet), whose columns new rows "
            "could have; use bdl.Posterior in Python"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}): restore it") from error


def _is_checkpoint(path: Path) -> bool:
    """Whether this is a whole checkpoint of Lightning that holds only tensors and plain values."""
    try:
        if zipfile.ZipFile(path).testzip():  # torch writes checksums but does not verify them
            return False
        return "pytorch-lightning_version" in torch.load(path, "cpu", weights_only=True, mmap=True)
    except (zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, TypeError):
        return False


def write_metrics(path: Path, metrics: Mapping[str, float]) -> None:
    """Write flat `name: number`, NaN and infinities as null."""
    write_json(path, {k: v if math.isfinite(v) else None for k, v in sorted(metrics.items())})


def read_metrics(path: Path) -> dict[str, float]:
    return {k: math.nan if v is None else v for k, v in json.loads(path.read_text()).items()}


def write_json(path: Path, content: Any) -> None:
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
