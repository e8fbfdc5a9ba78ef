"""The run directory: which run it belongs to, its checkpoint, and the small files that describe it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from bdl.baselines.base import FOLDER as TRAINED
from bdl.checkpoint import is_checkpoint
from bdl.errors import ConfigError
from bdl.files import sweep_leftovers, write_atomically
from bdl.lightning.callbacks.start import FOLDER as START
from bdl.owner import sole_owner
from bdl.posterior.report.numbers import Trace
from bdl.run.provenance import provenance, with_checksum

CONFIG, PREPROCESSING, METRICS = "config.yaml", "preprocessing.json", "metrics.json"
OWNER, CHECKSUMS = "owner.json", "checksums.json"
DESCRIBED = (
    CONFIG, PREPROCESSING, METRICS, "timing.json", "report.html", "samples/target.json", "samples/index-*.jsonl",
    "samples/weighting-*.safetensors", "samples/excluded-*.json", f"{START}/samples/target.json",
    f"{START}/samples/index-*.jsonl", f"{TRAINED}/samples/target.json", f"{TRAINED}/samples/index-*.jsonl",
)  # fmt: skip
FOLDERS = ("samples", "checkpoints", f"{START}/samples", f"{TRAINED}/samples")
# The files that runs make below these folders. Lightning's and W&B's are below the folders of LOGS.
OURS = re.compile(r"(target|(owner|excluded)-\d+)\.json|index-.*\.jsonl|.*\.(safetensors|ckpt|writing)|\..*")
LOGS = ("logs", "wandb")


class RunDirectory:
    """The folder of one run. Raises ConfigError when the folder holds another run, or files that no run makes.

    A folder without a sample, a checkpoint or metrics holds no run, whatever a refused or killed one has left in it.

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
        if path.exists() and not is_checkpoint(path):
            raise ConfigError(
                f"{path} is truncated, altered or no checkpoint: restore that of this run, or remove it to start over"
            )
        return path if path.exists() else None

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """This process and its children own the folder. Raises StoreError if another process does.

        An error before the first sample, checkpoint and logged metric takes back what was written.
        """
        new = not self.path.exists()
        try:
            with sole_owner(self.path / OWNER):
                self._refuse_other_run()  # another process may have written since it was asked first
                self._sweep()
                before = set(self.path.rglob("*"))
                try:
                    yield
                except BaseException:
                    self._take_back(before)
                    raise
        finally:
            if new:
                with contextlib.suppress(OSError):  # it is not empty
                    self.path.rmdir()

    @property
    def started(self) -> bool:
        """Whether the folder holds a sample, a trained start, a checkpoint or metrics."""
        listed = any(path.stat().st_size for path in self.path.glob("samples/index-*.jsonl"))
        written = (*(f"{name}/*.safetensors" for name in FOLDERS), "checkpoints/*.ckpt", METRICS)
        return listed or any(any(self.path.glob(pattern)) for pattern in written)

    @property
    def metrics(self) -> dict[str, float] | None:
        """The metrics of a finished run, or None."""
        path = self.path / METRICS
        return read_metrics(path) if path.exists() else None

    def write_checksums(self) -> None:
        """Write the checksums of the files of an ended run. Sample files have theirs in the index."""
        files = sorted(path for pattern in DESCRIBED for path in self.path.glob(pattern))
        sums = {str(path.relative_to(self.path)): sha256(path) for path in files}
        write_json(self.path / CHECKSUMS, sums)

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

    def write_trace(self, stack: int, trace: Trace) -> None:  # of `Monitor`, for the process that writes the report
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
        about = {"name": name, **provenance(device), "config_hash": self.hash}
        described = {**settings, "provenance": about}
        write_atomically(self.path / CONFIG, with_checksum(OmegaConf.to_yaml(OmegaConf.create(described)).encode()))
        if preprocessing is not None:
            write_json(self.path / PREPROCESSING, preprocessing)
        (self.path / CHECKSUMS).unlink(missing_ok=True)  # of an earlier end of this run

    def _refuse_other_run(self) -> None:
        config = self.path / CONFIG
        for name in FOLDERS:
            foreign = [path for path in (self.path / name).glob("*") if not OURS.fullmatch(path.name)]
            if foreign:
                raise ConfigError(f"{foreign[0]} is no file of a run: choose another hydra.run.dir, or move it away")
        if config.exists():
            recorded = OmegaConf.select(read_config(self.path), "provenance.config_hash")
            if recorded is None or recorded != self.hash and self.started:
                raise ConfigError(
                    f"{self.path} already holds a run of another configuration ({recorded}, this is {self.hash}): "
                    "choose another hydra.run.dir or remove that folder"
                )
        elif self.started:
            raise ConfigError(
                f"{self.path} holds samples, checkpoints or metrics without a {CONFIG}: choose another hydra.run.dir"
            )

    def _sweep(self) -> None:
        """Remove what a killed owner left: temporary files, and the beginnings of a run that made no sample."""
        for folder in (self.path, *(self.path / name for name in FOLDERS)):
            sweep_leftovers(folder, every_host=True)
        for path in (*self.path.glob("checkpoints/*.writing"), *self.path.glob("**/samples/owner-*.json")):
            path.unlink()
        if not self.started:
            self._clear()

    def _clear(self) -> None:
        """Remove the files of a run that has not started."""
        if (self.path / CONFIG).exists():  # it is bdl's, and so are the others
            for name in (CHECKSUMS, PREPROCESSING, "timing.json", CONFIG):
                (self.path / name).unlink(missing_ok=True)
        for folder in (self.path / name for name in FOLDERS):
            for path in folder.glob("*"):
                path.unlink()
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()
        for name in (START, TRAINED):
            with contextlib.suppress(OSError):
                (self.path / name).rmdir()

    def _take_back(self, before: set[Path]) -> None:
        """Remove what a refused run wrote, and the files of its loggers. A run that logged metrics has made steps."""
        new = [path for name in LOGS for path in sorted((self.path / name).rglob("*"), reverse=True)]
        new = [path for path in [*new, *(self.path / name for name in LOGS)] if path not in before]
        if self.started or any(path.name == "metrics.csv" for path in new):
            return
        self._clear()
        for path in new:
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def write_trace(run: Path, stack: int, trace: Trace) -> None:
    """Write the trace of `Monitor` of one stack."""
    columns = {name: column.contiguous() for name, column in trace.items()}
    write_atomically(_trace_of(run, stack), save(columns))


