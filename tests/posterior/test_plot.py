"""Tests of `bdl.posterior.plot.axes`, `.chains`, `.predictions` and `bdl.posterior.traces`.

Every picture holds the numbers that it is made from, on the axis that it was given.
"""

import matplotlib
import numpy as np
import pytest
import torch
import toys
from by_hand import NUMBERS_X, NUMBERS_Y, X, Y
from matplotlib.figure import Figure

import bdl
from bdl.data import TensorSlices
from bdl.errors import ConfigError
from bdl.posterior.diagnostics import rhat
from bdl.posterior.energy_histogram import EnergyHistogram
from bdl.posterior.metrics import classification_metrics, reliability_bins
from bdl.posterior.store import SampleStore
from bdl.posterior.traces import write_trace


@pytest.fixture
def ax():
    return Figure().subplots()


@pytest.fixture
def numbers(of_numbers) -> bdl.ValuePrediction:
    return of_numbers.predict(NUMBERS_X)


def line(ax, label: str) -> np.ndarray:
    """(2, points) of the line whose label begins so."""
    (found,) = [one for one in ax.get_lines() if str(one.get_label()).startswith(label)]
    return np.array([found.get_xdata(), found.get_ydata()])


def test_reliability_has_bins_of_enough_items(posterior, ax):
    prediction = posterior.predict(X)
    assert bdl.plot.reliability(prediction, Y, ax, label="average") is ax
    confidence, accuracy, count = (t.numpy() for t in reliability_bins(prediction.probs, Y))
    points = ax.containers[0].lines[0].get_xydata()
    np.testing.assert_allclose(points, np.stack([confidence, accuracy], 1)[count >= 10])
    bdl.plot.reliability(prediction.probs, Y, ax, label="again")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["calibrated", "average", "again"]


def test_risk_against_coverage_has_the_area_of_the_metrics(posterior, ax):
    prediction = posterior.predict(X)
    bdl.plot.coverage_risk(prediction, Y.numpy(), ax)
    aurc = classification_metrics(prediction.probs, Y)["aurc"]
    coverage, risk = line(ax, f"area {aurc:.4f}") / 100
    assert coverage[-1] == 1 and risk[-1] == pytest.approx((prediction.probs.argmax(1) != Y).float().mean().item())
    assert risk.mean() == pytest.approx(aurc)


def test_labels_count_as_items(ax):
    p = torch.linspace(0.05, 0.95, 40).view(20, 2)
    labels = (p > 0.5).long()
    bdl.plot.coverage_risk(bdl.LabelPrediction(p, *torch.zeros(4, 20, 2)), labels, ax)
    assert line(ax, "area 0.0000").shape == (2, 40)


def test_a_map_shows_the_uncertainty_of_each_pixel(ax):
    probs = torch.rand(2, 3, 4, 5).softmax(-1)
    parts = torch.rand(3, 2, 3, 4)
    pixels = bdl.Prediction(probs, *parts, torch.zeros_like(probs))
    assert bdl.plot.uncertainty_map(pixels, 1, ax, part="epistemic") is ax
    np.testing.assert_allclose(ax.get_images()[0].get_array(), parts[2, 1])
    with pytest.raises(ConfigError, match="part must be entropy, aleatoric or epistemic, got 'doubt'"):
        bdl.plot.uncertainty_map(pixels, 1, ax, part="doubt")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a prediction of the pixels of images"):
        bdl.plot.uncertainty_map(bdl.Prediction(probs[0, 0], *parts[:, 0, 0], probs[0, 0]), 1, ax)


def test_intervals_mark_the_data_outside(numbers, ax):
    low, high = numbers.interval(0.5)
    outside = int(((NUMBERS_Y < low) | (NUMBERS_Y > high)).sum())
    assert 0 < outside < len(NUMBERS_Y)
    assert bdl.plot.intervals(numbers, NUMBERS_Y[:, 0], ax, level=0.5) is ax
    assert len(line(ax, "data, outside")[0]) == outside
    np.testing.assert_allclose(line(ax, "predicted mean")[1], np.sort(numbers.mean[:, 0]))


