"""Tests of `bdl.data.module`.

TensorDataModule: splits, labels and tasks that fit each other, or one line that says why not.
"""

import pytest
import torch

from bdl.data import TensorDataModule
from bdl.errors import ConfigError

X, CLASSES, NUMBERS = torch.randn(30, 4), torch.arange(30) % 3, torch.randn(30, 2)


def splits(y: torch.Tensor, **others) -> dict:
    return {"train": (X[:20], y[:20]), "test": (X[20:], y[20:]), **others}


def test_tensors_of_ones_own_need_no_more_than_their_splits():
    data = TensorDataModule(splits(CLASSES), batch_size=5, chains=2)
    assert (data.num_data, data.num_classes, data.num_targets, data.input_shape) == (20, 3, 1, (4,))
    assert data.labels == ("0", "1", "2") and data.val_dataloader() == [] and data.name == "TensorDataModule"
    assert next(iter(data.train_dataloader()))[0].shape == (2, 5, 4)
    assert torch.equal(next(iter(data.test_dataloader()))[1], CLASSES[20:])
    assert data.identity() == {} and data.preprocessing() is None


def test_numbers_have_no_classes():
    data = TensorDataModule(splits(NUMBERS), task="regression")
    assert (data.num_classes, data.num_targets, data.batch_size) == (0, 2, 20)


def test_the_network_sees_transformed_inputs():
    data = TensorDataModule(splits(CLASSES), transform=lambda x: x[:, :3] * 2)
    assert data.input_shape == (3,)
    assert torch.equal(next(iter(data.slices("test")))[0], X[20:, :3] * 2)


BAD = {
    "no test": ({"train": (X, CLASSES)}, {}, 'the split "test" has no items'),
    "empty": ({"train": (X[:0], CLASSES[:0]), "test": (X, CLASSES)}, {}, 'the split "train" has no items'),
    "lengths": (splits(CLASSES, val=(X, CLASSES[:3])), {}, 'the split "val" has 30 inputs for 3 labels'),
    "task": (splits(CLASSES), {"task": "ranking"}, "task must be classification, regression or counts, got 'ranking'"),
    "numbers": (splits(NUMBERS), {}, r"are \(20, 2\) torch.float32: task=classification takes classes \(n,\) int64"),
    "classes": (splits(CLASSES), {"task": "regression"}, r"task=regression takes numbers \(n, k\) float32"),
    "few names": (splits(CLASSES), {"labels": ["a", "b"]}, "labels go from 0 to 2, outside of 2 classes"),
    "negative": (splits(CLASSES - 1), {}, "labels go from -1 to 1"),
    "batch": (splits(CLASSES), {"batch_size": 21}, "batch_size must be between 1 and the 20 training items, got 21"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_refused(name):
    given, settings, words = BAD[name]
    with pytest.raises(ConfigError, match=words):
        TensorDataModule(given, **settings)
