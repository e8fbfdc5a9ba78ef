"""Every file of a run against manifests, index and checkpoints, and on request its law. See conf/verify.yaml."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from omegaconf import DictConfig
from rich.markup import escape
from rich.table import Table

from bdl.advice import override
from bdl.checkpoint import is_checkpoint
from bdl.disk.files import WRITING
from bdl.disk.manifest import Manifest, manifests_of
from bdl.disk.owner import owner_of
from bdl.display import count_of, print_whole
from bdl.errors import ConfigError, StoreError, printable
from bdl.parts import part
from bdl.posterior.index import read_lines, sample_files
from bdl.posterior.store import SampleStore
from bdl.posterior.trained import FOLDER as TRAINED
from bdl.posterior.trained import START
from bdl.run.directory import OWNER
from bdl.run.records import CONFIG, CONTINUED, METRICS, PREPROCESSING, REFIT, read_metrics, read_preprocessing
from bdl.run.stored import described_files, known_samples, read_checked

State = Literal["whole", "bad", "unknown"]
COLOURS = {"whole": "green", "bad": "red", "unknown": "yellow"}


@dataclass(frozen=True)
class FileState:
    """Whether one file is as it was written, or several."""

    what: str
    state: State
    note: str = ""


def verify(cfg: DictConfig) -> None:
    """Print a table of all files, and under `law=true` a certificate of the law that was sampled.

    Ends the process with status 1 if a file is bad, before a certificate. What the certificate finds is no fault of the
    files: it leaves the status 0.
    """
    if cfg.keep and not cfg.law:
        raise ConfigError("keep=true stores the states of law=true: give both")
    run = Path(str(cfg.run)).expanduser()
    if not (run / CONFIG).exists() and not (run / "samples").exists():
        raise ConfigError(
            f"{override('run', str(cfg.run))} is not a run directory: it has neither a {CONFIG} nor samples"
        )
    rows = list(look(run, cfg.trust))
    for name in (REFIT, CONTINUED):
        if (run / name).exists():
            rows += [replace(row, what=f"{name}: {row.what}") for row in look(run / name, cfg.trust)]
    table = Table("what", "state", "note", box=None, pad_edge=False)
    for row in rows:
        note = escape(printable(row.note.replace(f"{run}/", "")))
        table.add_row(escape(printable(row.what)), f"[{COLOURS[row.state]}]{row.state}", note)
    print_whole(table)
    bad = sum(row.state == "bad" for row in rows)
    print(f"{run}: {bad} of {len(rows)} bad" if bad else f"{run}: nothing is bad")
    if bad:
        sys.exit(1)
    if cfg.law:
        part("bdl verify law=true")(cfg, run)


def look(run: Path, trust: Sequence[str] = ()) -> Iterator[FileState]:
    """The states of all files of a run directory, which is only read."""
    yield from _owner(run)
    yield from _configuration(run, trust)
    yield from _described(run)
    for before, folder in {"": run, f"{START}: ": run / START, f"{TRAINED}: ": run / TRAINED}.items():
        yield from (replace(row, what=before + row.what) for row in _samples(folder))
    yield from _checkpoints(run)
    leftovers = [*run.glob(f"{WRITING}*"), *run.glob(f"*/{WRITING}*"), *run.glob("checkpoints/*.writing")]
    if leftovers and not (run / OWNER).exists():
        note = f"{len(leftovers)} temporary files of killed writers: the same command of train.py removes them"
        yield FileState("leftovers", "unknown", note)


def _owner(run: Path) -> Iterator[FileState]:
    try:
        owner = owner_of(run / OWNER)
    except StoreError as error:
        yield FileState(OWNER, "bad", str(error))
        return
    if owner is not None:
        fate = "was killed; the next command takes the run over" if owner.is_dead() else "may be writing now"
        yield FileState(OWNER, "unknown", f"{owner} {fate}")


def _configuration(run: Path, trust: Sequence[str]) -> Iterator[FileState]:
    """config.yaml: its form, its names, and whether it describes the samples."""
    if not (run / CONFIG).exists():
        yield FileState(CONFIG, "unknown", "absent: the samples of another Trainer than bdl's have none")
        return
    state = _state(CONFIG, lambda: read_checked(run, trust))
    yield state if state.state == "bad" else replace(state, what=f"{CONFIG} against target.json")


def _described(run: Path) -> Iterator[FileState]:
    """The files that describe the run and its samples: as they were written, and of the right form."""
    for name, fault in described_files(run).items():
        yield FileState(name, "whole" if fault is None else "bad", fault or "")
    store = SampleStore(run)
    readers: dict[str, Callable[[], object]] = {
        METRICS: lambda: read_metrics(run / METRICS), PREPROCESSING: lambda: read_preprocessing(run),
    }  # fmt: skip
    for manifest in manifests_of(run):
        if (stack := manifest.stack) is not None:
            readers[f"samples/weighting-{stack}.safetensors"] = lambda stack=stack: store.weighting(stack)
            readers[f"samples/excluded-{stack}.json"] = lambda stack=stack: store.excluded(stack)
    for name, read in readers.items():
        if (run / name).exists() and (state := _state(name, read)).state == "bad":
            yield state


def _samples(run: Path) -> Iterator[FileState]:
    """The manifest and the index of every stack, line by line, and every sample file."""
    listed: set[str] = set()
    for manifest in manifests_of(run):
        yield _state(manifest.path.name, lambda manifest=manifest: f"{len(manifest.entries())} lines")
        if manifest.stack is not None:
            yield from _stack(manifest, manifest.stack)
        listed |= {entry.path for entry in manifest.first_entries()}
    unlisted = [path.name for path in sample_files(run / "samples").values() if f"samples/{path.name}" not in listed]
    if unlisted and not (run / OWNER).exists():
        yield FileState("sample files", "bad", f"{len(unlisted)} are in no manifest, {unlisted[0]} first")


def _stack(manifest: Manifest, stack: int) -> Iterator[FileState]:
    store, name, records = SampleStore(manifest.folder), f"samples/index-{stack}.jsonl", []

    def read() -> str:
        records.extend(store.index(stack).records())
        if [record.line() for record in records] != read_lines(store.index(stack).path):
            raise StoreError("it has lines that the manifest does not list, or in another order")
        return f"{len(records)} lines"

    yield _state(name, read)
    bad = []
    for record in records:
        try:
            store.read(record)
        except StoreError as error:
            bad.append(str(error).removeprefix("sample file ").partition(";")[0])
    what = f"sample files of stack {stack}"
    if bad:
        yield FileState(what, "bad", f"{len(bad)} of {len(records)}: {', '.join(bad[:3])}{' ...' if bad[3:] else ''}")
    elif records:
        yield FileState(what, "whole", count_of(len(records), "file"))


def _checkpoints(run: Path) -> Iterator[FileState]:
    """Every checkpoint: whether it is whole, and whether the samples that it knows are listed."""
    known = dict(known_samples(run))
    for path in sorted((run / "checkpoints").glob("*.ckpt")):
        name = f"checkpoints/{path.name}"
        if not is_checkpoint(path):
            yield FileState(name, "bad", "truncated, altered or no checkpoint")
        elif path not in known:
            yield FileState(name, "unknown", "of another program, or under another name: it knows no samples")
        elif known[path]:
            yield FileState(name, "whole", "the samples that it knows are listed")
        else:
            yield FileState(name, "bad", "it knows samples that no manifest lists")


def _state(what: str, read: Callable[[], object]) -> FileState:
    """Whether a file can be read. What `read` returns is the note if it is a text."""
    try:
        note = read()
    except Exception as error:  # whatever a damaged file makes of the code that reads it
        return FileState(what, "bad", " ".join(f"{error}".split()) or type(error).__name__)
    return FileState(what, "whole", note if isinstance(note, str) else "")
