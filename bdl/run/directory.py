"""The run directory: which run it belongs to, its owner, its checkpoint and its traces."""

from __future__ import annotations

import contextlib
import re
import resource
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from bdl.advice import override
from bdl.checkpoint import found_checkpoint
from bdl.disk.files import refuse_links, write_atomically
from bdl.disk.manifest import Manifest
from bdl.disk.owner import sole_owner, sweep_leftovers
from bdl.disk.temporary import sweep_temporary
from bdl.errors import ConfigError
from bdl.posterior.samples import brief
from bdl.posterior.trained import FOLDER as TRAINED
from bdl.posterior.trained import START
from bdl.run.config import checksums_of_files, leaves, plain
from bdl.run.jobs import NOTE
from bdl.run.machine import provenance
from bdl.run.records import (
    CONFIG,
    CONTINUED,
    DISTILLED,
    EVALUATION,
    INFLUENCE,
    METRICS,
    PREPROCESSING,
    REFIT,
    TIMING,
    read_config,
    read_metrics,
    write_json,
)

OWNER = "owner.json"
FOLDERS = ("samples", "checkpoints", f"{START}/samples", f"{TRAINED}/samples")
# The files that runs make in these folders. Lightning's and W&B's are in the folders of LOGS.
OURS = re.compile(
    r"(target|(owner|excluded|inputs)-\d+|stacking(-[0-9a-f]{8})?)\.json|index-(0|[1-9]\d*)\.jsonl|.*\.(safetensors|ckpt|writing)"
)
LOGS = ("logs", "wandb")


class RunDirectory:
    """The folder of one run. Raises ConfigError when the folder holds another run, or files that no run makes.

    A folder without a sample, a checkpoint or metrics holds no run, whatever a refused or killed one has left in it.

    hash: `config_hash` of the configuration as the user gave it. settings: `run_settings` of it, with which a refusal
        says what differs.
    """

    def __init__(self, path: str | Path, hash: str, settings: Mapping[str, Any] | None = None):
        self.path, self.hash, self.settings = Path(path), hash, settings or {}
        self._refuse_other_run()

    def checkpoint(self, name: str = "last") -> Path | None:
        """The checkpoint to resume from, or None. Raises ConfigError for a damaged or foreign file.

        name: each of several stacks in one folder has a checkpoint of its own.
        """
        return found_checkpoint(self.path / "checkpoints" / f"{name}.ckpt", "remove it to start over")

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
                with contextlib.suppress(OSError):  # the folder is not empty
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
        write_json(self.path / TIMING, timing)

    def write_config(
        self,
        settings: Mapping[str, Any],
        name: str,
        device: torch.device,
        preprocessing: Mapping[str, Any] | None = None,
        first: bool = True,
        rows: Mapping[str, str] | None = None,
    ) -> None:
        """Write the settings of the run (`run_settings`), its name, and its provenance on `device`.

        preprocessing: what makes inputs of new data, for `preprocessing.json`; None where there is nothing to do.
        rows: checksums of the items of each split, see `DataModule.checksums`.
        first: whether this is the process that writes the manifest. Others only see to it that there is a file.
        """
        of_data = {"files": checksums_of_files(settings.get("data") or {}), "rows": dict(rows or {})}
        about = {"name": name, **provenance(device), "config_hash": self.hash, **of_data}
        config = OmegaConf.to_yaml(OmegaConf.create({**settings, "provenance": about})).encode()
        if first:
            Manifest(self.path).write(CONFIG, "config", config)
            if preprocessing is not None:
                write_json(self.path / PREPROCESSING, preprocessing)
        elif not (self.path / CONFIG).exists():
            write_atomically(self.path / CONFIG, config)

    def _refuse_other_run(self) -> None:
        self._refuse_foreign_files()
        if (self.path / CONFIG).exists():
            config = read_config(self.path)
            recorded = OmegaConf.select(config, "provenance.config_hash")
            if recorded is None or recorded != self.hash and self.started:
                difference = differing_key(self.settings, config) or f"{recorded}, this is {self.hash}"
                raise ConfigError(
                    f"{self.path} already holds a run of another configuration ({difference}): choose another "
                    "hydra.run.dir, set the key as it is there to go on with that run, or remove that folder"
                )
        elif self.started or not all(map(is_leftover, self._files())):
            raise ConfigError(
                f"{self.path} holds samples, checkpoints or metrics without a {CONFIG}: choose another hydra.run.dir"
            )

    def _refuse_foreign_files(self) -> None:
        """Raise ConfigError for a file of no run, and for a link, through which another run would be written.

        Hidden files are the user's or the file system's. They are neither refused nor touched.
        """
        for folder in (self.path / name for name in FOLDERS):
            paths = [path for path in folder.glob("*") if not path.name.startswith(".")]
            if foreign := [path for path in paths if not OURS.fullmatch(path.name)]:
                raise ConfigError(f"{foreign[0]} is no file of a run: choose another hydra.run.dir, or move it away")
            refuse_links(*paths)
        refuse_links_of(self.path)

    def _files(self) -> Iterator[Path]:
        """The files of this run in its folders."""
        for folder in (self.path / name for name in FOLDERS):
            yield from (path for path in folder.glob("*") if OURS.fullmatch(path.name))

    def _sweep(self) -> None:
        """Remove what a killed owner left: temporary files, and the beginnings of a run that made no sample."""
        for folder in (self.path, *(self.path / name for name in FOLDERS)):
            sweep_leftovers(folder, every_host=True)
        sweep_temporary()
        for path in filter(is_leftover, self._files()):
            path.unlink()
        if not self.started:
            self._clear()

    def _clear(self) -> None:
        """Remove the files of a run that has not started. Without a config.yaml they are not this run's."""
        (self.path / NOTE).unlink(missing_ok=True)
        if not (self.path / CONFIG).exists():
            return
        manifests = self.path.glob("manifest*.jsonl")
        notes = self.path.glob("progress-*.json")
        for path in [*self._files(), *manifests, *notes, *(self.path / name for name in (PREPROCESSING, TIMING))]:
            path.unlink(missing_ok=True)
        for name in (*FOLDERS, START, TRAINED):
            with contextlib.suppress(OSError):  # the folder is not there, or holds hidden files
                (self.path / name).rmdir()
        (self.path / CONFIG).unlink()  # the last, so that a run that is killed here can clear the rest

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


