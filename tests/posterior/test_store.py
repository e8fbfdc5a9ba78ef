"""Tests of `bdl.posterior.store`, `.checked_files`, `.tensors` and `.samples`.

Samples on disk: samples come back as written, damage is named, and nothing is written partially.
"""

import errno
import hashlib
import json
import os
import re
import tracemalloc
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
import toys
from by_hand import settled
from manifests import rewrite
from torch import nn

import bdl
from bdl.disk.files import write_atomically
from bdl.disk.manifest import digest
from bdl.errors import BdlWarning, StoreError
from bdl.models import MLP
from bdl.posterior.samples import refuse_other_target
from bdl.posterior.store import SampleStore
from bdl.posterior.tensors import TYPES, as_bytes, read_tensors
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
    """A folder with four sample files of two chains."""
    toys.sample(tmp_path, 8)
    return tmp_path


def index(store: SampleStore, stack: int = 0) -> Path:
    return store.folder / f"index-{stack}.jsonl"


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


def test_truncating_removes_later_samples_of_one_stack(tmp_path):
    store = SampleStore(tmp_path)
    for stack in (0, 1):
        for step in (1, 2, 3):
            write(store, step, stack=stack)
    store.truncate(0, 2)
    assert [(r.step, r.stack) for r in store.records()] == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 1)]
    store.truncate(5, 0)  # a stack that has written nothing
    assert not index(store, 5).exists()


def test_truncating_drops_a_line_that_a_crash_cut_short(store):
    with open(index(store), "ab") as f:
        f.write(b'{"step": 4, "st')
    store.truncate(0, 3)
    write(store, 4)
    assert [r.step for r in store.records()] == [1, 2, 3, 4]


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_line_that_a_crash_cut_short_counts_as_not_written(store, cut):
    """The last line of the manifest, which is written after that of the index."""
    path = store.manifest(0).path
    path.write_bytes(path.read_bytes()[:-cut])
    assert [r.step for r in store.records()] == [1, 2]


@pytest.mark.parametrize(
    "alter",
    [
        lambda line: line.replace('"lr": 0.1', '"lr": 0.2'),
        lambda line: line.replace('"cycle": 0', '"cycle": 1'),
        lambda line: line + " ",
        lambda line: line[:40],
        lambda line: "[]",
        lambda line: "",
    ],
    ids=["value", "energy", "space", "cut", "list", "empty"],
)
def test_an_altered_line_is_refused_by_number_and_name(store, alter):
    lines = index(store).read_text().splitlines()
    lines[1] = alter(lines[1])
    index(store).write_text("\n".join(lines) + "\n")
    with pytest.raises(StoreError, match=f"line 2 of {re.escape(str(index(store)))} is damaged"):
        store.records()


def test_samples_of_another_format_are_refused(store, monkeypatch):
    monkeypatch.setattr("bdl.posterior.index.INDEX_VERSION", 3)
    with pytest.raises(StoreError, match="format 2; this bdl reads format 3"):
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
        probs = rest.predict(x).probs
    torch.testing.assert_close(probs, mean_without(run, whole.records[1].step))
    assert rest.samples == len(list(rest.stream())) == 6


