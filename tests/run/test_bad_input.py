"""Bad input ends a command with one line and status 1, and destroys nothing."""

import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction

import pytest
import torch
from cifar_files import Folder
from hydra.errors import MissingConfigException
from repeats import slow_where
from running import TINY, refusal, sampled, samples, start

import bdl
from bdl.checkpoint import is_checkpoint
from bdl.run import build
from bdl.run.console import one_line, one_line_errors
from bdl.run.section import Section

BAD = {
    "group": ("sampler=nuts", "sampler=nuts: there is no such sampler"),
    "key": ("sampler.lrr=0.1", "lrr"),
    "num_data": ("sampler.num_data=100", "sampler.num_data = 100, but the training data have 4435 items"),
    "thinning": ("collect.keep.every=500", "keeps no sample in 12 steps"),
    "batch": ("data.batch_size=5000", "batch_size must be between 1 and the 4435 training items"),
    "model": ("model.sizes=[36,5]", "the model has 5 outputs for 6 classes"),
    "input": ("model.sizes=[35,6]", "the model, bdl.models.MLP, does not take inputs of shape (36,): choose another"),
    "no dynamics": ("sampler=default", "sampler.dynamics has no value: choose a configuration that gives one"),
    "fold": ("data.fold=1", "data.fold must be from 0 to 1 / data.val_fraction - 1, got 1 with data.val_fraction 0.0"),
    "one chain": ("sampler=resghmc; chains=1", "replica exchange needs chains to exchange, got 1"),
    "weighted swaps": ("sampler=awsghmc; sampler/exchange=ladder; chains=4", "AdaptiveWeight changes that"),
    "mini-batches": ("sampler=mala; data.batch_size=100", "MALA needs all the data in every batch, got batch_size"),
    "devices": ("trainer=ddp; trainer.devices=4000", "trainer.devices=4000, but this machine has"),
    "devices without a way": ("trainer.devices=2", "trainer=ddp runs one chain on several devices"),
    "machines": ("trainer=chains; trainer.devices=1; trainer.num_nodes=2", "let torchrun or srun start the processes"),
    "time": ("trainer.max_time=soon", "(trainer.max_time) must be DD:HH:MM:SS, more than 0, or null, got 'soon'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_line_and_leaves_nothing(script, tmp_path, name):
    override, words = BAD[name]
    folder = tmp_path / "run"
    error = refusal(script("train", f"hydra.run.dir={folder}", "trainer=debug", *TINY, *override.split("; ")))
    assert words in error
    assert [p for p in folder.rglob("*") if p.is_file()] == []


IMAGES = {
    "no data": ("data.root=/nowhere", "CIFAR10 is not in /nowhere"),
    "no root": ("data.root=null", "data.root must be a path, got None"),
    "classes": ("model.num_classes=9", "the model has 9 outputs for 10 classes: change model.num_classes"),
    "batch": ("data.batch_size=61", "batch_size must be between 1 and the 60 training items, got 61"),
    "crop": ("data.augment.crop=-1", "crop and cutout must be >= 0 pixels, got -1 and 0"),
    "augment": ("data.augment=strong", "data.augment must be built by a _target_ (Augment) or null, got 'strong'"),
    "all held out": ("data.val_fraction=0.999", "val_fraction = 0.999 holds out all of the 60 items"),
}


@pytest.mark.parametrize("name", IMAGES)
def test_bad_input_about_images_gets_one_line_and_leaves_nothing(script, tmp_path, monkeypatch, name):
    override, words = IMAGES[name]
    images, folder = Folder(tmp_path / "data", monkeypatch), tmp_path / "run"
    small = (
        "data=cifar10",
        "model=cnn",
        "chains=1",
        "data.batch_size=10",
        f"data.root={images.root}",
        TINY[0],
        TINY[2],
    )
    error = refusal(script("train", f"hydra.run.dir={folder}", "trainer=debug", *small, TINY[4], override))
    assert words in error
    assert [p for p in folder.rglob("*") if p.is_file()] == []


def test_bins_that_miss_the_energies_are_refused(script, tmp_path):
    weighting = [f"sampler.weighting.{key}" for key in ("zeta=1", "low=1e6", "high=2e6")]
    bins = ("sampler=awsghmc", *weighting, "trainer.max_steps=1200")
    error = refusal(script("train", f"hydra.run.dir={tmp_path}", "trainer=debug", *(TINY[:2] + TINY[3:]), *bins))
    assert "bins miss the energies: low = 1e+06, high = 2e+06" in error
    assert not (tmp_path / "metrics.json").exists()


def test_a_loss_that_is_not_finite_names_its_step(script, tmp_path):
    error = refusal(script("train", f"hydra.run.dir={tmp_path}", "trainer=debug", *TINY, "sampler.lr=1e30"))
    assert "is not finite at step" in error and "lower lr" in error
    assert not (tmp_path / "metrics.json").exists()


def test_a_folder_of_another_configuration_is_refused(script, run):
    before = samples(run)
    error = refusal(script("train", f"hydra.run.dir={run}", "trainer=debug", *TINY, "seed=7"))
    assert "already holds a run of another configuration" in error and before == samples(run)
    assert "seed is 0 there, and 7 here" in error


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_missing_gpu_is_named(script, tmp_path):
    error = refusal(script("train", f"hydra.run.dir={tmp_path}", "trainer=gpu", *TINY))
    what = "the trainer is not available on this machine, choose another, e.g. trainer=cpu"
    assert f"{what}: No supported gpu backend found!" in error


OTHERS = {
    "seed": ("seed=1", "the checkpoint belongs to another run ("),
    "activation": ("model.activation=relu", "the checkpoint belongs to another run ("),
    "network": ("model.sizes=[36,7,6]", "network, data set or number of chains: net.net.0.weight has shape (2, 7, 36)"),
}


@pytest.mark.parametrize("name", slow_where("activation".__eq__, OTHERS))
def test_a_checkpoint_of_another_run_is_refused(script, tmp_path, name):
    override, words = OTHERS[name]
    first, second = tmp_path / "first", tmp_path / "second"
    sampled(first, "trainer=debug", *TINY)
    sampled(second, "trainer=debug", *TINY, override)
    before = samples(first)
    shutil.copy(second / "checkpoints" / "last.ckpt", first / "checkpoints" / "last.ckpt")
    assert words in refusal(script("train", f"hydra.run.dir={first}", "trainer=debug", *TINY))
    assert samples(first) == before


def test_a_damaged_or_foreign_checkpoint_is_refused(script, tmp_path):
    sampled(tmp_path, "trainer=debug", *TINY)
    before, path = samples(tmp_path), tmp_path / "checkpoints" / "last.ckpt"
    whole = path.read_bytes()
    altered = bytearray(whole)
    altered[len(whole) // 2] ^= 1
    foreign = []
    for content in ({"weights": torch.zeros(3)}, {"state_dict": Fraction(1, 2)}, [1]):
        torch.save(content, path)
        foreign.append(path.read_bytes())
    without_a_line = whole[whole.index(b"\n") + 1 :]  # its table of contents leads to places before the file begins
    for data in (b"", whole[:-100], without_a_line, bytes(altered), *foreign):
        path.write_bytes(data)
        assert not is_checkpoint(path)
    error = refusal(script("train", f"hydra.run.dir={tmp_path}", "trainer=debug", *TINY))
    assert f"{path} is truncated, altered or no checkpoint" in error
    assert samples(tmp_path) == before
    path.write_bytes(whole)
    assert is_checkpoint(path)
    assert script("train", f"hydra.run.dir={tmp_path}", "trainer=debug", *TINY)[0] == 0


@pytest.mark.parametrize(
    ("runs", "words"), [("[/nowhere]", "/nowhere is not a run directory"), ("[]", "runs"), ("null", "runs")]
)
def test_evaluate_refuses_other_folders(script, runs, words):
    assert words in refusal(script("evaluate", f"runs={runs}"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "can't read probabilities from"),
        ("a,b", "can't read probabilities from"),
        ("0.5,0.6\n0.5,0.5", "must hold probabilities (n, K) whose rows sum to 1, got an array (2, 2)"),
        ("0.5,0.5\n0.5,0.5", "the reference has probabilities of shape (2, 2), the posterior (2000, 6)"),
    ],
)
def test_a_bad_reference_is_refused(script, run, tmp_path, content, words):
    path = tmp_path / "probs.csv"
    if content is not None:
        path.write_text(content)
    assert words in refusal(script("evaluate", f"runs={run}", f"out={tmp_path / 'out'}", f"reference={path}"))


def test_a_missing_device_is_named(script, run):
    assert "device=cuda:99 is not available" in refusal(script("evaluate", f"runs={run}", "device=cuda:99"))


def test_evaluate_without_runs_says_so(script):
    assert "runs" in refusal(script("evaluate"))


def test_debugging_keeps_the_traceback(monkeypatch):
    monkeypatch.setenv("BDL_DEBUG", "1")
    with pytest.raises(bdl.ConfigError), one_line_errors():
        raise bdl.ConfigError("what")


def test_an_error_of_a_table_is_one_line_where_tuning_runs_apart(tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"{i},{i}.5\n" for i in range(40)) + "abc,1.5\n" * 3)
    of_data = ("data=csv", f"data.path={tmp_path / 't.csv'}", "data.target=y", "tune=auto", "processes=2")
    process = start(f"hydra.run.dir={tmp_path / 'run'}", *of_data)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 1 and err.startswith("bdl: t.csv: a has 'abc' in row 41, and no finite number in")
    assert len(err.splitlines()) == 1 and len(err) < 300


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("bdl.Block", "lr_factor of a block must be a number > 0, got -1.0"),
        ("datetime.date", "Error in call to target 'datetime.date': TypeError"),
    ],
)
def test_error_of_another_process_is_one_line_without_traceback(target, line):
    """Pickled errors lose their cause; in its place comes a text with the traceback of the other process."""
    section = Section({"_target_": target, "lr_factor": -1.0})
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        error = pool.submit(section.build).exception()
    assert isinstance(error, Exception) and one_line(error).startswith(line) and len(one_line(error)) < 300


