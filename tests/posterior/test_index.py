"""The index of samples: what the manifest lists counts once, whatever else is in the file, and no name leads out."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import toys
from manifests import rewrite
from test_store import FIELDS, write

import bdl
from bdl.disk.manifest import Entry, Manifest, digest
from bdl.errors import BdlWarning, StoreError
from bdl.posterior.index import Record
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


def known(store: SampleStore) -> str:
    """What a checkpoint at step 6 knows: the hash of the third line."""
    return store.manifest(0).samples()[KEPT - 1].hash


def listing(store: SampleStore) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(store.folder.iterdir())}


def test_a_doubled_line_counts_once(store, path):
    before = store.records()
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(keepends=True)[1])
    assert store.records() == before


INDICES = ["index-0 (copy).jsonl", "index-00.jsonl", "index-.jsonl", "index-2.jsonl"]


@pytest.mark.parametrize("name", [*INDICES, "manifest-0 (copy).jsonl", "manifest-00.jsonl"])
def test_a_copied_index_or_manifest_counts_nothing(store, path, name):
    before = store.records()
    original = path if name in INDICES else store.manifest(0).path
    (original.parent / name).write_bytes(original.read_bytes())
    assert store.records() == before


def test_a_manifest_under_the_name_of_another_stack_is_refused(store):
    (store.run_dir / "manifest-2.jsonl").write_bytes(store.manifest(0).path.read_bytes())
    with pytest.raises(StoreError, match="line 1 of .*manifest-2.jsonl is damaged"):
        store.records()


def test_an_index_of_another_stack_is_refused(store, path):
    """A stranger's, whose manifest has been made for it."""
    copy = Manifest(store.run_dir, 2)
    rewrite(copy, store.manifest(0).entries())
    (store.folder / "index-2.jsonl").write_bytes(path.read_bytes())
    with pytest.raises(StoreError, match="line 1 of .*index-2.jsonl belongs to stack 0"):
        store.records()


def test_a_step_that_a_manifest_lists_twice_is_refused(store, path):
    manifest = store.manifest(0)
    rewrite(manifest, [*manifest.entries(), manifest.entries()[0]])
    with pytest.raises(StoreError, match="line 5 of .* is damaged or lost"):
        store.records()


@pytest.mark.parametrize("cut", [2, 30, 500])
def test_samples_whose_line_was_lost_are_warned_of(tmp_path, cut):
    toys.sample(tmp_path, 8)
    path = tmp_path / "manifest-0.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.warns(BdlWarning, match=r"[1-4] sample files in .* are in no manifest and are left out, 0000000\d-0"):
        bdl.Posterior.load(tmp_path, toys.plain())


def test_samples_without_a_manifest_are_refused_with_a_remedy(store):
    for path in store.run_dir.glob("manifest*"):
        path.unlink()
    with pytest.raises(StoreError, match="its sample files are in no manifest, .*: restore manifest and index"):
        SampleStore(store.run_dir).records()


NAMES = ["../../x", "/tmp/x.safetensors", "a/b.safetensors", "..", ".safetensors", "x.pt", "", None, ["a"]]


def list_line(store: SampleStore, record: Record) -> None:
    """Add a line to the index, and list it as a stranger may."""
    with open(store.folder / "index-0.jsonl", "ab") as f:
        f.write(record.line())
    store.manifest(0).add("samples/00000009-0.safetensors", "sample", 4, "0" * 64, digest(record.line()))


@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_not_plain_are_neither_read_nor_deleted(store, path, name):
    """The line is a stranger's, and listed."""
    victim = store.run_dir.parent / "x"
    victim.write_text("mine")
    list_line(store, Record(**FIELDS, step=9, file=name, bytes=4, sha256="0" * 64))
    with pytest.raises(StoreError, match="which is no plain name: do not use these samples"):
        store.records()
    with pytest.raises(StoreError, match="no plain name"):
        store.truncate(0, 9)
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
    values = {**FIELDS, "step": 9, "file": "00000009-0.safetensors", "bytes": 4, "sha256": "0" * 64, **field}
    list_line(store, Record(**values))
    with pytest.raises(StoreError, match="line 5 of .* is damaged"):
        store.records()


def test_an_index_that_is_a_folder_is_named(store, path):
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match=f"{path} cannot be read"):
        store.records()


HEALED = {
    "nothing": lambda lines: lines,
    "doubled": lambda lines: [*lines[:2], *lines],
    "reversed": lambda lines: lines[::-1],
    "with garbage": lambda lines: [b"\x00\xff\n" * 3, *lines, b"{"],
    "a later line altered": lambda lines: [*lines[:KEPT], lines[KEPT].replace(b"0.1", b"0.2")],
}
LOST = {
    "cut": lambda lines: lines[:1],
    "emptied": lambda lines: [],
    "altered": lambda lines: [lines[0].replace(b'"lr": 0.1', b'"lr": 0.2'), *lines[1:]],
    "torn": lambda lines: [b"".join(lines)[:-1000]],
}


