"""Tests of `bdl.law.measure`: a run whose thermostat lies, and one that is right, as their reports tell them."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.data import TensorBatches
from bdl.data.slices import TensorSlices
from bdl.law.directions import DirectionTemperature
from bdl.law.exact import ExactPotential
from bdl.law.measure import LawMeasurement
from bdl.law.thermometer import GRADIENTS, TEMPERATURE_SHARE, Thermometer

N, D = 400, 10


def linear_problem():
    """Inputs whose variances span a factor of 400, and a target with noise of variance 1."""
    random = torch.Generator().manual_seed(3)
    x = torch.randn(N, D, generator=random) * torch.logspace(0.6, -0.7, D)
    y = x @ torch.randn(D, 1, generator=random) + torch.randn(N, 1, generator=random)
    return x, y


def metrics_of(folder, dynamics, lr, batch_size, steps=4000, **more):
    x, y = linear_problem()
    loader = TensorBatches(x, y, batch_size, chains=8, replacement=batch_size < N)
    net = nn.Linear(D, 1, bias=False)
    report = bdl.Report({"test": [(x, y)], "train": loader})
    bdl.sample(
        net, bdl.GaussianNLL(std=1.0), loader, folder, steps=steps, lr=lr, dynamics=dynamics, chains=8,
        callbacks=[report], keep=bdl.schedules.EveryStep(steps // 4, steps // 400), **more,
    )  # fmt: skip
    return report.metrics


def test_a_thermostat_that_makes_the_mean_right_is_caught(tmp_path):
    m = metrics_of(tmp_path / "sgnht", bdl.SGNHT(friction=0.05), lr=0.002, batch_size=20, steps=20_000)
    assert m["temperature/thermostat"] == 1
    assert abs(m["kinetic_temperature"] - 1) < 0.1  # what the thermostat sets
    hottest, error = m["temperature/directions/hottest"], m["temperature/directions/hottest_se"]
    assert hottest - 2 * error > 1.25
    assert m["energy/along"] > 1.2 * m["energy/gaussian"]


def test_a_law_without_batch_noise_passes(tmp_path):
    m = metrics_of(tmp_path / "baoab", bdl.BAOAB(friction=0.1), lr=0.02, batch_size=N, steps=8000)
    for name in ("hottest", "coldest"):
        value, error = m[f"temperature/directions/{name}"], m[f"temperature/directions/{name}_se"]
        assert abs(value - 1) < max(0.1, 4 * error), name
    assert m["energy/along"] == pytest.approx(m["energy/gaussian"], rel=0.1)
    assert abs(m["energy/continuation"]) < 4 * m["energy/continuation_se"]
    assert "temperature/thermostat" not in m


@pytest.mark.parametrize("why", ["short", "optimiser"])
def test_nothing_is_said_where_nothing_can_be_known(tmp_path, why):
    steps = 12 if why == "short" else 2000
    temperature = 1.0 if why == "short" else 0.0
    x, y = linear_problem()
    loader = TensorBatches(x, y, 100, chains=4)
    report = bdl.Report({"test": [(x, y)], "train": loader})
    bdl.sample(
        nn.Linear(D, 1), bdl.GaussianNLL(std=1.0), loader, tmp_path / "run", steps=steps, lr=0.001, chains=4,
        callbacks=[report], temperature=temperature,
    )  # fmt: skip
    assert not any(name.startswith("temperature/direction") for name in report.metrics)


@pytest.mark.parametrize(("noisy", "error"), [(3.0, 2.5), (3.0, 1.0)])
def test_the_hottest_direction_is_the_one_beyond_chance(noisy, error):
    """Also where a noisy one would be hotter by its best guess: the verdict asks which is surely hot."""
    given = (("a", noisy, error), ("b", 1.6, 0.1), ("c", 0.7, 0.02), ("d", 1, 0.1))
    directions = [DirectionTemperature(*d) for d in given]
    m = LawMeasurement(0.5, directions).metrics()
    assert m["temperature/directions/hottest"] == pytest.approx(0.8)
    assert m["temperature/directions/coldest"] == pytest.approx(0.35)
    assert m["temperature/direction/a_se"] == pytest.approx(error / 2)
    assert not any(math.isnan(value) for value in m.values())


def test_a_loader_of_one_batch_tells_the_noisiest_directions(tmp_path):
    x, y = linear_problem()
    loader = DataLoader(TensorDataset(x, y), batch_size=N)
    report = bdl.Report({"test": [(x, y)], "train": loader})
    bdl.sample(
        nn.Linear(D, 1), bdl.GaussianNLL(std=1.0), loader, tmp_path / "run", steps=1000, lr=0.02, chains=4,
        start="fresh", dynamics=bdl.BAOAB(friction=0.1), callbacks=[report],
    )  # fmt: skip
    assert "temperature/direction/noise_1" in report.metrics


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    metrics_of(folder, bdl.BAOAB(friction=0.1), lr=0.02, batch_size=N, steps=400)
    return folder


@pytest.mark.parametrize(("work", "whole"), [(3000 * N, True), (150 * N, False)])
def test_a_state_takes_no_more_gradients_than_its_budget_says(kept, monkeypatch, work, whole):
    """Five over all rows. Where these are too dear, five over a part of the rows and one over a second part."""
    net = nn.Linear(D, 1, bias=False)
    posterior = bdl.Posterior.load(kept, net, likelihood=bdl.GaussianNLL(std=1.0))
    prior = bdl.Gaussian(1.0).bind([(1, D)], torch.zeros(8, D))
    potential = ExactPotential(net, 8, bdl.GaussianNLL(std=1.0), prior, TensorSlices(*linear_problem()), N)
    thermometer = Thermometer(posterior, potential, posterior.records, work, N, torch.Generator().manual_seed(0))
    monkeypatch.setattr("bdl.law.thermometer.PARTIAL_ROWS", 1)
    count, rows = thermometer.plan()
    assert (rows is None) == whole and count > 3
    taken, call = [], ExactPotential.__call__

    def counted(self, theta, batches=None):
        taken.append(N if batches is None else len(batches[0][1]))
        return call(self, theta, batches)

    monkeypatch.setattr(ExactPotential, "__call__", counted)
    monkeypatch.setattr(thermometer, "_batch_gradients", lambda theta: torch.randn(24, *theta.shape))
    assert thermometer.read() is not None
    assert sum(taken) == (count - 1) * (GRADIENTS * N if rows is None else (GRADIENTS + 1) * rows)
    assert sum(taken) <= TEMPERATURE_SHARE * work


def test_the_report_of_an_ended_run_is_written_again_to_the_byte(tmp_path):
    """No step is left to make, so that nothing but the end of `fit` tells the sampler of its batches."""
    pages = []
    for _ in range(2):
        metrics_of(tmp_path / "run", bdl.BAOAB(friction=0.1), lr=0.02, batch_size=N, steps=400)
        pages.append((tmp_path / "run" / "report.html").read_bytes())
    assert pages[0] == pages[1]
