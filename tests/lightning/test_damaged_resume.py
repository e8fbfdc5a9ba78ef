"""A run whose samples were damaged while it was stopped: it ends with the same files, or it says what is missing."""

import json
from pathlib import Path

import pytest
from again import WHOLE, Run
from repeats import slow_where
from test_resume import files

import bdl
from bdl.disk.owner import Owner
from bdl.errors import StoreError

HEALED = {
    "doubled": lambda path: path.write_bytes(path.read_bytes() * 2),
    "with half a line": lambda path: path.write_bytes(path.read_bytes() + b'{"step": 99'),
}
LOST = {"deleted": Path.unlink, "cut": lambda path: path.write_bytes(path.read_bytes()[:-1000])}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    run = Run("plain", tmp_path_factory.mktemp("whole"))
    run.go(WHOLE)
    return files(run.folder)


@pytest.mark.parametrize("stop", [12, WHOLE], ids=["in the middle", "at the end"])
@pytest.mark.parametrize("damage", HEALED)
def test_a_damaged_index_is_made_whole_by_resuming(whole, tmp_path, damage, stop):
    """Step 12 is a kept one, whose sample awaits its energy. At the end no further step is made."""
    Run("plain", tmp_path).go(stop)
    HEALED[damage](tmp_path / "samples" / "index-0.jsonl")
    run = Run("plain", tmp_path)
    run.go(WHOLE, run.checkpoint)
    assert files(tmp_path) == whole


@pytest.mark.parametrize("stop", [12, WHOLE], ids=["in the middle", "at the end"])
@pytest.mark.parametrize("name", ["samples/index-0.jsonl", "manifest-0.jsonl"])
@pytest.mark.parametrize("damage", slow_where("cut".__eq__, LOST))
def test_lost_lines_are_no_silent_loss(tmp_path, damage, name, stop):
    Run("plain", tmp_path).go(stop)
    LOST[damage](tmp_path / name)
    before = files(tmp_path)
    run = Run("plain", tmp_path)
    with pytest.raises(StoreError, match="restore it, or "):
        run.go(WHOLE, run.checkpoint)
    assert files(tmp_path) == before


@pytest.mark.parametrize("stop", [12, WHOLE], ids=["in the middle", "at the end"])
def test_a_lost_sample_is_no_silent_loss(tmp_path, stop):
    Run("plain", tmp_path).go(stop)
    (tmp_path / "samples" / "00000006-0.safetensors").unlink()
    before = files(tmp_path)
    run = Run("plain", tmp_path)
    with pytest.raises(
        StoreError, match="1 of .* sample files in .* 00000006-0.safetensors first: restore them, or rem"
    ):
        run.go(WHOLE, run.checkpoint)
    assert files(tmp_path) == before  # the lock is gone too


def test_a_second_trainer_in_the_folder_of_a_live_one_is_refused(tmp_path):
    """The lock of a stack names a live process: the parent of this one."""
    lock = tmp_path / "samples" / "owner-0.json"
    lock.parent.mkdir()
    owner = {**vars(Owner.this_process()), "host": "elsewhere"}
    lock.write_text(json.dumps(owner))
    with pytest.raises(StoreError, match="belongs to process .* on elsewhere, which is writing to it"):
        Run("plain", tmp_path).go(4)
    assert [p.name for p in lock.parent.iterdir()] == [lock.name]
    lock.unlink()
    Run("plain", tmp_path).go(4)
    assert bdl.SampleStore(tmp_path).records() and not lock.exists()
