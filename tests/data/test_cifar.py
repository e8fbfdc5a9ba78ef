"""CIFAR: small files in the original format, refused input, both loaders, and the experiments."""

import json
import pickle
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import safetensors.torch
import torch
from cifar_files import PER_FILE, TEST, Folder, images, python2, write_file
from composing import CONF, compose
from hydra.utils import instantiate
from omegaconf import DictConfig
from repeats import slow_where
from torch import Tensor
from torchvision.datasets import CIFAR10

from bdl.data import Augment, CIFARDataModule, cifar
from bdl.data.cifar import PIXELS, load_cifar
from bdl.errors import ConfigError, StoreError
from bdl.run.config import register_resolvers

EXPERIMENTS = [f"{p.parent.name}/{p.stem}" for p in sorted((CONF / "experiment").glob("cifar*/*.yaml"))]


@pytest.fixture(params=[10, 100])
def folder(request, tmp_path, monkeypatch):
    return Folder(tmp_path, monkeypatch, request.param)


@pytest.fixture
def ten(tmp_path, monkeypatch):
    return Folder(tmp_path, monkeypatch)


def everything(loader) -> tuple[Tensor, Tensor]:
    x, y = zip(*loader, strict=True)
    return torch.cat(x), torch.cat(y)


def test_images_and_labels_are_those_of_the_files_in_their_order(folder):
    module = CIFARDataModule(folder.root, folder.classes, batch_size=5)
    for split in ("train", "test"):
        x, y = module.tensors(split)
        assert x.dtype == torch.uint8 and y.dtype == torch.int64
        assert torch.equal(x, torch.from_numpy(folder.x[split])) and y.tolist() == folder.y[split]


def test_classes_have_their_names(folder):
    names = CIFARDataModule(folder.root, folder.classes, batch_size=5).class_names
    known = {10: {0: "airplane", 3: "cat", 9: "truck"}, 100: {0: "apple", 8: "bicycle", 49: "mountain", 99: "worm"}}
    assert len(set(names)) == folder.classes and known[folder.classes].items() <= dict(enumerate(names)).items()


def test_torchvision_reads_the_same(folder, monkeypatch):
    meta = folder.source.meta  # torchvision reads the class names too
    md5 = write_file(folder.folder / meta["filename"], pickle.dumps({meta["key"]: ["what"]}, protocol=2))
    monkeypatch.setattr(folder.source, "meta", meta | {"md5": md5})
    ours = load_cifar(folder.root, folder.classes)
    for split in ("train", "test"):
        theirs = folder.source(folder.root, train=split == "train")
        assert np.array_equal(theirs.data.transpose(0, 3, 1, 2), ours[f"x_{split}"].numpy())
        assert theirs.targets == ours[f"y_{split}"].tolist()


def test_files_of_a_newer_pickle_are_read_too(ten):
    content = {"data": ten.x["test"].reshape(TEST, 3072), "labels": ten.y["test"]}
    ten.replace("test_batch", pickle.dumps(content, protocol=4))
    assert torch.equal(load_cifar(ten.root, 10)["x_test"], torch.from_numpy(ten.x["test"]))


def test_the_decoded_copy_is_read_without_the_files(folder):
    first = load_cifar(folder.root, folder.classes)
    for path in folder.folder.iterdir():
        path.unlink()
    again = load_cifar(folder.root, folder.classes)
    assert all(torch.equal(first[k], again[k]) for k in ("x_train", "y_train", "x_test", "y_test"))


def test_the_decoded_copy_can_lie_elsewhere(ten, tmp_path):
    load_cifar(ten.root, 10, cache=tmp_path / "cache" / "here")
    assert [p.suffix for p in (tmp_path / "cache" / "here").iterdir()] == [".safetensors"]
    assert not list(ten.root.glob("*.safetensors"))


def test_a_copy_of_other_files_is_not_used(ten):
    load_cifar(ten.root, 10)
    ten.x["test"] = images(TEST, 3)
    ten.write()
    assert torch.equal(load_cifar(ten.root, 10)["x_test"], torch.from_numpy(ten.x["test"]))


