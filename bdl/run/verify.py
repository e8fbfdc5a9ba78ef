"""Every file of a run against what is known of it: checksums, index, target. See conf/verify.yaml."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bdl.baselines.base import FOLDER as TRAINED
from bdl.checkpoint import is_checkpoint
from bdl.errors import ConfigError, StoreError
from bdl.files import WRITING, read_file
from bdl.lightning.callbacks.start import FOLDER as START
from bdl.owner import owner_of
from bdl.posterior.index import Record, read_index, read_lines, sample_files, stack_of
from bdl.posterior.store import SampleStore
from bdl.run.directory import OWNER
from bdl.run.known import known_samples
from bdl.run.records import (
    CHECKSUMS,
    CONFIG,
    METRICS,
    PREPROCESSING,
    read_checksums,
    read_config,
    read_metrics,
    read_preprocessing,
)
from bdl.run.repair import repair
from bdl.run.stranger import check_names, is_inside, matches, target_difference, unlisted

State = Literal["whole", "bad", "unknown"]
COLOURS = {"whole": "green", "bad": "red", "unknown": "yellow"}


@dataclass(frozen=True)
class Finding:
    """What is known of one file, or of many."""

    what: str
    state: State
    note: str = ""


def verify(cfg: DictConfig) -> None:
    """Print a table of all files. Ends the process with status 1 if one of them is bad."""
    run = Path(cfg.run).expanduser()
    if not (run / CONFIG).exists() and not (run / "samples").exists():
        raise ConfigError(f"run={cfg.run} is not a run directory: it has neither a {CONFIG} nor samples")
    if cfg.repair:
        for line in repair(run):
            print(f"repaired: {line}")
    findings = list(look(run, cfg.trust))
    table = Table("what", "state", "note", box=None, pad_edge=False)
    for finding in findings:
        note = escape(finding.note.replace(f"{run}/", ""))
        table.add_row(escape(finding.what), f"[{COLOURS[finding.state]}]{finding.state}", note)
    Console().print(table)
    bad = sum(finding.state == "bad" for finding in findings)
    print(f"{run}: {bad} of {len(findings)} bad" if bad else f"{run}: nothing is bad")
    if bad:
        sys.exit(1)


def look(run: Path, trust: Sequence[str] = ()) -> Iterator[Finding]:
    """Findings of all parts of a run directory, which is only read."""
    yield from _owner(run)
    yield from _configuration(run, trust)
    yield from _described(run)
    yield from _samples(run)
    for name in (START, TRAINED):
        for finding in _samples(run / name) if (run / name).exists() else ():
            yield replace(finding, what=f"{name}: {finding.what}")
    yield from _checkpoints(run)
    leftovers = [*run.glob(f"{WRITING}*"), *run.glob(f"*/{WRITING}*"), *run.glob("checkpoints/*.writing")]
    if leftovers and not (run / OWNER).exists():
        yield Finding("leftovers", "unknown", f"{len(leftovers)} temporary files of killed writers; repair=true")


def _owner(run: Path) -> Iterator[Finding]:
    try:
        owner = owner_of(run / OWNER)
    except StoreError as error:
        yield Finding(OWNER, "bad", str(error))
        return
    if owner is not None:
        fate = "was killed; the next command takes the run over" if owner.is_dead() else "may be writing now"
        yield Finding(OWNER, "unknown", f"{owner} {fate}")


def _configuration(run: Path, trust: Sequence[str]) -> Iterator[Finding]:
    """config.yaml: its form, its names, and whether it describes the samples."""
    if not (run / CONFIG).exists():
        yield Finding(CONFIG, "unknown", "absent: the samples of a Trainer of one's own have none")
        return
    with _as_finding(CONFIG) as findings:
        config = read_config(run)
        check_names(config, run, trust)
        if difference := target_difference(run, config):
            raise ConfigError(difference)
        findings.append(Finding(f"{CONFIG} against target.json", "whole"))
    yield from findings


def _described(run: Path) -> Iterator[Finding]:
    """The files that have a line in checksums.json, and the form of those that have none."""
    readers: dict[str, Any] = {
        METRICS: lambda: read_metrics(run / METRICS),
        PREPROCESSING: lambda: read_preprocessing(run),
        "samples/target.json": lambda: SampleStore(run).target(),
    }
    with _as_finding(CHECKSUMS) as findings:
        sums = read_checksums(run)
        for name, value in (sums or {}).items():
            right = is_inside(name) and matches(run / name, value)
            fault = "altered" if is_inside(name) and (run / name).exists() else "missing"
            findings.append(Finding(name, "whole" if right else "bad", "" if right else f"{fault} since the run ended"))
        if sums is None:
            why = "the run has not ended, or is of an older bdl: small files can only be read, not verified"
            findings.append(Finding(CHECKSUMS, "unknown", why))
        else:
            findings += [Finding(name, "bad", f"has no line in {CHECKSUMS}") for name in unlisted(run, sums)]
    yield from findings
    named = {finding.what for finding in findings}
    for name, read in readers.items():
        if name not in named and (run / name).exists():
            with _as_finding(name) as findings:
                read()
                findings.append(Finding(name, "unknown", "can be read; no checksum"))
            yield from findings


def _samples(run: Path) -> Iterator[Finding]:
    """The index of every stack, line by line, and every file against its checksum."""
    folder = run / "samples"
    listed: set[str] = set()
    for path in sorted(folder.glob("index-*.jsonl")):
        if (stack := stack_of(path)) is None:
            yield Finding(
                f"samples/{path.name}", "bad", "a copy, whose samples would count twice; repair=true removes it"
            )
            continue
        with _as_finding(f"samples/{path.name}") as findings:
            records = read_index(path, stack)
            findings.append(Finding(f"samples/{path.name}", "whole", f"{len(records)} lines"))
        yield from findings
        records = _records(path)
        listed |= {record.file for record in records}
        yield _files(folder, stack, records)
    unlisted = [path.name for path in sample_files(folder).values() if path.name not in listed]
    if unlisted and not (run / OWNER).exists():
        note = f"{len(unlisted)} are in no index, {unlisted[0]} first; repair=true lists those that a header describes"
        yield Finding("sample files", "bad", note)
    yield from _by_stack(folder, "weighting-*.safetensors", SampleStore.weighting)
    yield from _by_stack(folder, "excluded-*.json", SampleStore.excluded)


def _records(index: Path) -> list[Record]:
    """The records of all lines that can be read."""
    try:
        return [record for _, record in read_lines(index) if record is not None]
    except StoreError:  # another format, or a file outside of the folder
        return []


def _files(folder: Path, stack: int, records: list[Record]) -> Finding:
    name = f"sample files of stack {stack}"
    bad = []
    for record in records:
        try:
            data = read_file(folder / record.file)
            if hashlib.sha256(data).hexdigest() != record.sha256:
                bad.append(f"{record.file} was altered")
        except OSError:
            bad.append(f"{record.file} is missing")
    if bad:
        return Finding(name, "bad", f"{len(bad)} of {len(records)}: {', '.join(bad[:3])}{' ...' if bad[3:] else ''}")
    return Finding(name, "whole", f"{len(records)} files")


def _by_stack(folder: Path, pattern: str, read: Callable[[SampleStore, int], Any]) -> Iterator[Finding]:
    """Findings of the files of each stack that cannot be read."""
    for path in sorted(folder.glob(pattern)):
        with _as_finding(f"samples/{path.name}") as findings:
            if (stack := path.stem.partition("-")[2]).isdecimal():
                read(SampleStore(folder.parent), int(stack))
        yield from findings


def _checkpoints(run: Path) -> Iterator[Finding]:
    """Every checkpoint: whether it is whole, and whether the samples that it knows are there."""
    known = {path: (digest, present) for path, digest, present in known_samples(run)}
    for path in sorted((run / "checkpoints").glob("*.ckpt")):
        name = f"checkpoints/{path.name}"
        if not is_checkpoint(path):
            yield Finding(name, "bad", "truncated, altered or no checkpoint")
        elif path not in known:
            yield Finding(name, "unknown", "of an older bdl or of another program: it knows no samples")
        else:
            digest, present = known[path]
            note = "" if present else ", which are not those of the index; repair=true"
            yield Finding(name, "whole" if present else "bad", f"knows {digest.count} samples{note}")


@contextlib.contextmanager
def _as_finding(what: str) -> Iterator[list[Finding]]:
    """The findings of a block. An error becomes one."""
    findings: list[Finding] = []
    try:
        yield findings
    except Exception as error:  # whatever a damaged file makes of the code that reads it
        findings.append(Finding(what, "bad", " ".join(f"{error}".split()) or type(error).__name__))
