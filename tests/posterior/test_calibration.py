"""Temperature scaling and split-conformal prediction: known answers, and the coverage that is promised."""

import math

import numpy as np
import pytest
import torch
from by_hand import mixture_of
from repeats import slow_where

import bdl
from bdl import ConformalIntervals, ConformalSets, LabelPrediction, Prediction, TemperatureScaling
from bdl.errors import ConfigError
from bdl.posterior.calibration import conformal_threshold
from bdl.posterior.prediction import of_mixture


def classes(probs: torch.Tensor) -> Prediction:
    zeros = torch.zeros(len(probs))
    return Prediction(probs, zeros, zeros, zeros, torch.zeros_like(probs))


def normal(means: torch.Tensor, std: float) -> bdl.ValuePrediction:
    """One network that predicts N(mean, std²); means (n, k)."""
    return of_mixture(mixture_of(means.unsqueeze(0), bdl.GaussianNLL(std)))


@pytest.mark.parametrize("true", [0.5, 2.5])
def test_a_temperature_that_was_applied_is_found(true):
    """Labels are drawn from softmax(logits / true). With 20,000 items the estimate is within 5 % of it."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(20_000, 4, generator=generator)
    labels = torch.multinomial((logits / true).softmax(-1), 1, generator=generator).squeeze(1)
    prediction = classes(logits.softmax(-1))
    scaling = TemperatureScaling.fit(prediction, labels)
    assert scaling.temperature == pytest.approx(true, rel=0.05)
    torch.testing.assert_close(scaling(prediction), (logits / scaling.temperature).softmax(-1), atol=1e-5, rtol=1e-4)


def test_labels_are_scaled_as_two_classes():
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(300, 2, generator=generator)
    y = (torch.rand(300, 2, generator=generator) < (logits / 2).sigmoid()).long()
    zeros = torch.zeros(300, 2)
    prediction = LabelPrediction(logits.sigmoid(), zeros, zeros, zeros, zeros)
    scaling = TemperatureScaling.fit(prediction, y)
    p = logits.flatten().sigmoid()
    same = TemperatureScaling.fit(classes(torch.stack([1 - p, p], -1)), y.flatten())
    assert scaling.temperature == pytest.approx(same.temperature)
    torch.testing.assert_close(scaling(prediction), (logits / scaling.temperature).sigmoid(), atol=1e-5, rtol=1e-4)


def test_certain_and_wrong_predictions_keep_temperature_finite():
    scaling = TemperatureScaling.fit(classes(torch.eye(3)), torch.tensor([1, 2, 0]))
    assert math.isfinite(scaling.temperature) and scaling(classes(torch.eye(3))).isfinite().all()


def test_conformal_thresholds_are_the_higher_empirical_quantiles():
    generator = torch.Generator().manual_seed(2)
    probs = torch.randn(57, 5, generator=generator).softmax(-1)
    y = torch.randint(5, (57,), generator=generator)
    sets = ConformalSets.fit(classes(probs), y, level=0.8)
    scores = 1 - probs.numpy()[np.arange(57), y.numpy()]
    assert sets.threshold == pytest.approx(np.sort(scores)[math.ceil(58 * 0.8) - 1])
    assert torch.equal(sets(classes(probs)), 1 - probs.double() <= sets.threshold)


@pytest.mark.parametrize("level", slow_where(lambda level: level == 0.5, [0.5, 0.9]))
def test_coverage_is_as_promised_although_predictions_are_wrong(level):
    """Between level and level + 1/(n + 1) on average over 100 fits on n = 20 items; four standard errors."""
    generator, n, new, fits = torch.Generator().manual_seed(3), 20, 200, 100
    in_sets, in_intervals = [], []
    for _ in range(fits):
        probs = (3 * torch.randn(n + new, 4, generator=generator)).softmax(-1)
        labels = torch.multinomial(probs.sqrt(), 1, generator=generator).squeeze(1)  # not the law that is predicted
        sets = ConformalSets.fit(classes(probs[:n]), labels[:n], level)
        in_sets.append(sets(classes(probs[n:])).gather(1, labels[n:, None]).double().mean())
        means = torch.randn(n + new, 1, generator=generator)
        y = means + 3 * torch.randn(n + new, 1, generator=generator)  # three times as wide as predicted
        intervals = ConformalIntervals.fit(normal(means[:n], 1.0), y[:n], level)
        low, high = intervals(normal(means[n:], 1.0))
        in_intervals.append(((y[n:] >= low) & (y[n:] <= high)).double().mean())
    for each in (torch.stack(in_sets), torch.stack(in_intervals)):
        error = 4 * float(each.std()) / math.sqrt(fits)
        assert level - error <= float(each.mean()) <= level + 1 / (n + 1) + error


def test_every_target_has_its_own_margin():
    generator = torch.Generator().manual_seed(4)
    means = torch.randn(200, 2, generator=generator)
    y = means + torch.tensor([0.1, 5.0]) * torch.randn(200, 2, generator=generator)
    intervals = ConformalIntervals.fit(normal(means, 1.0), y, 0.9)
    assert float(intervals.margin[0]) < -1 and float(intervals.margin[1]) > 5


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda p, v: ConformalSets.fit(p, torch.zeros(8).long(), 0.9), "8 validation items.* at least 9 are needed"),
        (lambda p, v: ConformalIntervals.fit(v, torch.zeros(8), 0.95), "at least 19 are needed"),
        (lambda p, v: ConformalSets.fit(p, torch.zeros(8).long(), 1.0), "between 0 and 1, got 1.0"),
        (lambda p, v: ConformalSets.fit(p, torch.zeros(8).long(), 1.0, by_class=True), "between 0 and 1, got 1.0"),
        (lambda p, v: ConformalSets.fit(p, torch.zeros(7)), r"shape \(7,\) does not fit a prediction of 8 items"),
        (lambda p, v: TemperatureScaling.fit(p, torch.zeros(7)), "prediction of 8 items"),
        (lambda p, v: ConformalSets.fit(p, torch.full((8,), 2)), "none of the 2 classes; the first is 2 in row 0"),
        (lambda p, v: ConformalSets.fit(p, torch.full((8,), 0.5)), "no class"),
        (lambda p, v: TemperatureScaling.fit(p, torch.zeros(8, 1).long()), r"shape \(8, 1\), .*one class for each"),
        (lambda p, v: ConformalIntervals.fit(v, torch.zeros(7)), "do not fit"),
    ],
)  # fmt: skip
def test_bad_fits_are_refused_in_one_line(act, words):
    with pytest.raises(ConfigError, match=words) as caught:
        act(classes(torch.full((8, 2), 0.5)), normal(torch.zeros(8, 1), 1.0))
    assert "\n" not in str(caught.value)


def test_groups_of_one_item_are_items():
    scores = torch.from_numpy(np.random.RandomState(0).randn(57, 2))
    for level in (0.5, 0.8, 0.9, 0.98):
        rank = math.ceil(58 * level - 1e-9)
        threshold = conformal_threshold(scores, level, torch.randperm(57))
        assert torch.equal(threshold, conformal_threshold(scores, level))
        assert torch.equal(threshold, scores.sort(0).values[rank - 1])


@pytest.mark.parametrize("groups, level", slow_where(lambda groups, _: groups != 9, [(9, 0.9), (15, 0.8), (40, 0.9)]))
def test_conformal_sets_hold_items_of_new_groups(groups, level):
    """Scores share a term within a group, of 1 to 30 items. The rule for items loses by more than chance allows."""
    random, repeats = np.random.RandomState(groups), 4000
    held = {"groups": np.zeros(repeats), "items": np.zeros(repeats)}
    for i in range(repeats):
        sizes = random.randint(1, 31, groups)
        codes = np.repeat(np.arange(groups), sizes)
        scores = torch.from_numpy(3 * random.randn(groups)[codes] + random.randn(len(codes)))[:, None]
        new = 3 * random.randn() + random.randn()
        for name, of in (("groups", torch.from_numpy(codes)), ("items", None)):
            held[name][i] = new <= float(conformal_threshold(scores, level, of))
    error = math.sqrt(level * (1 - level) / repeats)
    assert held["groups"].mean() > level - 4 * error
    assert held["groups"].mean() < level + 1 / (groups + 1) + 0.02 + 4 * error  # and is not far above
    if groups == 9:
        assert held["items"].mean() < level - 4 * error


def test_too_few_groups_are_refused():
    scores = torch.randn(200, 1)
    conformal_threshold(scores, 0.9, torch.arange(200) % 9)
    with pytest.raises(ConfigError, match="8 validation groups of items are too few for level 0.9: at least 9"):
        conformal_threshold(scores, 0.9, torch.arange(200) % 8)
    with pytest.raises(ConfigError, match="0 validation items are too few"):
        conformal_threshold(scores[:0], 0.9)
