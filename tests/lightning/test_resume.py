"""Tests of `bdl.lightning.callbacks.checkpoint` and `.batchnorm`.

A run that was stopped and resumed writes the same files as an uninterrupted one, byte for byte.
"""

import errno
import io
from pathlib import Path

import again
import lightning as L
import pytest
import torch
import toys
from again import KINDS, SAMPLERS, WHOLE, Run
from forked import Forked
from lightning.pytorch.callbacks import Callback
from repeats import slow_where
from torch import nn

import bdl
from bdl.errors import StoreError
from bdl.lightning.callbacks.checkpoint import Streamed, streaming
from bdl.models import MLP
from bdl.posterior.store import SampleStore
from bdl.schedules import EveryStep

STOPS = {"at a kept step": 9, "in an epoch": 10, "at the end of an epoch": 20, "both": 12, "after some samples": 8}


def files(folder: Path) -> dict[str, bytes]:
    """The samples, and the manifests that list them."""
    return {p.name: p.read_bytes() for p in sorted([*(folder / "samples").iterdir(), *folder.glob("manifest-*")])}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Uninterrupted runs. Each is made once."""
    made: dict[str, Run] = {}

    def get(name: str) -> Run:
        if name not in made:
            made[name] = Run(name, tmp_path_factory.mktemp(name))
            made[name].go(WHOLE)
        return made[name]

    return get


def assert_same(whole: Run, continued: Run) -> None:
    expected, resumed = files(whole.folder), files(continued.folder)
    assert sorted(expected) == sorted(resumed)
    differ = [name for name in expected if expected[name] != resumed[name]]
    assert differ == []


def stopped(name: str, folder: Path, steps: int) -> Run:
    """A run that was stopped after `steps` and resumed in a new Trainer."""
    first, second = Run(name, folder), Run(name, folder)
    first.go(steps)
    second.go(WHOLE, first.checkpoint)
    return second


BOTH = [(name, stop) for name in KINDS for stop in STOPS]


@pytest.mark.parametrize(
    ("name", "stop"),
    slow_where(lambda name, stop: stop != "in an epoch" and (name, stop) != ("adaptive", "both"), BOTH),
)
def test_a_stopped_run_ends_with_the_same_files(whole, tmp_path, name, stop):
    assert_same(whole(name), stopped(name, tmp_path, STOPS[stop]))


@pytest.mark.parametrize("name", SAMPLERS)  # test_sampler.py resumes every sampler
def test_a_resumed_run_of_other_samplers_ends_with_the_same_files(whole, tmp_path, name):
    """It stops at a kept step, and some dynamics have adapted by then."""
    assert_same(whole(name), stopped(name, tmp_path, 9))


def test_the_kept_samples_are_many_and_differ(whole):
    """Otherwise the comparisons above would show nothing."""
    assert len({hash(v) for k, v in files(whole("plain").folder).items() if k.endswith("safetensors")}) == WHOLE // 3
    assert files(whole("plain").folder) != files(whole("adaptive").folder)


@pytest.mark.parametrize("name", ["schedule", "adaptive"])
def test_averages_traces_and_random_streams_are_resumed_too(whole, tmp_path, name):
    """They are not in the sample files."""
    expected, resumed = whole(name), stopped(name, tmp_path, 10)
    assert torch.equal(expected.average.average.total, resumed.average.average.total)
    assert expected.average.count == resumed.average.count and expected.average.metrics == resumed.average.metrics
    for column, values in expected.monitor.trace().items():
        assert torch.equal(values.nan_to_num(-1), resumed.monitor.trace()[column].nan_to_num(-1)), column
    first, second = (run.sampler.state_dict()["bdl"]["chain"]["generator"] for run in (expected, resumed))
    assert torch.equal(first, second)


def test_a_run_stopped_several_times_ends_with_the_same_files(whole, tmp_path):
    for steps in (3, 4, 9, 17, 18, WHOLE):
        run = Run("adaptive", tmp_path)
        run.go(steps, run.checkpoint if run.checkpoint.exists() else None)
    assert_same(whole("adaptive"), run)


def test_a_new_process_ends_with_the_same_files(whole, tmp_path):
    Run("adaptive", tmp_path).go(10)
    command = [again.__file__, "adaptive", str(tmp_path), str(WHOLE)]
    process = Forked(command, tmp_path)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert files(tmp_path) == files(whole("adaptive").folder)


@pytest.mark.parametrize("steps", [9, 10])
def test_a_checkpoint_that_user_saves_after_fit_can_be_resumed(whole, tmp_path, steps):
    first, second = Run("plain", tmp_path), Run("plain", tmp_path)
    first.go(steps)
    first.trainer.save_checkpoint(tmp_path / "mine.ckpt")
    second.go(WHOLE, tmp_path / "mine.ckpt")
    assert_same(whole("plain"), second)


class Killed(Exception):
    pass


class KillAt(Callback):
    """Ends the run as a power cut would: without any warning to the other callbacks."""

    def __init__(self, step: int, at_end: bool):
        self.step, self.at_end = step, at_end

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step and not self.at_end:
            raise Killed

    def on_train_end(self, trainer, *_):
        if self.at_end:
            raise Killed


@pytest.mark.parametrize(("step", "at_end"), [(11, False), (12, False), (WHOLE, False), (WHOLE, True)])
def test_a_killed_run_resumes_from_its_last_checkpoint(whole, tmp_path, monkeypatch, step, at_end):
    plain = toys.trainer
    kill = KillAt(step, at_end)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(toys, "trainer", lambda folder, steps, callbacks: plain(folder, steps, [kill, *callbacks]))
        Run("adaptive", tmp_path).go(WHOLE)
    run = Run("adaptive", tmp_path)
    assert run.checkpoint.exists()
    run.go(WHOLE, run.checkpoint)
    assert_same(whole("adaptive"), run)


def test_a_resumed_run_states_the_same_target(whole, tmp_path):
    """It is resumed in the exploring part of a cycle, where T is 0. The temperature of the law is not 0."""
    run = stopped("schedule", tmp_path, 12)
    name = "samples/target.json"
    assert (run.folder / name).read_text() == (whole("schedule").folder / name).read_text()


def test_an_abandoned_step_is_written_again(tmp_path, whole):
    """Samples later than the checkpoint are dropped from the index and written a second time."""
    Run("plain", tmp_path).go(11)
    checkpoint = (tmp_path / "checkpoints/last.ckpt").read_bytes()
    Run("plain", tmp_path).go(21, tmp_path / "checkpoints/last.ckpt")
    (tmp_path / "checkpoints/last.ckpt").write_bytes(checkpoint)
    run = Run("plain", tmp_path)
    run.go(WHOLE, run.checkpoint)
    assert_same(whole("plain"), run)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_another_num_data_is_refused(tmp_path):
    run = Run("plain", tmp_path)
    run.go(5)
    with pytest.raises(bdl.ConfigError, match="saved with num_data = 40, this sampler has 39"):
        toys.trainer(tmp_path, 9).fit(toys.module(num_data=39), toys.batches(), ckpt_path=run.checkpoint)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize(
    ("net", "words"),
    [
        (MLP((3, 6, 3)), r"net.net.0.weight has shape \(2, 5, 3\) in it, and shape \(2, 6, 3\) in this module"),
        (MLP((3, 5, 5, 3)), r"net.net.2.weight has shape \(2, 3, 5\) in it, and shape \(2, 5, 5\) in this module"),
        (MLP((3, 3)), r"net.net.0.weight has shape \(2, 5, 3\) in it, and shape \(2, 3, 3\) in this module"),
        (nn.Sequential(MLP((3, 5, 3))), "net.net.0.0.weight has no such tensor in it"),
    ],
    ids=["wider", "deeper", "smaller", "wrapped"],
)
def test_another_network_is_refused_in_one_line(tmp_path, net, words):
    run = Run("plain", tmp_path)
    run.go(5)
    with pytest.raises(bdl.ConfigError, match=words) as error:
        toys.trainer(tmp_path, 9).fit(toys.module(net), toys.batches(), ckpt_path=run.checkpoint, weights_only=True)
    assert "\n" not in str(error.value)


def test_the_checkpoint_is_replaced_atomically(tmp_path):
    run = Run("plain", tmp_path)
    run.go(7)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["last.ckpt"]
    assert torch.load(run.checkpoint, weights_only=True)["global_step"] == 7


def test_a_moved_folder_is_not_made_again_for_a_checkpoint(tmp_path, monkeypatch):
    class Move(Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 7:  # between two checkpoints
                (tmp_path / "checkpoints").rename(tmp_path / "moved")

    plain = toys.trainer
    monkeypatch.setattr(toys, "trainer", lambda folder, steps, callbacks: plain(folder, steps, [Move(), *callbacks]))
    with pytest.raises(StoreError, match="its folder was moved or removed while a process wrote to it"):
        Run("plain", tmp_path).go(WHOLE)
    assert not (tmp_path / "checkpoints").exists() and list((tmp_path / "moved").iterdir())


def test_a_full_disk_leaves_the_last_whole_checkpoint(tmp_path, monkeypatch):
    run = Run("plain", tmp_path)
    run.go(7)
    before = run.checkpoint.read_bytes()

    def full(_, path, **__):
        path.write_bytes(before[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(L.Trainer, "save_checkpoint", full)
    with pytest.raises(StoreError, match=r"cannot write .*last.ckpt: No space left on device; free space"):
        Run("plain", tmp_path).go(WHOLE, run.checkpoint)
    assert [p.name for p in run.checkpoint.parent.iterdir()] == ["last.ckpt"]
    assert run.checkpoint.read_bytes() == before


def test_a_checkpoint_goes_straight_into_its_file(tmp_path, monkeypatch):
    """It has the bytes that Lightning's own way writes, without their way through memory."""
    in_memory = []

    class Counted(io.BytesIO):
        def write(self, data):
            in_memory.append(len(data))
            return super().write(data)

    class Both(Callback):
        def on_train_end(self, trainer, *_):
            monkeypatch.setattr(io, "BytesIO", Counted)
            with streaming(trainer.strategy):
                trainer.save_checkpoint(tmp_path / "streamed.ckpt")
            streamed = sum(in_memory)
            trainer.save_checkpoint(tmp_path / "usual.ckpt")
            monkeypatch.undo()
            assert streamed < 20_000 < 100_000 < sum(in_memory)

    toys.trainer(tmp_path, 3, [Both()]).fit(toys.module(MLP((3, 2000, 3))), toys.batches())
    assert (tmp_path / "streamed.ckpt").read_bytes() == (tmp_path / "usual.ckpt").read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_checkpoint_for_which_there_is_no_space_is_error_of_disk():
    with pytest.raises(OSError) as raised:
        Streamed().save_checkpoint({"weights": torch.randn(1000, 100)}, "/dev/full")
    assert raised.value.errno == errno.ENOSPC


def test_a_new_run_in_used_folder_needs_overwrite_and_new_index(tmp_path):
    toys.sample(tmp_path, 12, EveryStep(0, 3))
    with pytest.raises(bdl.ConfigError, match="holds samples already"):
        toys.sample(tmp_path, 6, EveryStep(0, 3))
    assert [r.step for r in SampleStore(tmp_path).records()] == [3, 6, 9, 12]
    toys.sample(tmp_path, 6, EveryStep(0, 3), collect={"overwrite": True})
    assert [r.step for r in SampleStore(tmp_path).records()] == [3, 6]
    assert len(list((tmp_path / "samples").glob("0*.safetensors"))) == 2