def refuse_links_of(run: Path) -> None:
    """What every writer asks first: raise ConfigError for a link where a folder or a record of a run belongs."""
    inside = [Path(name) for name in (*FOLDERS, REFIT, EVALUATION, DISTILLED, INFLUENCE, CONTINUED)]
    folders = dict.fromkeys(place for name in inside for place in (*list(name.parents)[-2::-1], name))
    refuse_links(*(run / place for place in folders), *sorted(run.glob("manifest*.jsonl")), run / OWNER)


def output_folder(out: str | Path | None, usual: Path, files: str) -> Path:
    """The folder to which a command writes: `out`, or else the usual one. files: what it writes there, in words.

    Raises ConfigError for a file or pipe, for the folder of a run, whose own files would be replaced, and where the
    usual folder is a link.
    """
    if out is None:
        refuse_links(usual)
        return usual
    path, name = Path(str(out)).expanduser(), override("out", str(out))
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{name} {'is a file' if path.is_file() else 'is no folder'}: name a folder for {files}")
    if (path / CONFIG).exists():
        raise ConfigError(f"{name} is the folder of a run, whose files would be replaced: name another for {files}")
    return path


def differing_key(settings: Mapping[str, Any], recorded: DictConfig) -> str:
    """The first key whose value is not that of a recorded configuration, in words; empty where none is known.

    What the data or the tuning of the recorded run have decided is null or auto in the settings, and is left out.
    """
    found = OmegaConf.select(recorded, "found.settings") or {}
    files = OmegaConf.select(recorded, "provenance.files") or {}
    for key, here in checksums_of_files(settings.get("data") or {}).items():
        if files.get(key, here) != here:
            return f"data.{key}={settings['data'][key]} has changed since then"
    for key, here in leaves(settings, lists=False):
        there = plain(OmegaConf.select(recorded, key))
        if here not in (None, "auto") and not any(key.startswith(name) for name in found) and there != here:
            return f"{key} is {brief(there)} there, and {brief(here)} here"
    return ""


def is_leftover(path: Path) -> bool:
    """Whether only a killed writer leaves this: half a checkpoint, or the lock of a stack in a run that is ours."""
    return path.suffix == ".writing" or path.name.startswith("owner-")
