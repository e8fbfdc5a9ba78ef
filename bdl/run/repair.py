"""What can be repaired in a run directory without sampling: index lines, copies, leftovers, metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bdl.errors import BdlError
from bdl.files import sweep_leftovers, write_atomically
from bdl.owner import sole_owner
from bdl.posterior.index import read_lines, record_of, sample_files, stack_of
from bdl.run.directory import OWNER
from bdl.run.records import CHECKSUMS, METRICS, read_metrics


def repair(run: Path) -> Iterator[str]:
    """Repair what can be repaired, one line about each deed. Raises StoreError if another process owns the run."""
    with sole_owner(run / OWNER):
        folder = run / "samples"
        for place in (run, folder, run / "checkpoints"):
            sweep_leftovers(place, every_host=True)
        for path in (run / "checkpoints").glob("*.writing"):
            path.unlink()
        for path in sorted(folder.glob("index-*.jsonl")):
            if stack_of(path) is None and _is_copy(path):
                path.unlink()
                yield f"removed {path}: its lines are in the other index files, or in the headers of sample files"
        for stack in sorted({stack for _, stack in sample_files(folder)}):
            yield from _index(folder, stack)
        yield from _metrics(run)


def _is_copy(path: Path) -> bool:
    """Whether nothing is lost with this index: each of its files describes itself, or stands in another index."""
    others = [other for other in path.parent.glob("index-*.jsonl") if other != path]
    listed = {record for other in others for _, r in read_lines(other) if (record := r and r.file)}
    return all(
        record is None or record.file in listed or record_of(path.parent / record.file)
        for _, record in read_lines(path)
    )


def _index(folder: Path, stack: int) -> Iterator[str]:
    """Drop damaged and doubled lines, and make lines for files that stand in no line."""
    index = folder / f"index-{stack}.jsonl"
    lines = [record for _, record in read_lines(index) if record is not None and record.stack == stack]
    records = {record.step: record for record in lines}
    for (step, of_stack), path in sample_files(folder).items():
        if of_stack == stack and step not in records and (record := record_of(path)) is not None:
            records[step] = record
    whole = "".join(record.line() for _, record in sorted(records.items())).encode()
    before = index.read_bytes() if index.exists() else b""
    if whole != before:
        write_atomically(index, whole)
        yield f"{index} has {len(records)} lines, it had {len(before.splitlines())}"


def _metrics(run: Path) -> Iterator[str]:
    """Remove damaged metrics: the same command of train.py then evaluates the samples again."""
    path = run / METRICS
    try:
        if path.exists():
            read_metrics(path)
    except BdlError:
        path.unlink()
        (run / CHECKSUMS).unlink(missing_ok=True)
        yield f"removed {path}, which was damaged: the same command of train.py evaluates the samples again"
