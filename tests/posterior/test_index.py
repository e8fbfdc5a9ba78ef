"""The index of samples: what is counted twice or names other folders is refused, and what was lost comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
import toys
from test_store import FIELDS, write

import bdl
from bdl.errors import BdlWarning, StoreError
from bdl.posterior import index as index_module
from bdl.posterior.index import Digest, Record, record_of
from bdl.posterior.store import SampleStore

KEPT, STEPS = 3, (2, 4, 6, 8)


@pytest.fixture
def store(tmp_path) -> SampleStore:
    """Four samples of each of two stacks."""
    store = SampleStore(tmp_path)
    for step in STEPS:
        for stack in (0, 1):
            write(store, step, stack=stack)
    return store


@pytest.fixture
def path(store) -> Path:
    return store.folder / "index-0.jsonl"


def known(store: SampleStore) -> Digest:
    """What a checkpoint at step 6 knows: the first three samples."""
    return Digest().add([r for r in store.records() if r.stack == 0][:KEPT])


def listing(store: SampleStore) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(store.folder.iterdir())}


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_a_doubled_line_is_refused(store, path):
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(keepends=True)[1])
    with pytest.raises(StoreError, match=f"line 5 of {path} repeats step 4: its samples would count twice; .*verify"):
        store.records()


@pytest.mark.parametrize("name", ["index-0 (copy).jsonl", "index-00.jsonl", "index-.jsonl"])
def test_a_copied_index_is_refused(store, path, name):
    (store.folder / name).write_bytes(path.read_bytes())
    with pytest.raises(StoreError, match="is the index of no stack: its samples would count twice; remove this copy"):
        store.records()


def test_an_index_under_the_name_of_another_stack_is_refused(store, path):
    (store.folder / "index-2.jsonl").write_bytes(path.read_bytes())
    with pytest.raises(StoreError, match="line 1 of .*index-2.jsonl belongs to stack 0"):
        store.records()


def test_a_whole_line_counts_without_its_newline(store, path):
    before = store.records()
    path.write_bytes(path.read_bytes()[:-1])
    assert store.records() == before


@pytest.mark.parametrize("cut", [2, 30, 1000])
def test_samples_whose_line_was_lost_are_warned_of(tmp_path, cut):
    toys.sample(tmp_path, 8)
    path = tmp_path / "samples" / "index-0.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.warns(BdlWarning, match=r"[1-3] sample files in .* are in no index and are left out, 0000000\d-0"):
        bdl.Posterior.load(tmp_path, toys.plain())


NAMES = ["../../x", "/tmp/x.safetensors", "a/b.safetensors", "..", ".safetensors", "x.pt", "", None, ["a"]]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_not_plain_are_neither_read_nor_deleted(store, path, name):
    """The line is a stranger's, and its checksum is right."""
    victim = store.run_dir.parent / "x"
    victim.write_text("mine")
    record = Record(**FIELDS, step=9, file=name, bytes=4, sha256="0" * 64)
    before = path.read_bytes()
    path.write_bytes(before + record.line().encode())
    with pytest.raises(StoreError, match="which is no plain name: do not use these samples"):
        store.records()
    with pytest.raises(StoreError, match="no plain name"):
        store.truncate(0, 6)
    store.truncate(0, 0)  # a run that starts again reads no line
    assert victim.read_text() == "mine" and not list(store.folder.glob("*-0.safetensors"))


@pytest.mark.parametrize(
    "field",
    [
        {"step": "2"},
        {"chains": [0, "1"]},
        {"stack": -1},
        {"bytes": 1.5},
        {"chains": [0, 0]},
        {"energy_full": [1.0]},
        {"lr": [0.1, 0.1, 0.1]},
    ],  # fmt: skip
)
def test_values_of_another_type_are_a_damaged_line(store, path, field):
    values = {**FIELDS, "step": 9, "file": "a.safetensors", "bytes": 4, "sha256": "0" * 64, **field}
    path.write_text(Record(**values).line())
    with pytest.raises(StoreError, match="line 1 of .* is damaged"):
        store.records()


# ---- what a checkpoint knows -----------------------------------------------------------------------------------------


def test_the_header_of_a_copied_file_does_not_count(store):
    """The copy has the name of another step, and the header of its original."""
    original, copy = store.folder / "00000002-0.safetensors", store.folder / "00000003-0.safetensors"
    copy.write_bytes(original.read_bytes())
    assert record_of(original) is not None and record_of(copy) is None


def test_an_index_that_is_a_folder_is_named(store, path):
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match=f"{path} cannot be read"):
        store.records()


