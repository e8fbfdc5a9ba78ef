"""Samples on disk: what was written is read, what was damaged is named, and nothing is written half."""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import toys
from torch import nn

import bdl
from bdl.errors import BdlWarning, StoreError
from bdl.files import write_atomically
from bdl.models import MLP
from bdl.posterior.store import SampleStore
from bdl.schedules import EveryStep

FIELDS = dict(
    stack=0, chains=[0, 1], cycle=0, lr=0.1, temperature=1.0, zeta=0.0, energy_batch=[1.5, 2.5], energy_full=None,
    log_weight=[0.0, 0.0], psi_frozen=False,
)  # fmt: skip


def write(store: SampleStore, step: int, **fields):
    tensors = {"w": torch.full((2, 3), float(step)), "n": torch.tensor([step, step])}
    return store.write(tensors, step=step, **(FIELDS | fields))


@pytest.fixture
def store(tmp_path) -> SampleStore:
    store = SampleStore(tmp_path)
    for step in (1, 2, 3):
        write(store, step)
    return store


@pytest.fixture
def run(tmp_path) -> Path:
    """A folder with four samples of two chains."""
    toys.sample(tmp_path, 8)
    return tmp_path


def index(store: SampleStore, stack: int = 0) -> Path:
    return store.folder / f"index-{stack}.jsonl"


# ---- what was written is read ----------------------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was_written(tmp_path):
    store = SampleStore(tmp_path)
    written = write(store, 7, energy_full=[0.1 + 0.2, 1e9 + 1e-6])
    assert SampleStore(tmp_path).records() == [written]
    tensors = store.read(written)
    assert torch.equal(tensors["w"], torch.full((2, 3), 7.0)) and tensors["n"].dtype == torch.int64


def test_the_same_sample_is_the_same_bytes(tmp_path):
    a, b = (SampleStore(tmp_path / name) for name in "ab")
    assert asdict(write(a, 1)) == asdict(write(b, 1))
    assert (a.folder / "00000001-0.safetensors").read_bytes() == (b.folder / "00000001-0.safetensors").read_bytes()


def test_two_stacks_share_a_folder(tmp_path):
    store = SampleStore(tmp_path)
    for step in (2, 1):
        for stack in (1, 0):
            write(store, step, stack=stack)
    assert [(r.step, r.stack) for r in store.records()] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert index(store, 0).exists() and index(store, 1).exists()


def test_two_stacks_of_one_run_are_one_posterior(tmp_path):
    for stack in (0, 1):
        toys.sample(tmp_path, 8, stack=stack)
    posterior = bdl.Posterior.load(tmp_path, toys.plain())
    assert posterior.chains == 4 and posterior.samples == 16


def test_truncating_forgets_later_lines_of_one_stack(tmp_path):
    store = SampleStore(tmp_path)
    for stack in (0, 1):
        for step in (1, 2, 3):
            write(store, step, stack=stack)
    store.truncate(0, 2)
    assert [(r.step, r.stack) for r in store.records()] == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 1)]
    store.truncate(5, 0)  # a stack that has written nothing
    assert not index(store, 5).exists()


def test_truncating_drops_a_torn_line_so_that_writing_can_go_on(store):
    with open(index(store), "ab") as f:
        f.write(b'{"step": 4, "st')
    store.truncate(0, 3)
    write(store, 4)
    assert [r.step for r in store.records()] == [1, 2, 3, 4]


# ---- what was damaged ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_line_that_a_crash_cut_short_counts_as_not_written(store, cut):
    data = index(store).read_bytes()
    index(store).write_bytes(data[:-cut])
    assert [r.step for r in store.records()] == [1, 2]


@pytest.mark.parametrize(
    "alter",
    [
        lambda line: line.replace('"lr": 0.1', '"lr": 0.2'),
        lambda line: line.replace('"checksum"', '"checksun"'),
        lambda line: line[:40],
        lambda line: "[]",
        lambda line: "",
    ],
    ids=["value", "key", "cut", "list", "empty"],
)
def test_an_altered_line_is_refused_by_number_and_name(store, alter):
    lines = index(store).read_text().splitlines()
    lines[1] = alter(lines[1])
    index(store).write_text("\n".join(lines) + "\n")
    with pytest.raises(StoreError, match=f"line 2 of {re.escape(str(index(store)))} is damaged"):
        store.records()


def test_samples_of_another_format_are_refused(store, monkeypatch):
    monkeypatch.setattr("bdl.posterior.store.FORMAT_VERSION", 2)
    with pytest.raises(StoreError, match="format 1; this bdl reads format 2"):
        store.records()


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(StoreError, match=f"no samples in {tmp_path}"):
        bdl.Posterior.load(tmp_path, toys.plain())


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGE = {"cut short": shorten, "was altered": flip, "cannot be read": Path.unlink}


@pytest.mark.parametrize("words", DAMAGE)
def test_a_damaged_file_is_named_and_the_rest_can_be_used(run, words):
    whole = bdl.Posterior.load(run, toys.plain())
    bad = run / "samples" / whole.records[1].file
    DAMAGE[words](bad)
    x, _ = toys.tensors()
    with pytest.raises(StoreError, match=f"{re.escape(str(bad))} .*{words}.*skip_bad=true"):
        whole.predict(x)
    rest = bdl.Posterior.load(run, toys.plain(), skip_bad=True)
    with pytest.warns(BdlWarning, match=f"left out: sample file {re.escape(str(bad))}"):
        found = rest.predict(x).probs
    torch.testing.assert_close(found, mean_without(run, whole.records[1].step))


