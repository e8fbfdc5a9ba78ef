"""Statlog (Landsat Satellite) of the UCI Machine Learning Repository. The package holds the data."""

from __future__ import annotations

from importlib.resources import files
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from bdl.data.loader import Batching
from bdl.data.split import hold_out
from bdl.data.tensors import TensorDataModule

CLASSES = (
    "red soil",
    "cotton crop",
    "grey soil",
    "damp grey soil",
    "soil with vegetation stubble",
    "very damp grey soil",
)
_LABELS = torch.tensor([1, 2, 3, 4, 5, 7])  # class 6, "mixture", does not occur


def load_landsat() -> dict[str, Tensor]:
    """x_train (4435, 36), x_test (2000, 36) float32 in [0, 255]; y_train (4435,), y_test (2000,) int64 in 0..5.

    The 36 features are 4 spectral bands of a 3x3 neighbourhood, the label is the class of its central pixel: see
    data/files/README.md.
    """
    with np.load(files("bdl.data") / "files" / "landsat.npz", allow_pickle=False) as archive:  # type: ignore[arg-type]
        arrays = {name: torch.from_numpy(archive[name]) for name in archive.files}
    for split in ("train", "test"):
        arrays[f"x_{split}"] = arrays[f"x_{split}"].float()
        arrays[f"y_{split}"] = torch.searchsorted(_LABELS, arrays[f"y_{split}"].long())
    return arrays


class LandsatDataModule(TensorDataModule):
    """Landsat: 4,435 training and 2,000 test rows, standardised by the training rows' mean and standard deviation.

    Args:
        batch_size: rows per chain and step; None means all rows.
        val_fraction: share of the training rows held out.
        split_seed, fold: which rows are held out, as in `hold_out`. Nothing else decides it.
        batching: chains, seed, stack and replacement, as in `TensorBatches`.

    Raises ConfigError for a fraction, a fold or a batch size out of range.
    """

    name = "landsat"

    def __init__(
        self,
        batch_size: int | None = 100,
        val_fraction: float = 0.0,
        split_seed: int = 0,
        fold: int = 0,
        **batching: Unpack[Batching],
    ):
        data = load_landsat()
        kept, held_out = hold_out(len(data["y_train"]), val_fraction, split_seed, fold)
        mean, std = data["x_train"][kept].mean(0), data["x_train"][kept].std(0)
        splits = {
            "train": ((data["x_train"][kept] - mean) / std, data["y_train"][kept]),
            "val": ((data["x_train"][held_out] - mean) / std, data["y_train"][held_out]),
            "test": ((data["x_test"] - mean) / std, data["y_test"]),
        }
        super().__init__(splits, batch_size=batch_size, labels=CLASSES, **batching)