def cut_lines(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1]))


def alter_line(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"lr": 0.1', b'"lr": 0.2', 1))


def double_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], *lines]))


def forge_line(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1].pop("checksum")
    path.write_text("".join(Record(**{**line, "lr": 7.0}).line() if i == 1 else Record(
        **{k: v for k, v in line.items() if k != "checksum"}).line() for i, line in enumerate(lines)))  # fmt: skip


DAMAGE = {
    "nothing": lambda path: None,
    "cut": cut_lines,
    "emptied": lambda path: path.write_bytes(b""),
    "deleted": Path.unlink,
    "altered": alter_line,
    "doubled": double_line,
    "forged": forge_line,
    "garbage": lambda path: path.write_bytes(b"\x00\xff\n" * 3),
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "reversed": lambda path: path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[::-1])),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_an_index_is_made_whole_again_from_the_files(store, path, damage):
    digest = known(store)
    expected = b"".join(path.read_bytes().splitlines(keepends=True)[:KEPT])
    other = {name: data for name, data in listing(store).items() if "-1." in name}
    DAMAGE[damage](path)
    store.truncate(0, 6, digest)
    assert path.read_bytes() == expected and store.digest(0) == digest
    assert sorted(p.name for p in store.folder.glob("*-0.safetensors")) == [
        f"0000000{s}-0.safetensors" for s in (2, 4, 6)
    ]
    assert {name: data for name, data in listing(store).items() if "-1." in name} == other


def test_an_index_that_is_right_is_not_written_again(store, path):
    store.truncate(0, 8, store.digest(0))
    before = path.stat().st_mtime_ns
    store.truncate(0, 8, store.digest(0))
    assert path.stat().st_mtime_ns == before


def altered(path: Path) -> None:
    tensors = {"w": torch.zeros(2, 3), "n": torch.tensor([4, 4])}
    path.write_bytes(safetensors.torch.save(tensors))


@pytest.mark.parametrize("lose", [Path.unlink, altered], ids=["deleted", "of an older bdl"])
def test_a_sample_that_cannot_be_made_again_is_counted_and_nothing_is_removed(store, path, lose):
    digest = known(store)
    path.write_bytes(b"")
    lose(store.folder / "00000004-0.safetensors")
    before = listing(store)
    with pytest.raises(StoreError, match="knows 3 samples up to step 6 .* and 1 are missing: restore them, or remove"):
        store.truncate(0, 6, digest)
    assert listing(store) == before


@pytest.mark.parametrize("lose", [Path.unlink, lambda p: p.write_bytes(p.read_bytes()[:-1])], ids=["deleted", "cut"])
def test_a_missing_file_is_named_and_nothing_is_removed(store, lose):
    digest = known(store)
    lose(store.folder / "00000004-0.safetensors")
    before = listing(store)
    with pytest.raises(
        StoreError, match="1 of 3 sample files in .* missing or cut short, 00000004-0.safetensors first"
    ):
        store.truncate(0, 6, digest)
    assert listing(store) == before


def test_samples_that_are_others_are_refused(store):
    with pytest.raises(StoreError, match="and they are not the same"):
        store.truncate(0, 6, Digest(3, "0" * 64))


def test_a_header_repeats_the_line(store):
    for record in store.records():
        assert record_of(store.folder / record.file) == record


def test_a_header_does_not_vouch_for_altered_tensors(store):
    path = store.folder / "00000004-0.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert record_of(path) is None


def test_the_digest_of_a_written_sample_needs_no_other_line(store, monkeypatch):
    """The cost of a sample does not grow with their number: no index is read, one line is hashed."""
    store.digest(0)
    monkeypatch.setattr("bdl.posterior.store.read_index", lambda *_: pytest.fail("the index is read again"))
    lines, line = [], Record.line
    monkeypatch.setattr(index_module.Record, "line", lambda self: lines.append(self.step) or line(self))
    write(store, 10)
    assert set(lines) == {10} and store.digest(0).count == 5
    monkeypatch.undo()
    assert SampleStore(store.run_dir).digest(0) == store.digest(0)


def test_one_number_expanded_over_one_chain_is_written_as_any_other(tmp_path):
    """Its stride is 0, and it is contiguous nevertheless."""
    store, count = SampleStore(tmp_path), torch.tensor(7).expand(1)
    assert count.stride() == (0,) and count.is_contiguous()
    written = store.write({"count": count}, step=1, **FIELDS | {"chains": [0]})
    assert torch.equal(store.read(written)["count"], torch.tensor([7]))