def mean_without(run: Path, step: int) -> torch.Tensor:
    store, net, (x, _) = SampleStore(run), toys.plain(), toys.tensors()
    tensors = [{k: v[c] for k, v in store.read(r).items()} for r in store.records() if r.step != step for c in (0, 1)]
    return torch.stack([torch.func.functional_call(net, t, (x,)).softmax(-1) for t in tensors]).mean(0).detach()


def test_samples_counts_what_is_used_when_files_are_left_out(run):
    flip(run / "samples" / SampleStore(run).records()[1].file)
    posterior = bdl.Posterior.load(run, toys.plain(), skip_bad=True)
    with pytest.warns(BdlWarning, match="left out"):
        used = len(list(posterior.stream()))
    assert posterior.samples == used == 6


def test_nothing_usable_is_an_error_even_so(run):
    for record in SampleStore(run).records():
        flip(run / "samples" / record.file)
    posterior = bdl.Posterior.load(run, toys.plain(), skip_bad=True)
    with pytest.raises(StoreError, match="no usable sample in"), pytest.warns(BdlWarning):
        posterior.predict(toys.tensors()[0])


@pytest.mark.parametrize(
    "net",
    [MLP((3, 6, 3)), MLP((3, 5, 5, 3)), nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))],
    ids=["width", "depth", "buffers"],
)
def test_samples_of_another_network_are_refused(run, net):
    with pytest.raises(StoreError, match="00000002-0.safetensors holds samples of another network: .* does not fit"):
        bdl.Posterior.load(run, net).predict(toys.tensors()[0])


def test_a_damaged_weighting_is_named(tmp_path):
    store = SampleStore(tmp_path)
    store.write_weighting(0, {"edges": torch.zeros(1, 3)}, {"energy": "batch"})
    shorten(store.folder / "weighting-0.safetensors")
    with pytest.raises(StoreError, match="weighting-0.safetensors is not a whole safetensors file"):
        store.weighting(0)


# ---- nothing is written half -----------------------------------------------------------------------------------------


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch, function):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, function, full_disk)
    with pytest.raises(StoreError, match=f"cannot write {path}: No space left on device; free space"):
        write_atomically(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"] and path.read_bytes() == b"old"


def test_a_full_disk_keeps_the_samples_written_before(store, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(StoreError, match="00000004-0.safetensors: No space left"):
        patch.setattr(os, "fsync", full_disk)
        write(store, 4)
    assert [r.step for r in store.records()] == [1, 2, 3]
    names = sorted(p.name for p in store.folder.iterdir())
    assert names == [*(f"{step:08d}-0.safetensors" for step in (1, 2, 3)), "index-0.jsonl"]


def test_the_file_is_there_before_its_index_line(store, monkeypatch):
    seen = []
    append = store._append
    monkeypatch.setattr(store, "_append", lambda r: (seen.append((store.folder / r.file).exists()), append(r)))
    write(store, 4)
    assert seen == [True]


def test_an_interrupt_while_writing_leaves_no_temporary_file(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", b"new")
    assert list(tmp_path.iterdir()) == []


def explode(after: int, lr: float = 1e38) -> bdl.Schedule:
    """An lr that throws the state to infinity in step number `after`, counted from 0."""
    return bdl.Schedule(lr=lambda step: 0.1 if step < after else lr)


@pytest.mark.parametrize(("after", "seen"), [(5, 6), (6, 8)])
def test_a_diverged_run_keeps_what_it_wrote(tmp_path, after, seen):
    """Numbers of 1e37 are finite, their energy over all data is not: it shows at a kept step, or one step later."""
    with pytest.raises(bdl.DivergedError, match=f"at step {seen}: .*lower lr"):
        toys.sample(tmp_path, 20, EveryStep(0, 2), callbacks=[explode(after)], prior=bdl.Uniform())
    store = SampleStore(tmp_path)
    assert [r.step for r in store.records()] == ([2, 4] if after == 5 else [2, 4, 6])
    assert all(t.isfinite().all() for r in store.records() for t in store.read(r).values())


def test_a_bad_last_state_is_not_written(tmp_path):
    """No step follows it whose loss could show that it is bad."""
    with pytest.raises(bdl.DivergedError):
        toys.sample(tmp_path, 6, EveryStep(0, 2), callbacks=[explode(5)])
    assert [r.step for r in SampleStore(tmp_path).records()] == [2, 4]


def test_energies_that_overflow_are_not_written(tmp_path):
    """Parameters of 1e30 are finite, their prior energy is not."""
    with pytest.raises(bdl.DivergedError):
        toys.sample(tmp_path, 20, EveryStep(0, 2), callbacks=[explode(5, 1e30)])
    index = (tmp_path / "samples" / "index-0.jsonl").read_text()
    assert "Infinity" not in index and "NaN" not in index


def test_an_index_is_json_that_other_tools_read(store):
    for line in index(store).read_text().splitlines():
        assert json.loads(line, parse_constant=pytest.fail)["format_version"] == 1
