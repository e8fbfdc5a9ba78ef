"""DataModule: the defaults of everything that bdl asks of data, and other LightningDataModules with these defaults."""

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from bdl.data import DataModule, TensorBatches, TensorDataModule, as_data_module
from bdl.errors import ConfigError

X, Y = torch.randn(30, 4), torch.arange(30) % 3


class Plain(L.LightningDataModule):
    """As Lightning's documentation writes one: nothing but its loaders, which `setup` makes."""

    def setup(self, stage):
        if stage in ("fit", "validate"):
            self.training, self.validation = TensorDataset(X[:20], Y[:20]), TensorDataset(X[20:24], Y[20:24])
        if stage == "test":
            self.testing = TensorDataset(X[24:], Y[24:])

    def train_dataloader(self):
        return DataLoader(self.training, batch_size=5, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.validation, batch_size=5)

    def test_dataloader(self):
        return DataLoader(self.testing, batch_size=5)


class Classes(Plain):
    num_classes = 3


class Moments(DataModule):
    """A data module of bdl that overrides nothing but what has no default."""

    task, num_targets = "regression", 2

    def train_dataloader(self):
        return TensorBatches(X, X[:, :2], batch_size=10)


def test_a_data_module_needs_no_more_than_training_batches():
    data = Moments()
    assert (data.num_data, data.num_classes, data.batch_size, data.input_shape) == (30, 0, 10, (4,))
    assert [data.count(split) for split in ("train", "val", "test")] == [30, 0, 0]
    assert not data.has("val") and not data.has("test")
    assert data.identity() == {} and data.preprocessing() is data.ood() is data.overview is data.target_units is None
    assert torch.equal(data.items("train", 3)[1], X[[0, 14, 29], :2])


def test_another_data_module_gets_defaults_and_keeps_its_own():
    plain = Classes()
    data = as_data_module(plain)
    assert isinstance(data, DataModule) and isinstance(data, Classes) and type(plain) is Classes
    assert (data.num_data, data.num_classes, data.batch_size, data.input_shape) == (20, 3, 5, (4,))
    assert [data.count(split) for split in ("train", "val", "test")] == [20, 4, 6]
    x, y = data.items("train")
    assert torch.equal(x, X[:20]) and torch.equal(y, Y[:20])
    assert torch.equal(data.items("val", 2)[0], X[[20, 23]])
    assert as_data_module(data) is data


@pytest.mark.parametrize(
    "ask, words",
    [
        (lambda: as_data_module(Plain()).num_classes, "Plain has no num_classes: give it the number of classes"),
        (lambda: Moments().slices("test"), r"Moments has no test_dataloader\(\): give it labelled batches"),
        (lambda: DataModule().num_data, r"DataModule has no train_dataloader\(\): give it a loader"),
        (lambda: as_data_module([X]), "list is no LightningDataModule: derive it from bdl.data.DataModule"),
        (lambda: Moments().shard(0, 2), "trainer=ddp shards the batches of a loader of bdl.data, got TensorBatches"),
        (lambda: Iterated().num_data, "Iterated has no num_data: give it the number of training items"),
        (lambda: Iterated().slices("train"), r"Iterated has no slices\(split, items\): give it the items of the split"),
        (
            lambda: Named().items("train"),
            r"Named has batches dict\(x: float32 \(30, 4\), y: int64 \(30,\)\): make them",
        ),
    ],
)
def test_what_a_data_module_lacks_is_named_in_one_line(ask, words):
    with pytest.raises(ConfigError, match=words) as refusal:
        ask()
    assert "\n" not in str(refusal.value)


class Iterated(DataModule):
    def train_dataloader(self):
        return [(X, Y)]


class Named(DataModule):
    def train_dataloader(self):
        return DataLoader([{"x": x, "y": y} for x, y in zip(X, Y, strict=True)], batch_size=30)


def test_tensors_are_sharded_between_ranks():
    data = TensorDataModule({"train": (X, Y), "test": (X, Y)}, batch_size=10)
    data.shard(1, 2)
    assert len(data.train_dataloader()) == 1


class Unready(DataModule):
    def train_dataloader(self):
        return self.made_by_setup


def test_a_data_module_prints_what_it_holds_in_one_line():
    splits = {"train": (X[:20], Y[:20]), "test": (X[20:], Y[20:])}
    assert str(TensorDataModule(splits)) == "TensorDataModule: 20 train, 10 test"
    assert str(as_data_module(Plain())) == "Plain: 20 train, 4 val, 6 test"
    assert str(Unready()) == "Unready: train unknown"