def test_an_error_of_a_worker_of_torch_is_its_last_line():
    worker = "Caught ConfigError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  a\n"
    assert (
        one_line(bdl.ConfigError(f"{worker}bdl.errors.ConfigError: data.path=a is no image"))
        == "data.path=a is no image"
    )


@pytest.mark.parametrize(("error", "asked"), [
    (RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
                  "to allocate 40000000000 bytes. Error code 12 (Cannot allocate memory)"), " for 37.3 GiB at once"),
    (MemoryError(), ""),
])  # fmt: skip
def test_too_little_memory_names_what_takes_less(error, asked):
    assert one_line(error).startswith(f"there is no memory{asked}: take fewer chains (chains=1), smaller layers")


def test_ctrl_c_before_sampling_is_one_line_too(capsys):
    with pytest.raises(SystemExit) as error, one_line_errors():
        raise KeyboardInterrupt
    assert error.value.code == 130 and len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(("plugin", "extra"), [("sweeper/optuna", "sweep"), ("launcher/submitit_slurm", "cluster")])
def test_a_missing_extra_is_named(plugin, extra):
    """The text is Hydra's, for a plugin that is not installed."""
    text = f"In 'hydra/config': Could not find 'hydra/{plugin}'\n\nAvailable options in 'hydra/sweeper':\n\tbasic"
    assert f"pip install 'bdl[{extra}]'" in one_line(MissingConfigException(text))


def test_a_missing_logger_is_named(script, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "find_spec", lambda name: None)
    error = refusal(script("train", f"hydra.run.dir={tmp_path / 'run'}", "trainer=debug", *TINY, "logger=tensorboard"))
    assert "pip install 'bdl[tensorboard]'" in error