def read_traces(run: Path, stacks: Iterable[int]) -> list[dict[str, Tensor]]:
    """The traces of these stacks; those that were not written are left out."""
    paths = [path for stack in stacks if (path := _trace_of(run, stack)).exists()]
    try:
        return [load(path.read_bytes()) for path in paths]
    except SafetensorError as error:
        raise ConfigError(f"{_trace_of(run, 0).parent} holds a damaged trace ({error}): remove it") from error


def _trace_of(run: Path, stack: int) -> Path:
    return run / "checkpoints" / f"trace-{stack}.safetensors"


def read_config(run: Path) -> DictConfig:
    """The config.yaml of a run directory. Raises ConfigError for a folder without one, and for a damaged one."""
    path = run / CONFIG
    if not path.exists():
        raise ConfigError(
            f"{run} is not a run directory: it has no config.yaml; runs=[...] takes folders that `bdl train` wrote"
        )
    try:
        loaded = OmegaConf.load(path)
    except Exception as error:  # the parsers may raise anything
        raise ConfigError(f"{path} is damaged ({_first_line(error)}): restore it") from error
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{path} is damaged (it is no mapping): restore it")
    return loaded


def read_checksums(run: Path) -> dict[str, str] | None:
    """The checksums of the files of an ended run; None for a run that goes on, and for one of an older bdl."""
    path = run / CHECKSUMS
    return _read_json(path, "remove it, and nothing is compared with it") if path.exists() else None


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_preprocessing(run: Path) -> dict[str, Any]:
    """What makes inputs of new data. Raises ConfigError for a run without it, and for a damaged file."""
    path = run / PREPROCESSING
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(
            f"{run} has no {PREPROCESSING}: it is no run on a table (data=csv or data=parquet), whose columns new rows "
            "could have; use bdl.Posterior in Python"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}): restore it") from error


def write_metrics(path: Path, metrics: Mapping[str, float]) -> None:
    """Write flat `name: number`, NaN and infinities as null."""
    write_json(path, {k: v if math.isfinite(v) else None for k, v in sorted(metrics.items())})


def read_metrics(path: Path) -> dict[str, float]:
    """The metrics. Raises ConfigError for a damaged file."""
    remedy = "remove it, and the same command makes it again"
    metrics = _read_json(path, remedy)
    if not all(value is None or type(value) in (int, float) for value in metrics.values()):
        raise ConfigError(f"{path} is damaged (a metric is no number): {remedy}")
    return {k: math.nan if v is None else v for k, v in metrics.items()}


def _read_json(path: Path, remedy: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("it is no mapping")
        return content
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path} is damaged ({_first_line(error)}): {remedy}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def write_json(path: Path, content: Any) -> None:
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
