"""Tests of `bdl.run.verify`: files of nobody, of another program, of a writer at work, and of runs inside of a run."""

import json
import shutil
from pathlib import Path

import pytest

from bdl.disk.owner import Owner
from bdl.run.verify import FileState, look


@pytest.fixture
def copy(weighted, tmp_path) -> Path:
    """A finished run that a test may damage."""
    return Path(shutil.copytree(weighted, tmp_path / "copy"))


def states(folder: Path) -> dict[str, FileState]:
    return {row.what: row for row in look(folder)}


def unlisted(folder: Path) -> None:
    shutil.copy(folder / "samples" / "00000009-0.safetensors", folder / "samples" / "00000099-0.safetensors")


def owned(folder: Path, **changed: object) -> None:
    (folder / "owner.json").write_text(json.dumps({**vars(Owner.this_process()), **changed}))


def test_a_sample_file_that_no_manifest_lists_is_bad(copy):
    unlisted(copy)
    row = states(copy)["sample files"]
    assert row.state == "bad" and row.note == "1 are in no manifest, 00000099-0.safetensors first"


@pytest.mark.parametrize("place", ["samples/.writing-elsewhere-1-x", ".writing-x", "checkpoints/last.writing"])
def test_leftovers_of_a_killed_writer_are_counted(copy, place):
    (copy / place).write_text("")
    row = states(copy)["leftovers"]
    assert row.state == "unknown" and row.note.startswith("1 temporary files of killed writers")


def test_what_a_writer_at_work_has_not_listed_yet_is_no_fault(copy):
    unlisted(copy)
    (copy / "samples" / ".writing-here-1-x").write_text("")
    owned(copy)
    found = states(copy)
    assert found["owner.json"].state == "unknown" and found["owner.json"].note.endswith("may be writing now")
    assert not {"leftovers", "sample files"} & found.keys() and "bad" not in {row.state for row in found.values()}


def test_a_writer_that_was_killed_is_named(copy):
    owned(copy, started=f"{Owner.this_process().started}7")  # another process has its number now
    assert states(copy)["owner.json"].note.endswith("was killed; the next command takes the run over")


def test_an_owner_that_cannot_be_read_is_bad(copy):
    (copy / "owner.json").write_text("{")
    assert states(copy)["owner.json"].state == "bad"


def test_what_another_program_wrote_is_unknown(copy):
    (copy / "checkpoints" / "last.ckpt").rename(copy / "checkpoints" / "mine.ckpt")
    (copy / "checkpoints" / "last.ckpt").write_text("no checkpoint")
    found = states(copy)
    assert found["checkpoints/last.ckpt"] == FileState(
        "checkpoints/last.ckpt", "bad", "truncated, altered or no checkpoint"
    )
    assert found["checkpoints/mine.ckpt"].state == "unknown"


@pytest.mark.parametrize("inside", ["refit", "continued", "start", "trained"])
def test_runs_inside_of_a_run_are_verified_too(script, weighted, copy, inside):
    shutil.copytree(weighted, copy / inside)
    path = copy / inside / "samples" / "00000009-0.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    status, out, _ = script("verify", f"run={copy}")
    assert status == 1 and f"{inside}: sample files of stack 0" in out and "00000009-0.safetensors" in out


def test_names_in_brackets_are_printed_as_they_are(script, copy):
    """The table takes [red] for a colour."""
    shutil.copy(copy / "checkpoints" / "last.ckpt", copy / "checkpoints" / "last[red].ckpt")
    assert "last[red].ckpt" in script("verify", f"run={copy}")[1]
