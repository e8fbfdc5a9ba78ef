"""What can be repaired in a run directory without sampling: manifests, indexes, leftovers and damaged metrics."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from bdl.errors import BdlError
from bdl.files import read_file, sweep_leftovers, write_atomically
from bdl.manifest import SAMPLE, Entry, Manifest
from bdl.owner import sole_owner
from bdl.posterior.index import line_hash, parse_line, read_lines, sample_files
from bdl.run.directory import OWNER
from bdl.run.records import METRICS, RUN_FILES, read_metrics


def repair(run: Path) -> Iterator[str]:
    """List anew what is whole, with one line about each deed. Raises StoreError if another process owns the run.

    A sample is whole if its file has the sha256 in its line of the index, and the line the hash in the manifest, where
    the manifest still has it. Other files are listed as they are now.
    """
    with sole_owner(run / OWNER):
        for place in (run, run / "samples", run / "checkpoints"):
            sweep_leftovers(place, every_host=True)
        for path in (run / "checkpoints").glob("*.writing"):
            path.unlink()
        yield from _metrics(run)
        yield from _relist(Manifest(run), _as_they_are(run, RUN_FILES))
        for stack in sorted({stack for _, stack in sample_files(run / "samples")}):
            yield from _stack(run, stack)


def _stack(run: Path, stack: int) -> Iterator[str]:
    """The manifest and the index of one stack."""
    manifest, index = Manifest(run, stack), run / "samples" / f"index-{stack}.jsonl"
    listed = {entry.path: entry.line for entry in manifest.first_entries()}
    lines: dict[str, bytes] = {}
    samples: list[Entry] = []
    for line in read_lines(index):
        record, of_line = parse_line(line), line_hash(line)
        if record is None or record.stack != stack or (path := f"samples/{record.file}") in lines:
            continue
        if _sha256(run / path) == record.sha256 and listed.get(path, of_line) == of_line:
            lines[path] = line
            samples.append(Entry(path, SAMPLE, record.bytes, record.sha256, of_line, ""))
    first = ("samples/frozen.safetensors", "samples/target.json")
    last = (f"samples/excluded-{stack}.json", f"samples/weighting-{stack}.safetensors")
    trace = f"checkpoints/trace-{stack}.safetensors"
    there = [*_as_they_are(run, first), *samples, *_as_they_are(run, (*last, trace))]
    yield from _relist(manifest, there)
    write_atomically(index, b"".join(lines[entry.path] for entry in manifest.samples()))


def _relist(manifest: Manifest, there: list[Entry]) -> Iterator[str]:
    """Keep the lines of what is there, and add lines for the rest of it."""
    before = [replace(entry, hash="") for entry in manifest.first_entries()]
    paths = {entry.path for entry in there}
    kept = [entry for entry in before if (entry in there if entry.kind == SAMPLE else entry.path in paths)]
    latest = {entry.path: entry for entry in kept}
    entries = kept + [entry for entry in there if latest.get(entry.path) != entry]
    data = manifest.path.read_bytes() if manifest.path.exists() else b""
    manifest.rewrite(entries)
    if data != (manifest.path.read_bytes() if manifest.path.exists() else b""):
        yield f"{manifest.path} lists {len(paths)} files, it listed {len({entry.path for entry in before})}"


def _as_they_are(run: Path, names: Iterable[str]) -> list[Entry]:
    """Entries for the files of these names that are there."""
    paths = [run / name for name in names if (run / name).is_file()]
    kinds = [path.stem.partition("-")[0] for path in paths]
    return [
        Entry(str(path.relative_to(run)), kind, path.stat().st_size, _sha256(path), None, "")
        for path, kind in zip(paths, kinds, strict=True)
    ]


def _metrics(run: Path) -> Iterator[str]:
    """Remove damaged metrics: the same command of train.py then evaluates the samples again."""
    path = run / METRICS
    try:
        if path.exists():
            read_metrics(path)
    except BdlError:
        path.unlink()
        yield f"removed {path}, which was damaged: the same command of train.py evaluates the samples again"


def _sha256(path: Path) -> str:
    """Empty for a file that cannot be read."""
    try:
        return hashlib.sha256(read_file(path)).hexdigest()
    except OSError:
        return ""
