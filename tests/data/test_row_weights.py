"""Tests of `bdl.data.table`, `.repeated` and `.exposure`: weights in the labels, and which are refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from bdl.data.table import TableDataModule, read_table
from bdl.errors import ConfigError

ROWS = 40


def rows() -> pd.DataFrame:
    random = np.random.RandomState(0)
    frame = pd.DataFrame({"x": random.randn(ROWS), "w": random.choice([1.0, 2.0, 3.0], ROWS)})
    return frame.assign(y=frame["x"] + random.randn(ROWS), kind=random.choice(["a", "b", "c"], ROWS))


def module(folder: Path, frame: pd.DataFrame, target: str = "y", **settings: Any) -> TableDataModule:
    path = folder / "rows.csv"
    frame.to_csv(path, index=False)
    arguments: Any = {"target": target, "weight": "w", "drop": ["kind"] if target == "y" else ["y"], **settings}
    return read_table(path, **arguments)


@pytest.mark.parametrize("target", ["y", "kind"])
def test_labels_carry_the_weights_of_their_rows(tmp_path, target):
    data, plain = module(tmp_path, rows(), target), module(tmp_path, rows().drop(columns="w"), target, weight=None)
    test = np.sort(np.random.RandomState(0).permutation(ROWS)[:8])
    for split, at in (("train", np.setdiff1d(np.arange(ROWS), test)), ("test", test)):
        (x, y), (x_plain, y_plain) = data.tensors(split), plain.tensors(split)
        assert torch.equal(x, x_plain) and torch.equal(y[:, :-1].flatten(), y_plain.flatten().float())
        assert y[:, -1].tolist() == rows()["w"][at].tolist()
    of_plain = plain.num_data, plain.num_targets, plain.num_classes, plain.batch_size
    assert (data.num_data, data.num_targets, data.num_classes, data.batch_size) == of_plain
    assert data.weighted and not plain.weighted and data.identity() != plain.identity()
    total = rows()["w"].drop(index=test).sum()
    assert f"w weighs rows: those for training count as {total:g}" in (data.overview or "")
    (_, batch), *_ = data.with_batches(5, chains=2).train_dataloader()
    assert batch.shape == (2, 5, 2)


@pytest.mark.parametrize(("value", "said"), [(0.0, "is 0"), (-1.0, "is -1"), (math.nan, "is missing")])
def test_weights_not_above_0_are_refused(tmp_path, value, said):
    frame = rows()
    frame.loc[3, "w"] = value
    with pytest.raises(ConfigError, match=rf"data.weight=w: the weight {said} in row 4 .* above 0 .*leave these rows"):
        module(tmp_path, frame)


def test_a_weight_with_another_use_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="data.drop names w, which is the weight"):
        module(tmp_path, rows(), drop=["kind", "w"])
    with pytest.raises(ConfigError, match="data.weight names y, which is the target"):
        module(tmp_path, rows(), weight="y")
