"""What runs and the jobs of a sweep note for `bdl status`: their overrides, and why they ended before their report.

A run has its note in its folder. A sweep notes each of its jobs beforehand, because one that waits, or that was
refused, has no folder. This module imports neither torch nor Lightning.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.conf import HydraConf
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from bdl.disk.files import SMALL_FILE, parse_json, read_file, write_atomically
from bdl.disk.owner import Owner
from bdl.errors import Stopped, StoreError
from bdl.parts import has_parts, part
from bdl.run.console import one_line
from bdl.run.sweeps import note_gpus
from bdl.run.validate import rule_of

NOTE = "job.json"  # in the folder of a run
NOTES = ".jobs"  # the folder of a sweep's notes, in its own
BASIC = f"{BasicSweeper.__module__}.{BasicSweeper.__name__}"
JOB = {
    "overrides": Sequence[str], "sweep": str | None, "run": str | None, "process": dict | None, "why": str | None,
    "stopped": bool | None,
}  # fmt: skip
PROGRESS = {"step": int, "steps": int, "per_second": float}
_begun: list[tuple[Path, str]] = []  # folder and name of the sweep that this process launches


def read_note(path: Path, kinds: Mapping[str, object] = JOB) -> dict[str, Any]:
    """A note; {} where there is none, or none of ours. The process of a job is an `Owner`."""
    try:
        note = parse_json(read_file(path, SMALL_FILE))
        if not (isinstance(note, dict) and all(rule_of(kind).fits(note.get(key)) for key, kind in kinds.items())):
            return {}
        return note | ({"process": Owner.of(note["process"])} if note.get("process") else {})
    except (OSError, ValueError):
        return {}


@contextmanager
def noted(path: Path, overrides: Sequence[str], **facts: Any) -> Iterator[None]:
    """Note the overrides of a job that begins, and afterwards why it ended where that was an error."""
    note = {"overrides": list(overrides), **facts}
    _write(path, note)
    try:
        yield
    except BaseException as error:
        stopped = isinstance(error, Stopped | KeyboardInterrupt)
        with suppress(StoreError):  # a disk that is full, or a folder that was moved, has ended the job
            _write(path, note | {"why": one_line(error), "stopped": stopped}, make_folder=False)
        raise


@contextmanager
def noted_in_sweep(hydra: HydraConf) -> Iterator[None]:
    """`noted` for a job of a sweep, in the folder of the sweep; nothing for a run by itself."""
    if hydra.mode != RunMode.MULTIRUN:
        yield
        return
    path = _note_of(Path(hydra.sweep.dir), hydra.overrides.task)
    run = os.path.relpath(hydra.runtime.output_dir, path.parent)
    facts = {"sweep": read_note(path).get("sweep"), "run": run, "process": asdict(Owner.this_process())}
    with noted(path, hydra.overrides.task, **facts):
        yield


def note_jobs(config: DictConfig, jobs: Sequence[Sequence[str]]) -> None:
    """Note jobs of the sweep that this process launches, by their overrides, before the first of them begins."""
    queued = "slurm" in config.hydra.launcher._target_  # they wait there whether or not this process goes on
    process = {} if queued else {"process": asdict(Owner.this_process())}
    for overrides in jobs:
        words = [word for word in overrides if not word.lstrip("+~").startswith("hydra")]
        note = {"overrides": words, "sweep": _begun[-1][1] if _begun else None, **process}
        _write(_note_of(Path(config.hydra.sweep.dir), words), note)


class NoteSweep(Callback):
    """Notes the jobs of a sweep. Hydra calls it before the first of them; an optimising sweep calls `note_jobs`."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        note_gpus(config.hydra)
        folder, words = Path(config.hydra.sweep.dir), config.hydra.overrides.task
        _begun.append((folder, f"{os.getpid()}-{time.time():.3f}"))
        if config.hydra.sweeper._target_ == BASIC:
            given = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
            parsed = OverridesParser.create().parse_overrides([*given, *words])
            note_jobs(config, BasicSweeper.split_arguments(parsed, None)[0])


@contextmanager
def told_sweep() -> Iterator[None]:
    """After a sweep, however it ended, print the table of its jobs, and write it into its folder."""
    try:
        yield
    finally:
        while _begun:
            folder, name = _begun.pop()
            if has_parts() and (folder / NOTES).exists():
                part("sweep's table")(folder, name)


def _note_of(sweep: Path, overrides: Sequence[str]) -> Path:
    return sweep / NOTES / f"{hashlib.sha256(chr(10).join(sorted(overrides)).encode()).hexdigest()[:16]}.json"


def _write(path: Path, note: dict[str, Any], make_folder: bool = True) -> None:
    write_atomically(path, json.dumps(note).encode(), make_folder=make_folder)