def test_a_copy_cut_short_is_replaced(ten):
    first = load_cifar(ten.root, 10)
    (path,) = ten.root.glob("*.safetensors")
    whole = path.read_bytes()
    del first
    path.write_bytes(whole[:-100])
    assert torch.equal(load_cifar(ten.root, 10)["x_train"], torch.from_numpy(ten.x["train"]))
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "change",
    [
        {"y_train": torch.full((60,), 10, dtype=torch.uint8)},
        {"y_test": torch.zeros(TEST + 1, dtype=torch.uint8)},
        {"x_test": torch.zeros(TEST, 28, 28, dtype=torch.uint8)},
    ],
    ids=["labels outside", "labels too many", "other images"],
)
def test_a_copy_of_something_else_is_replaced(ten, change):
    load_cifar(ten.root, 10)
    (path,) = ten.root.glob("*.safetensors")
    whole = path.read_bytes()
    path.write_bytes(safetensors.torch.save(safetensors.torch.load(whole) | change))
    assert torch.equal(load_cifar(ten.root, 10)["x_test"], torch.from_numpy(ten.x["test"]))
    assert path.read_bytes() == whole


def test_a_copy_that_cannot_be_written_is_left_out(ten, monkeypatch):
    def full(*_):
        raise StoreError("no space")

    monkeypatch.setattr(cifar, "write_atomically", full)
    assert len(load_cifar(ten.root, 10)["x_test"]) == TEST
    (ten.root / "file").write_text("not a folder")
    assert len(load_cifar(ten.root, 10, cache=ten.root / "file" / "cache")["x_test"]) == TEST


class Evil:
    def __reduce__(self):
        return (open, ("evil", "w"))


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_file_cannot_run_anything(ten, monkeypatch, tmp_path, protocol):
    monkeypatch.chdir(tmp_path)
    ten.replace("data_batch_1", pickle.dumps({"data": Evil(), "labels": [0]}, protocol=protocol))
    with pytest.raises(ConfigError, match="asks for _*io.open, which no CIFAR file needs"):
        load_cifar(ten.root, 10)
    assert not (tmp_path / "evil").exists()


def test_a_file_is_not_unpickled_before_its_checksum(ten, monkeypatch):
    monkeypatch.setattr(cifar, "_Unpickler", None)
    (ten.folder / "data_batch_1").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ConfigError, match="data_batch_1 is cut short or altered"):
        load_cifar(ten.root, 10)


def refused(*arguments, **named) -> str:
    with pytest.raises(ConfigError) as error:
        CIFARDataModule(*arguments, **named)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_a_root_without_the_data_says_where_it_looked(tmp_path):
    message = refused(tmp_path / "nowhere")
    assert (
        str(tmp_path / "nowhere") in message and "set data.root to the folder that holds cifar-10-batches-py" in message
    )
    assert "data.download=true" in message
    assert "cifar-100-python" in refused(tmp_path, "cifar100")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_named(ten):
    (ten.folder / "data_batch_3").unlink()
    assert "cifar-10-batches-py/data_batch_3 is missing" in refused(ten.root)


@pytest.mark.parametrize("name", ["data_batch_4", "test_batch"])
def test_a_file_cut_short_is_named(ten, name):
    path = ten.folder / name
    path.write_bytes(path.read_bytes()[:-1000])
    message = refused(ten.root)
    assert f"{path} is cut short or altered, " in message and "data.download=true" in message
    assert not list(ten.root.glob("*.safetensors"))


def test_labels_outside_the_classes_are_refused(ten):
    ten.y["train"][30] = 10
    ten.write()
    assert "to 10, outside of its 10 classes: replace it" in refused(ten.root)
    assert not list(ten.root.glob("*.safetensors"))


