"""Tests of `bdl.run.section` and `.predict` with an exposure: from the table to the predictions of a run."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from running import ON_TABLE, planned, sampled

import bdl
from bdl.data import read_table
from bdl.errors import ConfigError
from bdl.run.build import build_net


def claims(rows: int = 60) -> pd.DataFrame:
    random = np.random.RandomState(0)
    years = random.choice([0.1, 1.0, 2.0], rows)
    return pd.DataFrame({"age": random.rand(rows), "years": years, "claims": random.poisson(2 * years)})


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exposure")
    claims().to_csv(folder / "table.csv", index=False)
    of_data = (f"data.path={folder / 'table.csv'}", "data.target=claims", "data.exposure=years")
    sampled(folder / "run", *ON_TABLE, *of_data, "chains=2", steps=12)
    return folder / "run"


def of_stack(run: Path, *overrides: str):
    """The plan of a stack on the table of a run, and the data."""
    table = run.parent / "table.csv"
    data = read_table(table, "claims", exposure="years")
    of_data = ("data=csv", f"data.path={table}", "data.target=claims", "data.exposure=years")
    return planned(f"run_dir={run.parent / 'other'}", *of_data, *overrides).of_stack(0, data), data


def test_counts_are_predicted_for_the_exposure_of_each_row(run):
    rows = claims(6).drop(columns="claims")
    once, twice = (bdl.predict_table(run, rows.assign(years=rows["years"] * k)) for k in (1, 2))
    assert np.allclose(twice["mean"], 2 * once["mean"], rtol=1e-5)
    assert np.allclose(once["rate"], once["mean"] / rows["years"], rtol=1e-6)
    assert np.allclose(twice["rate"], once["rate"], rtol=1e-5)


def test_rows_without_the_exposure_are_refused(run):
    with pytest.raises(ConfigError, match="years: .* no such column"):
        bdl.predict_table(run, claims(6)[["age"]])
    with pytest.raises(ConfigError, match="the exposure is 0 in row 2 of the table"):
        bdl.predict_table(run, claims(6).assign(years=[1, 0, 1, 1, 1, 1]))


def test_a_law_without_a_rate_is_refused(run):
    with pytest.raises(ConfigError, match="data.exposure is the offset of a log rate, .*GaussianNLL"):
        of_stack(run, "loss._target_=bdl.GaussianNLL", "+loss.std=1.0")


def test_the_offset_is_no_input_of_the_network(run):
    for loss, outputs in ((), 1), (("loss=negative_binomial",), 2):
        stack, data = of_stack(run, *loss)
        net = build_net(stack.target, data)
        x, _ = data.items("train", 3)
        assert x.shape == (3, 2) and net(x).shape == (3, outputs)
        assert net.net[0].in_features == 1  # type: ignore[union-attr,index]
