"""Landsat: shapes, classes, standardisation and the validation split."""

from collections import Counter
from importlib.resources import files

import torch

from bdl.data.landsat import CLASSES, LandsatDataModule, load_landsat

TRAIN_COUNTS = [1072, 479, 961, 415, 470, 1038]  # from sat.doc of the UCI repository
TEST_COUNTS = [461, 224, 397, 211, 237, 470]


def rows(x: torch.Tensor, y: torch.Tensor) -> Counter:
    return Counter((*features, label) for features, label in zip(x.tolist(), y.tolist(), strict=True))


def test_the_package_holds_the_data():
    assert (files("bdl.data") / "files" / "landsat.npz").is_file()
    assert "CC BY 4.0" in (files("bdl.data") / "files" / "README.md").read_text()


def test_rows_features_and_class_counts_are_those_of_the_donor():
    data = load_landsat()
    assert data["x_train"].shape == (4435, 36) and data["x_test"].shape == (2000, 36)
    assert data["y_train"].bincount().tolist() == TRAIN_COUNTS
    assert data["y_test"].bincount().tolist() == TEST_COUNTS
    assert len(CLASSES) == LandsatDataModule().num_classes == 6
    assert data["x_train"].dtype == torch.float32 and data["y_train"].dtype == torch.int64


def test_the_training_rows_alone_decide_the_standardisation():
    module, raw = LandsatDataModule(), load_landsat()
    x, _ = module.tensors("train")
    torch.testing.assert_close(x.mean(0), torch.zeros(36), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.std(0), torch.ones(36), atol=1e-4, rtol=0)
    expected = (raw["x_test"] - raw["x_train"].mean(0)) / raw["x_train"].std(0)
    torch.testing.assert_close(module.tensors("test")[0], expected)


def test_held_out_rows_have_no_part_in_the_statistics():
    module = LandsatDataModule(val_fraction=0.25)
    train, val = (module.tensors(split)[0] for split in ("train", "val"))
    torch.testing.assert_close(train.mean(0), torch.zeros(36), atol=1e-4, rtol=0)
    assert val.mean(0).abs().max() > 1e-3
    assert module.num_data == len(train) == 4435 - len(val) == 4435 - 1109


def test_train_and_val_hold_every_training_row_once():
    module, data = LandsatDataModule(val_fraction=0.25), load_landsat()
    z, raw = module.tensors("test")[0].double(), data["x_test"].double()
    std = raw.std(0) / z.std(0)  # the standardisation, computed from the known test rows
    mean = raw.mean(0) - std * z.mean(0)
    x, y = (torch.cat([module.tensors(split)[i] for split in ("train", "val")]) for i in (0, 1))
    assert rows((x.double() * std + mean).round(), y) == rows(data["x_train"], data["y_train"])


def test_folds_hold_out_every_row_once():
    folds = [LandsatDataModule(val_fraction=0.25, fold=k) for k in range(4)]
    labels = torch.cat([fold.tensors("val")[1] for fold in folds])
    assert torch.equal(labels.bincount(), load_landsat()["y_train"].bincount())
    assert len({tuple(fold.tensors("val")[1].tolist()) for fold in folds}) == 4
    assert [fold.num_data + len(fold.tensors("val")[1]) for fold in folds] == [4435] * 4
