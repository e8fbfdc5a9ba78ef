"""Tests of `bdl.posterior.value_evaluation` and `bdl.posterior.report.figures`.

The report of predictions of numbers: its table, its pictures, its words, in the units of the target.
"""

import html
import re
from dataclasses import replace

import numpy as np
import pytest
from by_hand import NUMBERS_X, NUMBERS_Y

import bdl
from bdl.data import TensorSlices
from bdl.posterior.metrics import value_metrics
from bdl.posterior.plot.predictions import INTERVALS_SHOWN
from bdl.posterior.report import figures
from bdl.posterior.report.numbers import summarise, without_scores
from bdl.posterior.report.page import ReportData, page, write_page
from bdl.posterior.report.terminal import print_summary
from bdl.posterior.target_values import Units, Values, values_of
from bdl.posterior.verdict import verdict


@pytest.fixture(scope="module")
def posterior(regression):
    folder, net, _ = regression
    return bdl.Posterior.load(folder, net)


@pytest.fixture(scope="module")
def summary(posterior):
    loaders = {"test": TensorSlices(NUMBERS_X, NUMBERS_Y), "train": TensorSlices(NUMBERS_X[:20], NUMBERS_Y[:20])}
    return summarise(posterior, loaders)


def test_metrics_are_those_of_the_prediction(posterior, summary):
    expected = value_metrics(posterior.predict(NUMBERS_X), NUMBERS_Y)
    found = {k.removeprefix("test/bma/"): v for k, v in summary.metrics.items() if k.startswith("test/bma/")}
    assert found == pytest.approx(expected, rel=1e-5)
    assert {"train/one_sample/rmse", "test/chain_bma/crps", "rhat/max", "ess/min"} <= summary.metrics.keys()
    assert not any("accuracy" in name for name in summary.metrics)


def test_a_verdict_without_test_data_reads_no_scores_of_averages(posterior):
    train = {"train": TensorSlices(NUMBERS_X, NUMBERS_Y)}
    metrics, told = without_scores(posterior, posterior.evaluate_all(train))
    whole = summarise(posterior, train)
    short, full = verdict(metrics, warnings=told), verdict(whole.metrics, warnings=whole.warnings)
    assert (short.line, short.answers, short.checks) == (full.line, full.answers, full.checks)
    assert "predictive std" in short.answers[0][1] and not any("/bma/" in name for name in metrics)


def test_the_page_shows_numbers_in_words_tables_and_pictures(tmp_path, posterior, summary):
    path = tmp_path / "report.html"
    write_page(path, posterior, summary, {"title": "toy"}, "", None, [Units("price", 100.0, 10.0)])
    text = html.unescape(path.read_text())
    titles = re.findall(r"<h2>([^<]+)</h2>", text)
    assert titles[2:8] == [
        "Predictions", "Predictions against data", "Residuals", "Calibration of quantiles",
        "Energy", "RMSE and NLL against the number of networks",
    ]  # fmt: skip
    m = summary.metrics
    assert f"RMSE of {m['test/bma/rmse']:.3g}" in text
    assert f"{10 * m['test/bma/rmse']:.3g} in the units of price" in text
    assert f"Its 90 % intervals hold {100 * m['test/bma/coverage_90']:.0f} % of the data" in text
    for word in ("RMSE", "CRPS", "in 90 % interval", f"{m['test/bma/crps']:.4f}", "Calibration of intervals"):
        assert word in text
    assert "error %" not in text and "Brier" not in text


def test_the_terminal_shows_the_scores_of_numbers(capsys, summary):
    print_summary(summary.metrics)
    out = capsys.readouterr().out
    assert "test RMSE" in out and f"{summary.metrics['test/bma/nll']:.4f}" in out and "%" in out


def test_pictures_are_in_the_units_of_the_target(summary):
    evaluation = summary.evaluations["test"]
    (plain,), (scaled,) = values_of(evaluation), values_of(evaluation, [Units("price", 100.0, 10.0)])
    for name in ("y", "mean", "low", "high"):
        np.testing.assert_allclose(getattr(scaled, name), 100 + 10 * getattr(plain, name))
    np.testing.assert_allclose(scaled.std, 10 * plain.std)
    np.testing.assert_allclose(plain.y, NUMBERS_Y[:, 0])
    assert (plain.units.name, scaled.units.name) == ("target", "price")


def drawn(items: int, outside: int = 3) -> Values:
    """Items whose mean is their number in a random order; the last ones lie outside of their intervals."""
    mean = np.random.default_rng(0).permutation(items).astype(float)
    y = mean + np.where(np.arange(items) < items - outside, 0.5, 5.0)
    q = np.array([0.25, 0.5, 0.75])
    return Values(Units(), y, mean, np.ones(items), mean - 2, mean + 2, {"average of all chains": (q, q)})


@pytest.mark.parametrize("items", [1, 40, 500])
def test_every_item_of_picture_is_inside_or_outside_its_interval(items):
    ax = figures.intervals_figure(drawn(items, min(3, items))).axes[0]
    lines = {line.get_label(): line for line in ax.get_lines()}
    means = lines["predicted mean"].get_ydata()
    inside, outside = (len(lines[f"data, {name}"].get_ydata()) for name in ("inside", "outside"))
    assert inside + outside == len(means) == min(items, INTERVALS_SHOWN) and (np.diff(means) > 0).all()
    assert outside == 3 if items == 40 else outside >= (items == 1)
    assert ("all" in ax.get_xlabel()) == (items <= INTERVALS_SHOWN)


def test_residuals_are_drawn_in_standard_deviations():
    ax = figures.residuals_figure(drawn(40)).axes[0]
    points = next(line for line in ax.get_lines() if len(line.get_ydata()) == 40)
    np.testing.assert_allclose(sorted(points.get_ydata()), [0.5] * 37 + [5.0] * 3)
    assert ax.get_ylim()[1] > 5


def test_every_picture_can_be_embedded(summary):
    (values,) = values_of(summary.evaluations["test"])
    curve = summary.evaluations["test"].curve
    for draw, arguments in (
        (figures.intervals_figure, (values,)),
        (figures.residuals_figure, (values,)),
        (figures.quantiles_figure, (values.shares, len(values.y))),
        (figures.learning_curve_figure, (curve,)),
    ):
        assert figures.as_uri(draw, *arguments).startswith("data:image/svg+xml;base64,")


def test_each_of_two_targets_has_its_pictures_and_a_row():
    values = [replace(drawn(20), units=Units(name)) for name in ("price", "rent")]
    text = page(ReportData("t", values=values, metrics={"test/bma/rent/rmse": 1.25, "test/targets/rent": 20.0}))
    for name in ("price", "rent"):
        assert f"Predictions against data: {name}" in text and f"Calibration of quantiles: {name}" in text
    assert re.search(r"<tr><th>rent</th><td[^>]*>20</td><td[^>]*>1.25</td>", text)
