"""The command `bdl status`: which runs and jobs of sweeps wait, run, ended, failed or were killed; a sweep's table."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig
from rich.table import Table

from bdl.contrib.comparison.compare import shown_text
from bdl.contrib.comparison.compared_runs import ABSENT, read_run
from bdl.contrib.comparison.comparison import heading, mean_and_error, sort_key
from bdl.disk.files import write_atomically
from bdl.disk.owner import Owner, owner_of
from bdl.display import count_of, print_whole
from bdl.errors import BdlWarning, ConfigError, StoreError, printable
from bdl.posterior.judge_rest import duration
from bdl.posterior.verdict import verdict
from bdl.run.directory import OWNER
from bdl.run.jobs import NOTE, NOTES, PROGRESS, read_note
from bdl.run.records import CONFIG, folders_of
from bdl.run.spreadsheet import without_formulas

FILE = "sweep.csv"  # a sweep's table, in its folder
SILENT = 120.0  # seconds without a word, after which a process that cannot be seen from here may have ended
RUNNING = "running"
STATES = ("waiting", RUNNING, "ended", "stopped", "failed", "killed", "not begun")


@dataclass(frozen=True)
class Job:
    """How a run, or a job of a sweep that has no folder yet, stands."""

    overrides: Mapping[str, str]
    state: str  # of STATES
    where: str  # the folder of the run; empty where there is none yet
    detail: str = ""  # why it ended, or who runs it
    done: float = math.nan  # share of the steps
    left: float = math.nan  # seconds of sampling
    metrics: Mapping[str, float] | None = None

    @property
    def verdict(self) -> str:
        return verdict(self.metrics).outcome if self.metrics else ""

    def metric(self, name: str) -> float:
        return (self.metrics or {}).get(name, math.nan)


def status(cfg: DictConfig) -> None:
    """Print a line for each run below the folders, and for each job of their sweeps that has no run yet."""
    folders = folders_of(cfg.runs)
    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise ConfigError(f"{missing[0]} is no folder: give that of a run or a sweep, as in bdl status outputs")
    jobs = list({job.where or str(job.overrides): job for folder in folders for job in jobs_below(folder)}.values())
    if not jobs:
        raise ConfigError(f"{folders[0]} holds no run and no sweep: give a folder that bdl train wrote")
    _print(jobs, cfg.metric or _metric_of(jobs))


def tell_sweep(folder: Path, name: str) -> None:
    """Print the table of a sweep, and write it into its folder.

    folder: of the sweep. name: with which its jobs are noted.
    """
    notes = [note for path in (folder / NOTES).glob("*.json") if (note := read_note(path)).get("sweep") == name]
    if jobs := [job_of(note, folder / NOTES, over=True) for note in notes]:
        metric = _metric_of(jobs)
        frame = pd.DataFrame([_row(job, _differing(jobs), metric) for job in _sorted(jobs)])
        write_atomically(folder / FILE, without_formulas(frame).to_csv(index=False).encode())
        _print(jobs, metric)
        print(printable(f"table: {folder / FILE}"))


def jobs_below(folder: Path) -> Iterator[Job]:
    """The runs of a folder and below it, and the jobs of sweeps that have no run. Hidden folders are left out."""
    for place, names, _ in os.walk(folder, onerror=_tell):
        path = Path(place)
        if _is_run(path):
            yield run_in(path, read_note(path / NOTE))
            names.clear()
        for note in sorted((path / NOTES).glob("*.json")) if NOTES in names else ():
            job = read_note(note)
            if job and not (job.get("run") and _is_run(note.parent / job["run"])):
                yield job_of(job, note.parent)
        names[:] = sorted(name for name in names if not name.startswith("."))


def job_of(note: Mapping[str, Any], folder: Path, over: bool = False) -> Job:
    """A job of a sweep by its note in a folder: its run, if it has begun one, and otherwise what the note says.

    over: whether the process that launches the jobs has come to its end.
    """
    run = Path(os.path.normpath(folder / note["run"])) if note.get("run") else None
    if run is not None and _is_run(run):
        return run_in(run, note)
    overrides = _by_key(note["overrides"])
    if "why" in note:
        return Job(overrides, "stopped" if note.get("stopped") else "failed", "", note["why"])
    process: Owner | None = note.get("process")
    if process is not None and (over or process.is_dead()):
        return Job(overrides, "killed" if run else "not begun", "")
    return Job(overrides, RUNNING if run else "waiting", "")


def run_in(path: Path, note: Mapping[str, Any]) -> Job:
    """How the run in a folder stands, by its files."""
    overrides, where = _by_key(note.get("overrides", ())), str(path)
    try:
        run = read_run(path)
        locks = (path / OWNER, *path.glob("samples/owner-*.json"))  # of bdl.sample there are the latter alone
        owner = max(filter(None, map(owner_of, locks)), key=lambda each: not each.is_dead(), default=None)
        done, speed, heard, steps = _progress(path, run.settings.get("stacks") if run else None)
    except (ConfigError, StoreError, OSError) as error:
        return Job(overrides, "failed", where, str(error))
    share = done / steps if steps else math.nan
    if owner is not None and not owner.is_dead():
        seen, silence = owner.is_of_this_host, time.time() - heard
        detail = "" if seen else f"on {owner.host}"
        if not seen and silence > SILENT:
            detail += f", silent for {duration(silence)}"
        return Job(overrides, RUNNING, where, detail, share, (steps - done) / speed if speed else math.nan)
    in_python = not (path / CONFIG).exists()  # it may be without a report
    if run is not None and (run.metrics or in_python and share == 1):
        return Job(overrides, "ended", where, metrics=run.metrics, done=1.0)
    if owner is not None:
        return Job(overrides, "killed", where, "", share)
    state = "failed" if "why" in note and not note.get("stopped") else "stopped"
    return Job(overrides, state, where, note.get("why", ""), share)


def _is_run(folder: Path) -> bool:
    return any(os.path.exists(folder / name) for name in (CONFIG, OWNER, NOTE, "samples/target.json"))


def _tell(error: OSError) -> None:
    warnings.warn(
        f"{error.filename} cannot be read ({error.strerror}): its runs are left out", BdlWarning, stacklevel=2
    )


def _progress(path: Path, stacks: Any) -> tuple[float, float, float, float]:
    """Steps done by all stacks, steps a second of those that move, when the last was heard, and steps of the run.

    stacks: how many the run has, of which some may not have begun; no number where that is not known.
    """
    found = [(read_note(file, PROGRESS), file.stat().st_mtime) for file in path.glob("progress-*.json")]
    notes = [(note, heard) for note, heard in found if note]
    now = max((heard for _, heard in notes), default=0.0)
    speed = sum(n["per_second"] for n, heard in notes if n["step"] < n["steps"] and now - heard < 60)
    count = max(len(notes), stacks if isinstance(stacks, int) else 1)
    return sum(n["step"] for n, _ in notes), speed, now, count * max((n["steps"] for n, _ in notes), default=0)


def _by_key(overrides: Sequence[str]) -> dict[str, str]:
    pairs = (word.lstrip("+").partition("=")[::2] for word in overrides)
    return {key: value for key, value in pairs if key != "run_dir"}


def _differing(jobs: Sequence[Job]) -> list[str]:
    keys = dict.fromkeys(key for job in jobs for key in job.overrides)
    return [key for key in keys if len({job.overrides.get(key) for job in jobs}) > 1]


def _metric_of(jobs: Sequence[Job]) -> str:
    """The objective of a sweep, or else the NLL of the average on the rows that a sweep would look at."""
    asked = next((job.overrides["objective"] for job in jobs if "objective" in job.overrides), None)
    validated = any("val/bma/nll" in (job.metrics or {}) for job in jobs)
    return asked or ("val/bma/nll" if validated else "test/bma/nll")


def _sorted(jobs: Sequence[Job]) -> list[Job]:
    keys = _differing(jobs)
    return sorted(jobs, key=lambda job: [*(sort_key(job.overrides.get(key, "")) for key in keys), sort_key(job.where)])


def _row(job: Job, keys: Sequence[str], metric: str) -> dict[str, Any]:
    known = {"state": job.state, "done": job.done, "seconds left": job.left, metric: job.metric(metric)}
    words = {"verdict": job.verdict, "folder": job.where, "detail": job.detail}
    return {**{key: job.overrides.get(key, ABSENT) for key in keys}, **known, **words}


def _print(jobs: Sequence[Job], metric: str) -> None:
    keys, jobs = _differing(jobs), _sorted(jobs)
    table = Table(box=None, pad_edge=False)
    columns = {**dict.fromkeys(keys, "left"), "state": "left", "done": "right", "time left": "right"}
    for title, side in {**columns, heading(metric): "right", "verdict": "left", "folder": "left"}.items():
        table.add_column(shown_text(title), justify=side)  # type: ignore[arg-type]
    for job in jobs:
        done = ABSENT if math.isnan(job.done) else f"{math.floor(100 * job.done)} %"
        left = ABSENT if math.isnan(job.left) else duration(job.left)
        if job.state == RUNNING and job.done == 1:
            left = "report"
        state = f"{job.state} {job.detail}" if job.state == RUNNING else job.state
        score = mean_and_error(metric, job.metric(metric), math.nan)
        words = [state, done, left, score, job.verdict or ABSENT, job.where or ABSENT]
        table.add_row(*map(shown_text, [*(job.overrides.get(key, ABSENT) for key in keys), *words]))
    print_whole(table)
    for job in jobs:
        if job.detail and job.state != RUNNING:
            name = job.where or " ".join(f"{key}={job.overrides[key]}" for key in keys if key in job.overrides)
            print(printable(f"{name or 'the job'}: {job.detail}"))
    counts = Counter(job.state for job in jobs)
    print(f"{count_of(len(jobs), 'run')}: {', '.join(f'{counts[s]} {s}' for s in STATES if counts[s])}")
