"""Manifests: a line for each file, chained by hashes; what they list is read as it was written, or refused."""

import errno
import json
import os
from pathlib import Path

import pytest

from bdl.disk.manifest import Entry, Manifest, digest, manifests_of, read_listed, write_listed
from bdl.errors import StoreError


@pytest.fixture
def manifest(tmp_path) -> Manifest:
    """Three files, of which the second was replaced."""
    manifest = Manifest(tmp_path, 0)
    for name, data in {"a": b"1", "b": b"2", "c": b"3"}.items():
        manifest.write(name, "text", data)
    manifest.write("b", "text", b"4")
    return manifest


def again(manifest: Manifest) -> Manifest:
    return Manifest(manifest.folder, manifest.stack)


def test_a_line_has_the_documented_fields(manifest):
    lines = [json.loads(line) for line in manifest.path.read_text().splitlines()]
    assert [line["path"] for line in lines] == ["a", "b", "c", "b"]
    assert set(lines[0]) == {"path", "kind", "bytes", "sha256", "line", "hash"} and lines[0]["bytes"] == 1
    assert again(manifest).entries() == manifest.entries()


def test_a_line_depends_on_all_lines_before(tmp_path):
    last = []
    for number in range(3):
        manifest = Manifest(tmp_path / str(number))
        for path in ("a", "b", "c")[: 3 - (number == 1)] if number < 2 else ("x", "b", "c"):
            manifest.folder.mkdir(exist_ok=True)
            manifest.add(path, "text", 1, "0" * 64)
        last.append(manifest.last_hash())
    assert len(set(last)) == 3


def test_what_is_written_twice_has_one_line(manifest):
    before = manifest.path.read_bytes()
    manifest.write("c", "text", b"3")
    assert manifest.path.read_bytes() == before
    (manifest.folder / "c").unlink()
    manifest.write("c", "text", b"3")
    assert manifest.path.read_bytes() == before and (manifest.folder / "c").read_bytes() == b"3"


CHANGES = {
    "flipped": lambda lines: [lines[0], lines[1].replace(b"text", b"tixt"), *lines[2:]],
    "another space": lambda lines: [lines[0].replace(b", ", b",  ", 1), *lines[1:]],
    "lost": lambda lines: [lines[0], *lines[2:]],
    "doubled": lambda lines: [lines[0], *lines],
    "exchanged": lambda lines: [lines[1], lines[0], *lines[2:]],
    "a list": lambda lines: [b"[]\n", *lines],
    "empty": lambda lines: [*lines, b"\n"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_line_is_refused(manifest, change):
    lines = manifest.path.read_bytes().splitlines(keepends=True)
    manifest.path.write_bytes(b"".join(CHANGES[change](lines)))
    with pytest.raises(StoreError, match="line [1-5] of .*manifest-0.jsonl is damaged, or a line before it was lost"):
        again(manifest).entries()


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "samples/../../x", None, 1, ["a"]])
def test_a_path_that_leads_out_is_a_damaged_line(tmp_path, path):
    entry = Entry("a", "text", 1, "0" * 64, None, "")
    object.__setattr__(entry, "path", path)
    (tmp_path / "manifest-0.jsonl").write_bytes(entry.after("manifest-0.jsonl").text())
    with pytest.raises(StoreError, match="line 1 of .* is damaged"):
        Manifest(tmp_path, 0).entries()


@pytest.mark.parametrize("cut", [1, 30, 150])
def test_half_line_counts_as_not_written_and_next_writer_cuts_it(manifest, cut):
    before = manifest.path.read_bytes()
    manifest.path.write_bytes(before[:-cut])
    assert [entry.path for entry in again(manifest).entries()] == ["a", "b", "c"]
    again(manifest).write("b", "text", b"4")
    assert manifest.path.read_bytes() == before


def test_a_full_disk_leaves_the_lines_before(manifest, monkeypatch):
    before = manifest.entries()

    def full_disk(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(StoreError, match="No space left"):
        patch.setattr(os, "fsync", full_disk)
        manifest.write("d", "text", b"5")
    assert not (manifest.folder / "d").exists() and again(manifest).entries()[:4] == before
    manifest.write("d", "text", b"5")
    assert again(manifest).last_hash() == manifest.last_hash()


def test_a_file_in_parts_is_the_file_in_one(manifest):
    manifest.write("whole", "text", b"one two")
    manifest.write("parts", "text", b"one ", memoryview(b"two"))
    whole, parts = manifest.entries()[-2:]
    assert (parts.bytes, parts.sha256) == (whole.bytes, whole.sha256) == (7, digest(b"one two"))
    assert read_listed([manifest], "parts") == b"one two"
    (manifest.folder / "parts").write_bytes(b"three")
    manifest.write("parts", "text", b"one ", b"two")  # the same again: the file is restored without another line
    assert read_listed([manifest], "parts") == b"one two" and manifest.entries()[-1] == parts


def test_a_file_is_read_as_it_was_written_or_refused(manifest):
    assert read_listed([manifest], "b") == b"4" and read_listed([manifest], "d") is None
    (manifest.folder / "a").write_bytes(b"x")
    with pytest.raises(StoreError, match="a was altered: its sha256 is not that of .*manifest-0.jsonl; restore it"):
        read_listed([manifest], "a")
    (manifest.folder / "a").unlink()
    with pytest.raises(StoreError, match="a cannot be read .*restore it"):
        read_listed([manifest], "a")


def test_a_kill_between_line_and_its_file_leaves_version_before(manifest):
    manifest.add("b", "text", 1, "0" * 64)  # and no rename
    assert read_listed([again(manifest)], "b") == b"4"
    (manifest.folder / "b").write_bytes(b"2")  # older still
    with pytest.raises(StoreError, match="was altered"):
        read_listed([again(manifest)], "b")


def test_a_file_gets_its_name_after_its_line(manifest, monkeypatch):
    seen: list[bool] = []
    monkeypatch.setattr(
        "bdl.disk.manifest.move_into_place", lambda *_: seen.append(bool(again(manifest).versions("d")))
    )
    manifest.write("d", "text", b"5")
    assert seen == [True] and not (manifest.folder / "d").exists()


def test_cutting_removes_later_lines_and_files_only_they_list(manifest):
    manifest.write("target", "target", b"shared by all stacks")
    before = manifest.entries()[:2]
    manifest.cut(2)
    assert again(manifest).entries() == before
    assert sorted(path.name for path in manifest.folder.iterdir()) == ["a", "b", "manifest-0.jsonl", "target"]
    manifest.cut(0)
    assert not manifest.path.exists() and manifest.entries() == []


def test_manifests_of_a_folder_are_found_by_their_exact_names(tmp_path):
    for name in (
        "manifest.jsonl",
        "manifest-10.jsonl",
        "manifest-2.jsonl",
        "manifest-02.jsonl",
        "manifest (copy).jsonl",
    ):
        Path(tmp_path, name).write_text("")
    assert [manifest.stack for manifest in manifests_of(tmp_path)] == [None, 2, 10]


def test_a_file_is_listed_where_its_folder_is_that_of_a_run(tmp_path):
    write_listed(tmp_path / "metrics.json", b"{}")
    assert manifests_of(tmp_path) == []
    Manifest(tmp_path, 3).add("a", "text", 1, "0" * 64)
    write_listed(tmp_path / "metrics.json", b"[]")
    assert [(e.path, e.kind) for e in Manifest(tmp_path).entries()] == [("metrics.json", "metrics")]