def swap_content(run: Path, tensors: dict[str, torch.Tensor] | None) -> Path:
    """Give the second sample other content, with an index whose sums are right, as a stranger may send it."""
    store, records = SampleStore(run), SampleStore(run).records()
    data = b"\xff" * 64 if tensors is None else safetensors.torch.save(tensors)
    bad = replace(records[1], bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    (store.folder / bad.file).write_bytes(data)
    index(store).write_bytes(b"".join(r.line() for r in (records[0], bad, *records[2:])))
    manifest = store.manifest(0)
    altered = {"bytes": bad.bytes, "sha256": bad.sha256, "line": digest(bad.line())}
    rewrite(manifest, [replace(e, **altered) if e.path.endswith(bad.file) else e for e in manifest.entries()])
    return store.folder / bad.file


@pytest.mark.parametrize("words", ["is no safetensors file", "holds NaN"])
def test_a_bad_file_with_right_checksum_is_named_and_left_out(run, words):
    store = SampleStore(run)
    tensors = {name: torch.full_like(t, torch.nan) for name, t in store.read(store.records()[1]).items()}
    bad = swap_content(run, None if "safetensors" in words else tensors)
    x, _ = toys.tensors()
    with pytest.raises(StoreError, match=f"{re.escape(str(bad))} {words}.*skip_bad=true"):
        bdl.Posterior.load(run, toys.plain()).predict(x)
    with pytest.warns(BdlWarning, match="left out"):
        bdl.Posterior.load(run, toys.plain(), skip_bad=True).predict(x)


def test_a_pipe_is_not_waited_for(run):
    bad = SampleStore(run).folder / SampleStore(run).records()[1].file
    bad.unlink()
    os.mkfifo(bad)
    with pytest.raises(StoreError, match="cannot be read .it is no regular file"):
        bdl.Posterior.load(run, toys.plain()).predict(toys.tensors()[0])


def test_a_folder_that_was_moved_meanwhile_is_not_made_anew(store):
    store.run_dir.rename(store.run_dir.with_name("elsewhere"))
    with pytest.raises(StoreError, match="its folder was moved or removed while a process wrote to it"):
        write(store, 9)
    assert not store.run_dir.exists()


def mean_without(run: Path, step: int) -> torch.Tensor:
    store, net, (x, _) = SampleStore(run), toys.plain(), toys.tensors()
    tensors = [{k: v[c] for k, v in store.read(r).items()} for r in store.records() if r.step != step for c in (0, 1)]
    return torch.stack([torch.func.functional_call(net, t, (x,)).softmax(-1) for t in tensors]).mean(0).detach()


def test_a_checksum_is_verified_once_per_posterior(run, monkeypatch):
    hashed = []
    read = lambda path, check: (check and hashed.append(path.stat().st_size), read_tensors(path, check))[1]  # noqa: E731
    monkeypatch.setattr("bdl.posterior.checked_files.read_tensors", read)
    x, _ = toys.tensors()
    posterior = bdl.Posterior.load(run, toys.plain())
    sizes = [r.bytes for r in posterior.records]
    for _ in range(2):
        posterior.predict(x)
        assert [size for size in hashed if size in sizes] == sizes


def test_a_file_that_is_altered_after_it_was_verified_is_named(run):
    posterior = bdl.Posterior.load(run, toys.plain())
    x, _ = toys.tensors()
    posterior.predict(x)
    bad = run / "samples" / posterior.records[1].file
    flip(bad)
    os.utime(bad, ns=(0, 0))  # another time than before, however coarse the clock of the file system is
    with pytest.raises(StoreError, match="was altered"):
        posterior.predict(x)


def test_a_cache_leaves_bad_files_out(run):
    flip(run / "samples" / SampleStore(run).records()[1].file)
    with pytest.raises(StoreError, match="was altered"):
        bdl.Posterior.load(run, toys.plain()).cache()
    with pytest.warns(BdlWarning, match="left out"):
        posterior = bdl.Posterior.load(run, toys.plain(), skip_bad=True).cache()
    assert posterior.samples == len(list(posterior.stream())) == 6
    x, _ = toys.tensors()
    torch.testing.assert_close(posterior.predict(x).probs, mean_without(run, SampleStore(run).records()[1].step))


def test_no_usable_sample_is_an_error_with_skip_bad_too(run):
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
    with pytest.raises(StoreError, match="the run holds samples of another network: .* in them, and .* in (MLP|Seq)"):
        bdl.Posterior.load(run, net).predict(toys.tensors()[0])


def test_a_damaged_weighting_is_named(tmp_path):
    store = SampleStore(tmp_path)
    store.write_weighting(0, {"edges": torch.zeros(1, 3)}, {"energy": "batch"})
    shorten(store.folder / "weighting-0.safetensors")
    with pytest.raises(StoreError, match="weighting-0.safetensors was altered: its sha256 is not that of .*manifest-0"):
        store.weighting(0)
    data = b"no safetensors"
    store.manifest(0).write("samples/weighting-0.safetensors", "weighting", data)  # a stranger's
    with pytest.raises(StoreError, match="weighting-0.safetensors is no whole safetensors file"):
        store.weighting(0)


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_keeps_the_samples_written_before(store, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(StoreError, match="00000004-0.safetensors: No space left"):
        patch.setattr(os, "fsync", full_disk)
        write(store, 4)
    assert [r.step for r in store.records()] == [1, 2, 3]
    names = sorted(p.name for p in store.folder.iterdir())
    assert names == [*(f"{step:08d}-0.safetensors" for step in (1, 2, 3)), "index-0.jsonl"]


def test_the_file_is_there_before_its_index_line(store, monkeypatch):
    lines = []

    def spy(path: Path, *parts: bytes | memoryview, make_folder: bool) -> None:
        write_atomically(path, *parts, make_folder=make_folder)
        lines.append((path.exists(), len(store.records())))

    monkeypatch.setattr("bdl.posterior.store.write_atomically", spy)
    write(store, 4)
    assert lines == [(True, 3)] and len(store.records()) == 4


@pytest.mark.parametrize("about", [None, {"unit": 'nats, "ψ"\t\x1f'}], ids=["tensors", "with words"])
def test_a_file_in_parts_is_as_the_librarys_and_copies_no_tensor(tmp_path, about):
    """Names with signs that JSON escapes or not, tensors of several types, without axes and without numbers."""
    tensors = {
        "z.weight": torch.randn(3, 2), "größe": torch.arange(5), 'a"b\\c': torch.tensor(True), "a": torch.zeros(0, 4),
        "half": torch.ones(3, dtype=torch.bfloat16), "double": torch.tensor(1.5, dtype=torch.float64),
    }  # fmt: skip
    assert as_bytes(tensors, about) == safetensors.torch.save(tensors, about)
    large, store = torch.zeros(2, 2**20), SampleStore(tmp_path)
    tracemalloc.start()
    try:
        record = store.write({"w": large}, step=1, **FIELDS)
        assert tracemalloc.get_traced_memory()[1] < large.nbytes / 4  # a copy as bytes would be all of it
    finally:
        tracemalloc.stop()
    assert torch.equal(store.read(record)["w"], large)


def explode(after: int, lr: float = 1e38) -> bdl.Schedule:
    """An lr so large that step number `after`, counted from 0, moves the state to about 1e37 or beyond."""
    return bdl.Schedule(lr=lambda step: 0.1 if step < after else lr)


@pytest.mark.parametrize(("after", "seen"), [(5, 6), (6, 8)])
def test_a_diverged_run_keeps_what_it_wrote(tmp_path, after, seen):
    """Parameters of 1e37 are finite, but their energy is not: a kept step shows it at once, another one step later."""
    with pytest.raises(bdl.DivergedError, match=f"at step {seen}: .*lower lr"):
        toys.sample(tmp_path, 20, EveryStep(0, 2), callbacks=[explode(after)], prior=bdl.Uniform())
    store = SampleStore(tmp_path)
    assert [r.step for r in store.records()] == ([2, 4] if after == 5 else [2, 4, 6])
    assert all(t.isfinite().all() for r in store.records() for t in store.read(r).values())


def test_a_bad_last_state_is_not_written(tmp_path):
    """No later step has a loss that would show that the last state is bad."""
    with pytest.raises(bdl.DivergedError):
        toys.sample(tmp_path, 6, EveryStep(0, 2), callbacks=[explode(5)])
    assert [r.step for r in SampleStore(tmp_path).records()] == [2, 4]


def test_energies_that_overflow_are_not_written(tmp_path):
    """Parameters of 1e30 are finite, but their prior energy is not."""
    with pytest.raises(bdl.DivergedError):
        toys.sample(tmp_path, 20, EveryStep(0, 2), callbacks=[explode(5, 1e30)])
    index = (tmp_path / "samples" / "index-0.jsonl").read_text()
    assert "Infinity" not in index and "NaN" not in index


def test_an_index_is_json_that_other_tools_read(store):
    for line in index(store).read_text().splitlines():
        assert json.loads(line, parse_constant=pytest.fail)["format_version"] == 2


OTHER_RUNS = {
    "num_data": {"num_data": 40, "collect": {"target": {"num_data": 41}}},
    "temperature": {"temperature": 0.5},
    r"prior\.precision": {"prior": bdl.Gaussian(2.0)},
    "data": {"collect": {"target": {"data": "others"}}},
    "model": {"collect": {"target": {"model": "other"}}},
    r"shapes\.0\.bias": {"net": nn.Sequential(nn.Linear(3, 3))},
    r"weighting\.type": {"weighting": settled()},
}


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("short")
    toys.sample(folder, 4, seed=7)
    return folder


@pytest.mark.parametrize("key", OTHER_RUNS)
def test_runs_of_another_target_are_not_merged(short, tmp_path, key):
    toys.sample(tmp_path, 4, **OTHER_RUNS[key])
    with pytest.raises(StoreError, match=f"runs of different targets are not merged: {key} is"):
        bdl.Posterior.load([short, tmp_path], toys.plain())


def test_priors_that_differ_tensor_by_tensor_are_not_merged(tmp_path):
    for name, precisions in (("a", [1.0, 2.0, 1.0, 2.0]), ("b", [2.0, 1.0, 2.0, 1.0])):
        toys.sample(tmp_path / name, 4, prior=bdl.Gaussian(precisions))
    with pytest.raises(StoreError, match=r"not merged: prior\.precision\.values is"):
        bdl.Posterior.load([tmp_path / "a", tmp_path / "b"], toys.plain())


def test_runs_of_different_likelihoods_are_not_merged(tmp_path):
    x = torch.linspace(-1, 1, toys.N).unsqueeze(1)
    for std in (0.5, 0.7):
        module = toys.module(MLP((1, 4, 1)), 2, bdl.GaussianNLL(std), lr=0.01)
        collect = bdl.CollectSamples(EveryStep(0, 2), tmp_path / str(std))
        toys.trainer(tmp_path, 4, [collect]).fit(module, bdl.data.TensorBatches(x, 2 * x, 10, chains=2))
    with pytest.raises(StoreError, match=r"not merged: loss(\.std)? is"):
        bdl.Posterior.load([tmp_path / "0.5", tmp_path / "0.7"], MLP((1, 4, 1)))


LAPLACE = {"prior": {"type": "bdl.Laplace", "scale": 1.0}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_data": 41}, "num_data is 40 in {a}, 41 in {b}"),
        ({"prior": {"type": "bdl.Gaussian", "precision": 2.0}}, "prior.precision is 1.0 in {a}, 2.0 in {b}"),
        (LAPLACE, 'prior.type is "bdl.Gaussian" in {a}, "bdl.Laplace" in {b}'),
        ({"clip": {"type": "bdl.ClipNorm", "bound": 1.0}}, 'clip is absent in {a}, {{"bound": 1.0, "type"'),
        ({"data": "x" * 100}, 'data is absent in {a}, "' + "x" * 56 + "... in {b}"),
        (LAPLACE | {"num_data": 41}, "num_data is 40 in {a}, 41 in {b}"),
        ({"loss": {"type": "bdl.Mix", "parts": {"b": [1, 2]}}}, "loss.parts.b is [1, 1] in {a}, [1, 2] in {b}"),
        (
            {"loss": "cross_entropy"},
            'loss is {{"parts": {{"b": [1, 1]}}, "type": "bdl.Mix"}} in {a}, "cross_entropy" in {b}',
        ),
    ],
)
def test_the_first_key_that_differs_is_named_by_its_path(tmp_path, change, words):
    target = {
        "num_data": 40,
        "prior": {"type": "bdl.Gaussian", "precision": 1.0},
        "loss": {"type": "bdl.Mix", "parts": {"b": [1, 1]}},
        "clip": None,
    }
    a, b = SampleStore(tmp_path / "a"), SampleStore(tmp_path / "b")
    for store, values in ((a, target), (b, target | change)):
        write(store, 1)
        store.write_target(values)
    refuse_other_target(a, a)
    with pytest.raises(StoreError, match=re.escape(words.format(a=a.run_dir, b=b.run_dir))):
        refuse_other_target(a, b)


def test_a_missing_key_equals_null(tmp_path):
    stores = [SampleStore(tmp_path / name) for name in "ab"]
    for store, values in zip(
        stores, ({"n": 1, "prior": {"scale": None}}, {"n": 1, "clip": None, "prior": {}}), strict=True
    ):
        write(store, 1)
        store.write_target(values)
    refuse_other_target(*stores)
    stores[1].write_target({"n": 1, "prior": {"scale": 0}})
    with pytest.raises(StoreError, match="prior.scale is absent in .* 0 in "):
        refuse_other_target(*stores)


def test_a_folder_without_a_target_is_refused(store):
    with pytest.raises(
        StoreError, match="is not a run directory, or its manifest was lost: none lists samples/target.json"
    ):
        bdl.Posterior.load(store.run_dir, toys.plain())


def damaged_header(change) -> bytes:
    """A file of one tensor, with another header of the same length or of one that is told."""
    data = as_bytes({"w": torch.arange(6.0).view(2, 3)})
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header = change(header)
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


HEADERS = {
    "whole": lambda h: h,
    "another size": lambda h: {"w": h["w"] | {"shape": [2, 4]}},
    "huge": lambda h: {"w": h["w"] | {"shape": [2**40, 2**20]}},
    "negative": lambda h: {"w": h["w"] | {"shape": [-2, -3]}},
    "a gap": lambda h: {"w": h["w"] | {"data_offsets": [4, 28]}},
    "more than the file": lambda h: {"w": h["w"], "v": h["w"] | {"data_offsets": [24, 48]}},
    "less than the file": lambda h: {},
    "unknown type": lambda h: {"w": h["w"] | {"dtype": "F31"}},
    "no mapping": lambda h: [1],
    "no JSON": lambda h: b"{",
    "nested": lambda h: b"[" * 5000,
}


def test_a_tensor_held_already_takes_no_memory(tmp_path, monkeypatch):
    """They are compared piece by piece. Equal numbers of other bytes, such as -0.0, are read too."""
    monkeypatch.setattr("bdl.posterior.tensors.CHUNK_OF_FILE", 16)
    tensors = {"a": torch.arange(11.0), "b": torch.zeros(2, 5), "c": torch.tensor([True, False]), "d": torch.empty(0)}
    (tmp_path / "file").write_bytes(content := as_bytes(tensors))
    for place in range(11):
        held = {name: t.clone() for name, t in tensors.items()}
        held["a"][place] += 1
        held["b"][1, 4] = -0.0
        read, sha256 = read_tensors(tmp_path / "file", in_place_of=held)
        assert sha256 == hashlib.sha256(content).hexdigest()
        assert all(torch.equal(read[name], t) for name, t in tensors.items()) and not read["b"].signbit().any()
        shared = [name for name in tensors if read[name].data_ptr() == held[name].data_ptr()]
        assert shared == ["c", "d"]
    held = {"a": tensors["a"].double(), "b": tensors["b"].mT.contiguous().mT, "c": tensors["c"], "e": tensors["a"]}
    with torch.inference_mode():
        held["d"] = torch.empty(0)
    read, _ = read_tensors(tmp_path / "file", in_place_of=held)
    assert read["a"].dtype == torch.float32 and read["b"].data_ptr() == held["b"].data_ptr()
    assert not read["d"].is_inference()


@pytest.mark.parametrize("name", HEADERS)
def test_another_format_is_refused_before_memory_is_taken(tmp_path, name):
    path, data = tmp_path / "a.safetensors", damaged_header(HEADERS[name])
    path.write_bytes(data)
    if name == "whole":
        tensors, sha256 = read_tensors(path)
        assert torch.equal(tensors["w"], torch.arange(6.0).view(2, 3)) and sha256 == digest(data)
        return
    with pytest.raises(ValueError) as caught:
        read_tensors(path)
    assert caught.value.args[1] == digest(data)


def test_every_type_of_torch_is_read_as_the_library_reads_it(tmp_path):
    numbers = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    tensors = {str(dtype): numbers.to(dtype) for dtype in TYPES.values()} | {
        "scalar": torch.tensor(7), "none": torch.zeros(0, 3),
    }  # fmt: skip
    data = as_bytes(tensors)
    assert data == safetensors.torch.save(tensors)
    (tmp_path / "a").write_bytes(data)
    read, sha256 = read_tensors(tmp_path / "a")
    theirs = safetensors.torch.load(data)
    assert sha256 == digest(data) and read.keys() == theirs.keys() == tensors.keys()
    for name, tensor in theirs.items():
        assert read[name].dtype == tensor.dtype and read[name].shape == tensor.shape
        assert as_bytes({"t": read[name]}) == as_bytes({"t": tensor})


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loop_whose_loss_is_a_sum_is_told(tmp_path, reduction):
    """The gradient of the weight is a mean, or a sum, of b = 20 items of variance 100: lr Var(g) N / 2 is 50, or 50 b².

    The bias has no noise, so noise_ratio is half of that; ten estimates tell both from the limit of 1,000.
    """
    random = torch.Generator().manual_seed(0)
    x, w = torch.randn(200, 1, generator=random), nn.Linear(1, 1)
    sampler = bdl.Sampler(w.named_parameters(), bdl.SGLD(), num_data=200, lr=0.1, temperature=1.0)
    for _ in range(205):
        batch = 10 * torch.randn(20, 1, generator=random)

        def closure(batch=batch):
            sampler.zero_grad()
            losses = batch * w.weight + x[:20] * w.bias  # linear: the gradient is the same at all weights
            loss = losses.mean() if reduction == "mean" else losses.sum()
            loss.backward()
            return loss

        sampler.step(closure)
    store = SampleStore(tmp_path)
    if reduction == "mean":
        assert store.append(sampler, w).step == 205
    else:
        with pytest.warns(BdlWarning, match="return their mean, which bdl multiplies by num_data"):
            store.append(sampler, w)


@pytest.mark.parametrize(
    "loss, words", [(nn.MSELoss(), "std sqrt"), (nn.CrossEntropyLoss(torch.ones(2)), "re-weighted")]
)
def test_a_loop_whose_loss_is_another_law_is_told(tmp_path, loss, words):
    net = nn.Linear(1, 2)
    sampler = bdl.Sampler(net.named_parameters(), bdl.SGLD(), num_data=20, lr=0.1)
    net(torch.ones(20, 1)).mean().backward()
    sampler.step()
    with pytest.warns(BdlWarning, match=words):
        SampleStore(tmp_path).append(sampler, net, loss=loss)