@pytest.mark.parametrize("damage", HEALED)
def test_an_index_is_made_whole_again_by_the_manifest(store, path, damage):
    last_hash = known(store)
    lines = path.read_bytes().splitlines(keepends=True)
    other = {name: data for name, data in listing(store).items() if "-1." in name}
    path.write_bytes(b"".join(HEALED[damage](lines)))
    store.truncate(0, 6, last_hash)
    assert path.read_bytes() == b"".join(lines[:KEPT]) and store.manifest(0).last_hash() == last_hash
    assert sorted(p.name for p in store.folder.glob("*-0.safetensors")) == [
        f"0000000{s}-0.safetensors" for s in (2, 4, 6)
    ]
    assert {name: data for name, data in listing(store).items() if "-1." in name} == other


@pytest.mark.parametrize("damage", LOST)
def test_index_that_lacks_lines_is_refused_and_nothing_removed(store, path, damage):
    last_hash = known(store)
    path.write_bytes(b"".join(LOST[damage](path.read_bytes().splitlines(keepends=True))))
    before = listing(store)
    with pytest.raises(StoreError, match="line [123] of .*index-0.jsonl is damaged or lost, that of samples/0000000"):
        store.truncate(0, 6, last_hash)
    assert listing(store) == before


def test_an_index_that_is_right_is_not_written_again(store, path):
    store.truncate(0, 8, store.manifest(0).last_hash())
    before = path.stat().st_mtime_ns
    store.truncate(0, 8, store.manifest(0).last_hash())
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("lose", [Path.unlink, lambda p: p.write_bytes(p.read_bytes()[:-1])], ids=["deleted", "cut"])
def test_a_missing_file_is_named_and_nothing_is_removed(store, lose):
    last_hash = known(store)
    lose(store.folder / "00000004-0.safetensors")
    before = listing(store)
    with pytest.raises(
        StoreError, match="1 of 3 sample files in .* missing or cut short, 00000004-0.safetensors first"
    ):
        store.truncate(0, 6, last_hash)
    assert listing(store) == before


def damaged(path: Path, line: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:line], lines[line].replace(b"sample", b"simple", 1), *lines[line + 1 :]]))


def test_a_damaged_line_of_the_manifest_cuts_the_chain_there(store):
    """Every way to read names the line; what stands before it is used where the user says so."""
    path, fault = store.manifest(0).path, "line 2 of .*manifest-0.jsonl is damaged, or a line before it was lost"
    damaged(path, 1)
    with pytest.raises(StoreError, match=f"{fault}: restore it, .*; skip_bad=true uses the lines before it"):
        SampleStore(store.run_dir).records()
    with pytest.warns(BdlWarning, match=f"left out: {fault}; nothing that follows is used") as warned:
        records = SampleStore(store.run_dir, skip_bad=True).records()
    assert len(warned) == 1 and [(r.step, r.stack) for r in records] == [(2, 0), (2, 1), (4, 1), (6, 1), (8, 1)]


@pytest.mark.parametrize("line", range(len(STEPS)))
def test_a_resume_needs_the_lines_its_checkpoint_knows(store, line):
    last_hash, path = known(store), store.manifest(0).path
    damaged(path, line)
    if line < KEPT:
        with pytest.raises(StoreError, match="knows samples up to step 6, and .*manifest-0.jsonl does not list them"):
            store.truncate(0, 6, last_hash)
    else:
        store.truncate(0, 6, last_hash)
        assert [r.step for r in SampleStore(store.run_dir).records() if r.stack == 0] == [2, 4, 6]


@pytest.mark.parametrize("lines", [0, 1, 2])
def test_samples_that_the_manifest_does_not_list_are_refused(store, lines):
    last_hash, path = known(store), store.manifest(0).path
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))
    before = listing(store)
    with pytest.raises(StoreError, match="knows samples up to step 6, and .*manifest-0.jsonl does not list them: res"):
        store.truncate(0, 6, last_hash)
    assert listing(store) == before


def test_the_lines_of_a_written_sample_need_no_other_line(store, monkeypatch):
    """The cost of a sample does not grow with their number: nothing is read again, one line is hashed."""
    store.manifest(0).entries()
    monkeypatch.setattr("bdl.posterior.index.read_lines", lambda *_: pytest.fail("the index is read again"))
    monkeypatch.setattr("bdl.disk.manifest.read_file", lambda *_: pytest.fail("the manifest is read again"))
    after, hashed = Entry.after, []
    monkeypatch.setattr(Entry, "after", lambda self, before: hashed.append(self.path) or after(self, before))
    written = write(store, 10)
    assert hashed == [f"samples/{written.file}"] and len(store.manifest(0).entries()) == 5
    monkeypatch.undo()
    assert asdict(SampleStore(store.run_dir).records()[-1]) == asdict(written)


def test_one_number_expanded_over_chain_is_written_as_any_other(tmp_path):
    """Its stride is 0, and it is contiguous nevertheless."""
    store, count = SampleStore(tmp_path), torch.tensor(7).expand(1)
    assert count.stride() == (0,) and count.is_contiguous()
    written = store.write({"count": count}, step=1, **FIELDS | {"chains": [0]})
    assert torch.equal(store.read(written)["count"], torch.tensor([7]))
