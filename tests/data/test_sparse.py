"""Tests of `bdl.data.sparse`: which inputs of a wide table are kept, and where all are."""

import numpy as np
import pandas as pd
import pytest
import torch

from bdl.data.sparse import FOLDS, _ridge, few_inputs
from bdl.data.table import read_table
from bdl.errors import ConfigError

ROWS, INPUTS = 100, 250


def made(weights: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(ROWS, INPUTS)).astype(np.float32)
    return x, x[:, : len(weights)] @ weights + random.normal(size=ROWS)


def test_a_few_strong_inputs_are_found_among_many():
    x, z = made(np.array([3.0, -2.0, 2.5]))
    found = few_inputs(x, z[:, None])
    assert found is not None and {0, 1, 2} <= set(found[0]) and len(found[0]) < 20
    assert found[1][0] > 0.7 > found[1][1] + 0.2  # the shares that lasso and ridge explain
    gaps = np.where(np.arange(ROWS) % 4, z, np.nan)
    both = few_inputs(x, np.column_stack([gaps, x[:, 7] + 0.1 * z]))
    assert both is not None and {0, 1, 2, 7} <= set(both[0])
    classes = np.digitize(z, [-2, 2])
    classes[:3] = -100
    of_classes = few_inputs(x, classes[:, None])
    assert of_classes is not None and {0, 1, 2} <= set(of_classes[0])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_all_inputs_stay_where_a_ridge_is_as_good(seed):
    """Nothing to find, a little in each of many inputs, and inputs that all say the same."""
    random = np.random.default_rng(seed)
    for weights in (np.zeros(1), 0.2 * random.normal(size=INPUTS)):
        x, z = made(weights, seed)
        assert few_inputs(x, z[:, None]) is None
    hidden = random.normal(size=(ROWS, 3))
    alike = (hidden @ random.normal(size=(3, INPUTS)) + 0.3 * random.normal(size=(ROWS, INPUTS))).astype(np.float32)
    assert few_inputs(alike, (hidden[:, :1] + 0.3 * random.normal(size=(ROWS, 1)))) is None


def test_few_rows_and_few_groups_tell_nothing():
    x, z = made(np.array([3.0, -2.0, 2.5]))
    assert few_inputs(x[:20], z[:20, None]) is None
    assert few_inputs(x, z[:, None], np.arange(ROWS) % 4) is None
    assert few_inputs(x, z[:, None], np.arange(ROWS) // 2) is not None


def test_the_errors_of_the_ridge_are_those_of_its_normal_equations():
    x, z = made(np.array([1.0, 1.0]))
    x, folds = x[:, :30].astype(np.float64), np.arange(ROWS) % FOLDS
    scale = np.square(x).sum() / ROWS
    best = min(
        (
            np.array(
                [
                    np.square(
                        x[folds == k]
                        @ np.linalg.solve(
                            x[folds != k].T @ x[folds != k] + a * scale * np.eye(30),
                            x[folds != k].T @ (z[folds != k] - z[folds != k].mean()),
                        )
                        + z[folds != k].mean()
                        - z[folds == k]
                    ).mean()
                    for k in range(FOLDS)
                ]
            )
            for a in np.logspace(-2, 4, 13)
        ),
        key=np.mean,
    )
    np.testing.assert_allclose(_ridge(x, z, folds), best, rtol=1e-8)


def test_a_wide_table_keeps_the_columns_and_says_so(tmp_path):
    x, z = made(np.array([3.0, -2.0, 2.5]))
    frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(INPUTS)])
    frame["x1"] = np.where(frame["x1"] > 0, "high", "low")  # a category keeps all its inputs
    frame.assign(y=z + 3 * (frame["x1"] == "low")).to_csv(tmp_path / "wide.csv", index=False)
    data = read_table(tmp_path / "wide.csv", "y")
    assert {"x0", "x1", "x2"} <= set(data.encoding.inputs.names) and len(data.encoding.inputs.names) < 30
    assert "250 columns as" in str(data.overview) and "a lasso keeps" in str(data.overview)
    every = read_table(tmp_path / "wide.csv", "y", select="all")
    assert every.input_shape == (252,) and "lasso" not in str(every.overview)
    rows = frame.iloc[:5].assign(y=0.0)
    x = data.encoding.encode(rows, "", "rows")
    assert x.shape[1:] == data.input_shape
    place = {name: j for j, name in enumerate(every.encoding.inputs.names)}["x0"]
    assert torch.equal(
        x[:, list(data.encoding.inputs.names).index("x0")], every.encoding.encode(rows, "", "rows")[:, place]
    )
    with pytest.raises(ConfigError, match="data.select must be auto or all, got 'some'"):
        read_table(tmp_path / "wide.csv", "y", select="some")  # type: ignore[arg-type]