def test_images_without_labels_are_refused(ten):
    ten.replace("data_batch_1", python2(ten.x["train"][:PER_FILE], [1] * (PER_FILE - 1), "labels"))
    assert f"holds {PER_FILE} images and {PER_FILE - 1} labels" in refused(ten.root)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(classes=20), "classes must be 10 or 100, got 20"),
        (dict(val_fraction=0.999), "val_fraction = 0.999 holds out all of the 60 items"),
        (dict(val_fraction=1.0), "val_fraction must be in [0, 1), got 1.0"),
        (dict(loader="dali"), 'loader must be "tensor" or "torch", got \'dali\''),
        (dict(batch_size=61), "batch_size must be between 1 and the 60 training items, got 61"),
        (dict(batch_size=61, loader="torch"), "batch_size must be between 1 and the 60 training items, got 61"),
    ],
    ids=str,
)
def test_arguments_out_of_range_are_refused(ten, arguments, words):
    assert words in refused(ten.root, **arguments)


def test_data_are_downloaded_where_that_is_allowed(tmp_path, monkeypatch):
    source = Folder(tmp_path / "web", monkeypatch)
    asked = []

    def fetch(url, root, filename, md5):
        asked.append((url, root, filename, md5))
        source.folder.rename(Path(root) / source.source.base_folder)

    (tmp_path / "here").mkdir()
    monkeypatch.setattr(cifar, "download_and_extract_archive", fetch)
    module = CIFARDataModule(tmp_path / "here", download=True, batch_size=5)
    assert asked == [(CIFAR10.url, str(tmp_path / "here"), CIFAR10.filename, CIFAR10.tgz_md5)]
    assert module.num_data == 60
    CIFARDataModule(tmp_path / "here", download=True, batch_size=5)
    assert len(asked) == 1


def test_a_failed_download_is_one_line(tmp_path, monkeypatch):
    def fetch(*_, **__):
        raise URLError("no\nnetwork")

    monkeypatch.setattr(cifar, "download_and_extract_archive", fetch)
    message = refused(tmp_path, download=True)
    assert "CIFAR10 cannot be downloaded" in message and "no network" in message and "set data.root" in message


def test_evaluation_sees_the_images_normalised_and_as_they_are(folder):
    module = CIFARDataModule(folder.root, folder.classes, 5, augment=Augment(erase=0.5))
    for split in ("train", "test"):
        x, y = everything(module.slices(split))
        assert torch.equal(x, module.transform(torch.from_numpy(folder.x[split])))
        assert y.tolist() == folder.y[split]
    assert torch.equal(everything(module.train_dataloader().slices())[0], everything(module.slices("train"))[0])
    assert module.num_classes == folder.classes and module.num_data == len(folder.x["train"])
    assert everything(module.test_dataloader())[1].tolist() == folder.y["test"]
    assert module.val_dataloader() == []


@pytest.mark.parametrize("channels_last", [True, False])
def test_inputs_are_laid_out_as_asked(ten, channels_last):
    module = CIFARDataModule(ten.root, batch_size=5, chains=2, augment=Augment(), channels_last=channels_last)
    one_chain, test = next(iter(module.train_dataloader()))[0][1], next(iter(module.slices("test")))[0]
    for x in (one_chain, test):
        assert x.is_contiguous(memory_format=torch.channels_last) is channels_last
        assert x.is_contiguous() is not channels_last


def test_pixels_are_normalised_by_channel(folder):
    module, (mean, std) = CIFARDataModule(folder.root, folder.classes, 5), PIXELS[folder.classes]
    x, _ = everything(module.slices("test"))
    for c in range(3):
        expected = (torch.from_numpy(folder.x["test"])[:, c] / 255 - mean[c]) / std[c]
        torch.testing.assert_close(x[:, c], expected, atol=1e-5, rtol=1e-5)


def test_split_seed_alone_chooses_what_is_held_out(ten):
    def val(**named) -> Tensor:
        return CIFARDataModule(ten.root, val_fraction=0.25, **{"batch_size": 5, **named}).tensors("val")[0]

    assert torch.equal(val(), val(seed=5, stack=3, batch_size=7, chains=2, augment=Augment()))
    assert not torch.equal(val(), val(split_seed=1))
    module = CIFARDataModule(ten.root, batch_size=5, val_fraction=0.25)
    assert module.num_data == 45 and len(everything(module.val_dataloader())[1]) == 15
    both = torch.cat([module.tensors(split)[0] for split in ("train", "val")])
    assert {t.numpy().tobytes() for t in both} == {i.tobytes() for i in ten.x["train"]}