def test_a_band_is_sorted_along_the_input(numbers, ax):
    bdl.plot.band(numbers, NUMBERS_X[:, 0], ax, levels=(0.9,), data=(NUMBERS_X[:, 0].numpy(), NUMBERS_Y))
    order = NUMBERS_X[:, 0].argsort()
    np.testing.assert_allclose(line(ax, "mean"), np.stack([NUMBERS_X[order, 0], numbers.mean[order, 0]]))
    corners = ax.collections[0].get_paths()[0].vertices[:, 1]
    low, high = numbers.interval(0.9)
    assert (corners.min(), corners.max()) == (pytest.approx(low.min().item()), pytest.approx(high.max().item()))
    with pytest.raises(ConfigError, match="one for each item"):
        bdl.plot.band(numbers, NUMBERS_X, ax)


def test_quantiles_of_a_right_prediction_lie_on_the_diagonal(numbers, ax):
    """Data at the medians: no quantile below one half has any of them below it, and every one above has all."""
    bdl.plot.quantiles(numbers, numbers.quantile(0.5), ax, label="medians")
    q, share = line(ax, "medians")
    assert (share[q < 0.45] == 0).all() and (share[q > 0.55] == 1).all()


def test_traces_are_those_of_the_monitor(tmp_path, ax):
    monitor = bdl.Monitor(1)
    toys.sample(tmp_path, 8, callbacks=[monitor])
    with pytest.raises(ConfigError, match="has no trace"):
        bdl.plot.traces(tmp_path, ax)
    write_trace(tmp_path, 0, monitor.trace())
    assert bdl.plot.traces(bdl.Posterior.load(tmp_path, toys.plain()), ax) is ax
    assert set(line(ax, "kept sample")[0]) == {2, 4, 6, 8}
    thin = [one for one in ax.get_lines() if one.get_linewidth() == 0.5]
    np.testing.assert_allclose([one.get_ydata() for one in thin], monitor.trace()["energy"].T)
    bdl.plot.traces(tmp_path, other := Figure().subplots(), column="t_eff")
    assert other.get_ylabel() == "T_eff"
    with pytest.raises(ConfigError, match="no column heat: it has .*energy"):
        bdl.plot.traces(tmp_path, ax, column="heat")


def test_rhat_and_the_learning_curve_come_from_an_evaluation(posterior, ax):
    evaluation = posterior.evaluate(TensorSlices(X, Y))
    bdl.plot.rhat(evaluation, ax)
    values = rhat(evaluation.quantities)
    assert sum(bar.get_height() for bar in ax.patches) == np.isfinite(values).sum() == 40
    assert f"{100 * (values <= 1.01).mean():.0f} % are below" in ax.get_legend().get_texts()[0].get_text()
    curve = bdl.plot.learning_curve(evaluation, Figure().subplots(), score="score")
    np.testing.assert_allclose(line(curve, "average of all chains")[1], 100 * np.array(evaluation.curve.score))
    few = posterior.evaluate(TensorSlices(X[:1], Y[:1]))
    few._networks.log_p = type(few._networks.log_p)(2)
    few._networks.log_p.add([0, 1], np.zeros((2, 1)))
    with pytest.raises(ConfigError, match="R-hat needs two chains"):
        bdl.plot.rhat(few, ax)


def test_energies_are_reweighted_by_psi(weighted, run, ax):
    bdl.plot.energy_weights(weighted, ax)
    (h, *_) = EnergyHistogram.read_all(SampleStore(weighted), 0)
    w = np.exp(h.zeta * h.log_psi_at(h.finite))
    (outline,) = [patch for patch in ax.patches if patch.get_label() == "reweighted"]
    heights = outline.get_xy()[1:-1:2, 1]
    expected = np.histogram(h.finite, h.edges, weights=w / w.sum())[0]
    np.testing.assert_allclose(np.sort(heights[heights > 0]), np.sort(expected[expected > 0]))
    assert bdl.plot.multiplier(weighted, Figure().subplots()).get_ylabel() == "multiplier"
    for picture in (bdl.plot.energy_weights, bdl.plot.multiplier):
        with pytest.raises(ConfigError, match="without a weighting"):
            picture(run, ax)


def test_without_an_axis_there_is_a_new_figure(posterior):
    matplotlib.use("agg")
    from matplotlib import pyplot

    before = len(pyplot.get_fignums())
    try:
        assert bdl.plot.reliability(posterior.predict(X), Y).figure.number in pyplot.get_fignums()
        assert len(pyplot.get_fignums()) == before + 1
    finally:
        pyplot.close("all")