def test_augmentation_reaches_the_training_batches(ten):
    plain, changed = (
        next(iter(CIFARDataModule(ten.root, batch_size=60, augment=a).train_dataloader())) for a in (None, Augment())
    )
    assert torch.equal(plain[1], changed[1]) and not torch.equal(plain[0], changed[0])


def test_svhn_is_there_where_its_file_is(ten):
    module = CIFARDataModule(ten.root, batch_size=5)
    assert module.ood() is None
    x = torch.from_numpy(ten.write_svhn())
    inputs, y = everything(module.ood())
    assert torch.equal(inputs, module.transform(x)) and y.tolist() == [1, 0, 9, 2, 0, 5]
    path = ten.root / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ConfigError, match="test_32x32.mat is cut short"):
        module.ood()


@pytest.mark.parametrize("chains", [None, 2])
def test_a_dataloader_makes_the_same_batches(ten, chains):
    named = dict(batch_size=8, chains=chains, augment=Augment(erase=0.5), seed=3)
    ours, theirs = (CIFARDataModule(ten.root, loader=loader, **named) for loader in ("tensor", "torch"))
    assert theirs.num_data == len(theirs.train_dataloader().dataset) == 60
    for _ in range(2):  # epochs
        for (x, y), (u, v) in zip(ours.train_dataloader(), theirs.train_dataloader(), strict=True):
            assert torch.equal(x, u) and torch.equal(y, v)
    assert torch.equal(everything(theirs.train_dataloader().slices())[0], everything(ours.slices("train"))[0])


def configured(experiment: str, steps: int = -1) -> DictConfig:
    register_resolvers()
    cfg = compose("run_dir=x", f"experiment={experiment}")
    cfg.steps = steps
    return cfg


STEPS = 500 * 195  # 500 epochs of CIFAR at batch 256


def test_every_cell_of_the_table_has_its_experiment():
    cells = [f"{s}_{m}" for s in ("fixed", "decay", "decay_both") for m in ("msgd", "sghmc", "awsghmc")]
    hot = [f"{s}_hot_{m}" for s in ("fixed", "decay", "decay_both") for m in ("sghmc", "awsghmc")]
    expected = {f"{d}/{c}" for d in ("cifar10", "cifar100") for c in [*cells, *hot, "csgmcmc"]}
    more = ("cnn_sgd", "cnn_sgld", "cnn_csgmcmc", "cnn_csgmcmc_temp", "hmc_reference")
    assert set(EXPERIMENTS) == expected | {f"cifar10/{name}" for name in more}


@pytest.mark.parametrize("experiment", slow_where(lambda experiment: "decay_" in experiment, EXPERIMENTS))
def test_every_experiment_is_whole(experiment):
    """Its length is in epochs, all parts agree on the number of classes, and a short run keeps samples too."""
    cfg = configured(experiment)
    assert cfg.trainer.max_steps == -1 and cfg.trainer.max_epochs > 0 and cfg.chains == 1
    classes = int(experiment.split("/")[0].removeprefix("cifar"))
    assert cfg.data.classes == classes and instantiate(cfg.model)(torch.zeros(2, 3, 32, 32)).shape == (2, classes)
    epoch = 50_000 // cfg.data.batch_size
    for steps in (epoch, cfg.trainer.max_epochs * epoch):
        cfg = configured(experiment, steps)
        assert 0 < instantiate(cfg.collect.keep).count(steps) <= 100
        functions = [instantiate(cfg.schedule[name]) for name in ("lr", "temperature")]
        assert all(f(k) >= 0 for f in functions for k in (0, steps // 2, steps - 1))


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
@pytest.mark.parametrize("sampler", ["msgd", "sghmc", "awsghmc"])
def test_the_tables_settings(data, sampler):
    for schedule in ("fixed", "decay", "decay_both"):
        cfg = configured(f"{data}/{schedule}_{sampler}", STEPS)
        assert (cfg.data.batch_size, cfg.trainer.max_epochs) == (256, 500)
        assert (cfg.data.augment.crop, cfg.data.augment.flip, cfg.data.augment.erase) == (4, True, 0.5)
        assert (cfg.model.depth, cfg.model.shortcut, cfg.sampler.prior.precision) == (20, "B", 25)
        assert cfg.sampler._target_ == "bdl.Sampler"
        lr, temperature = (instantiate(cfg.schedule[name]) for name in ("lr", "temperature"))
        falls, cools = schedule != "fixed", schedule == "decay_both"
        # Where batches rule and lr stays, it is over the square of the multiplier, 2.35: see docs/cifar.md
        start = 0.018 if (data, schedule, sampler) == ("cifar10", "fixed", "awsghmc") else 0.1
        for epoch in (0, 100, 200, 250, 300, 400, 500):
            k = 195 * epoch
            assert lr(k) == pytest.approx(start * 0.984 ** (max(0, epoch - 200) * falls), rel=1e-3)
            expected = 0.01 / 1.02 ** (min(epoch, 300) * cools) * (sampler != "msgd")
            assert temperature(k) == pytest.approx(expected, rel=1e-3)
        keep = instantiate(cfg.collect.keep)
        assert [k // 195 for k in range(STEPS + 1) if keep(k)] == list(range(401, 501))


def test_cyclical_settings_are_the_authors():
    cfg = configured("cifar10/csgmcmc", 200 * 781)
    cycle, lr, temperature = (instantiate(cfg.schedule[name]) for name in ("cycle", "lr", "temperature"))
    assert (cfg.data.batch_size, cycle.length, lr(0), lr(50 * 781)) == (64, 50 * 781, 0.5, 0.5)
    noisy = [e for e in range(50) if temperature(e * 781 + 400) > 0]
    assert noisy == [45, 46, 47, 48, 49] and cfg.sampler.dynamics.friction == 0.9
    assert instantiate(cfg.collect.keep).count(200 * 781) == 12


def test_lightning_post_with_and_without_noise_while_exploring():
    for name, exploring in (("cnn_csgmcmc", 1.0), ("cnn_csgmcmc_temp", 0.0)):
        cfg = configured(f"cifar10/{name}", 156_200)
        temperature = instantiate(cfg.schedule.temperature)
        assert [temperature(k) for k in (100, 31_000 // 2 + 1000)] == [exploring, 1.0]


def test_the_hmc_reference_is_that_posterior(ten):
    cfg = configured("cifar10/hmc_reference")
    cfg.data.root, cfg.data.batch_size = str(ten.root), 5
    assert cfg.data.augment is None and (cfg.sampler.prior.precision, cfg.sampler.temperature) == (5, 1.0)
    assert 50_000 - round(cfg.data.val_fraction * 50_000) == 40_960
    assert cfg.sampler.lr == pytest.approx(3e-7 * 40_960, rel=2e-3)
    assert list(instantiate(cfg.model).buffers()) == []  # no batch statistics
    assert instantiate(cfg.data).num_data == 60 - round(60 * 0.1808)


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(("experiment=cifar10/decay_both_awsghmc", "model.depth=8"), marks=pytest.mark.slow),
        ("experiment=cifar10/cnn_csgmcmc_temp", "data.loader=torch", "data.workers=0"),
    ],
    ids=["images on the device", "loader=torch"],
)
@pytest.mark.usefixtures("unwritten_pictures")
def test_an_experiment_runs_from_the_command_line(ten, tmp_path, script, overrides):
    """The run counts epochs and writes metrics and a report."""
    small = ("trainer=cpu", "trainer.max_epochs=10", "data.batch_size=10", "logger=none", "threads=1")
    cycles = ("schedule.cycle.cycles=2", "collect.keep.samples_per_cycle=2") if "cnn" in overrides[0] else ()
    where = (f"data.root={ten.root}", f"hydra.run.dir={tmp_path / 'run'}")
    assert script("train", *overrides, *small, *cycles, *where)[0] == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["samples"] == (4 if cycles else 1)
    assert 0 <= metrics["test/bma/accuracy"] <= 1 and (tmp_path / "run" / "report.html").exists()
