"""Tests of `bdl.posterior.calibrated`: what is fitted on one evaluation and scored on another."""

import pytest
import torch

import bdl
from bdl.errors import ConfigError
from bdl.posterior.calibrated import (
    CalibrationRequest,
    calibration_metrics,
    fitted_numbers,
    from_plain,
    sentence,
    to_plain,
)
from bdl.posterior.class_evaluation import ClassEvaluation
from bdl.posterior.value_evaluation import ValueEvaluation


def classes(seed: int, items: int = 2000, true: float = 2.0) -> ClassEvaluation:
    """Labels are drawn from softmax(logits / true), and one network says softmax(logits)."""
    random = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(items, 5, generator=random)
    y = torch.multinomial((logits / true).softmax(-1), 1, generator=random).squeeze(1)
    evaluation = ClassEvaluation(bdl.CategoricalNLL(), y, 1)
    evaluation.add([0], logits[None])
    return evaluation


def numbers(seed: int, items: int = 2000) -> ValueEvaluation:
    """Errors are three times as large as the network says."""
    random = torch.Generator().manual_seed(seed)
    mean = torch.randn(items, 1, generator=random)
    y = (mean + 3 * torch.randn(items, 1, generator=random)).squeeze(1)
    evaluation = ValueEvaluation(bdl.GaussianNLL(1.0), y, 1)
    evaluation.add([0], mean[None])
    return evaluation


@pytest.mark.parametrize("make", [classes, numbers])
def test_conformal_coverage_is_the_level_on_new_items(make):
    """Coverage with n items of each kind has a standard error of at most sqrt(2 level (1 - level) / n), 0.0095."""
    fitted, numbers = CalibrationRequest("conformal", 0.9).fit({"val": make(0), "test": make(1)})
    metrics = calibration_metrics(fitted, make(1))
    assert numbers == fitted_numbers(fitted, 2000) | {f"test/{name}": value for name, value in metrics.items()}
    assert metrics["conformal/coverage"] == pytest.approx(0.9, abs=4 * 0.0095)
    again = calibration_metrics(from_plain(to_plain(fitted)), make(1))
    assert again == metrics
    said = sentence({f"test/{k}": v for k, v in metrics.items()} | fitted_numbers(fitted, 2000))
    assert f"hold {100 * metrics['conformal/coverage']:.1f} % of the test items" in said and "2,000 validation" in said


@pytest.mark.parametrize("make", [classes, numbers])
def test_groups_of_items_are_counted_and_weigh_alike(make):
    """One group has half of the items, and another one: whether they lie inside counts as much."""
    groups = torch.tensor([0] * 1000 + list(range(1, 1000)) + [1])
    request = CalibrationRequest("conformal", 0.9).on({"val": torch.arange(2000) % 40, "test": groups})
    fitted, metrics = request.fit({"val": make(0), "test": make(1)})
    single = CalibrationRequest("conformal", 0.9).fit({"val": make(0), "test": make(1)})
    assert metrics["calibration/groups"] == 40 and "for items of new groups" in sentence(metrics)
    assert fitted != single[0]
    means = [calibration_metrics(fitted, make(1), torch.full((2000,), 3))["conformal/coverage"]]
    means.append(calibration_metrics(fitted, make(1))["conformal/coverage"])
    assert means[0] == pytest.approx(means[1]) and means[0] != metrics["test/conformal/coverage"]


def test_temperature_scaling_is_a_row_of_scores():
    """The temperature that was applied is found, and the NLL of new items falls."""
    test = classes(1)
    fitted, _ = CalibrationRequest("temperature").fit({"val": classes(0), "test": test})
    scores = calibration_metrics(fitted, test)
    assert from_plain(to_plain(fitted)) == fitted
    assert fitted.temperature == pytest.approx(2, rel=0.2) and "less sure" in sentence(fitted_numbers(fitted, 2000))
    assert scores["bma_scaled/nll"] < test.metrics()["bma/nll"]
    assert scores["bma_scaled/accuracy"] == test.metrics()["bma/accuracy"]


def test_what_cannot_be_fitted_is_refused_before_sampling():
    conformal, temperature = CalibrationRequest("conformal", 0.9), CalibrationRequest("temperature")
    conformal.check("logits", True, True, 9)
    with pytest.raises(ConfigError, match="at least 9 validation items, and there are 8"):
        conformal.check("logits", True, True, 8)
    for has_val, has_test, lacking in ((False, True, "validation"), (True, False, "test")):
        with pytest.raises(ConfigError, match=f"have no {lacking} items"):
            temperature.check("logits", has_val, has_test, 100)
    with pytest.raises(ConfigError, match="calibrate=conformal"):
        temperature.check("values", True, True, 100)
    with pytest.raises(ConfigError, match="calibrate=temperature"):
        conformal.check("labels", True, True, 100)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        CalibrationRequest("conformal", 1.0)
    with pytest.raises(ConfigError, match="no calibration"):
        from_plain({"kind": "sets", "level": 0.9})


def rare(seed: int, items: int = 4000) -> ClassEvaluation:
    """3 % of the items are of class 1, and the network is rarely sure of it."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(items, generator=random)
    y = (torch.rand(items, generator=random) < torch.sigmoid(x - 4.2)).long()
    evaluation = ClassEvaluation(bdl.CategoricalNLL(), y, 1)
    evaluation.add([0], torch.stack([torch.zeros(items), x - 4.2], 1)[None])
    return evaluation


def test_sets_by_class_keep_the_level_for_a_rare_class():
    """One threshold for all leaves the rare class out of nearly all sets; its own one has n of some 100 items."""
    (_, one), (fitted, own) = (
        CalibrationRequest("conformal", 0.9, by).fit({"val": rare(0), "test": rare(1)}) for by in (None, "class")
    )
    assert one["test/conformal/coverage/class_1"] < 0.3 and one["test/conformal/lowest_class"] == 1
    n = int((rare(1).labels == 1).sum())
    for k, count in ((0, 4000 - n), (1, n)):  # the standard error counts both splits
        se = (2 * 0.9 * 0.1 / count) ** 0.5
        assert own[f"test/conformal/coverage/class_{k}"] == pytest.approx(0.9, abs=4 * se)
    assert from_plain(to_plain(fitted)) == fitted
    said = sentence(one, ["no", "fraud"])
    assert f"of the {n} test items of class fraud, the least" in said and "calibrate.by=class" in said
    assert "sets by class of level 90 %" in sentence(own) and "calibrate.by=class" not in sentence(own)


def test_the_share_of_empty_sets_is_told():
    """Where all items are surely right, the threshold is near 0, and an unsure item has no class."""
    evaluation = ClassEvaluation(bdl.CategoricalNLL(), torch.zeros(100).long(), 1)
    evaluation.add([0], torch.stack([torch.linspace(0, 20, 100), torch.zeros(100)], 1)[None])
    _, numbers = CalibrationRequest("conformal", 0.9).fit({"val": evaluation, "test": evaluation})
    assert numbers["test/conformal/empty"] == pytest.approx(0.1, abs=0.011)
    assert "9.0 % of them empty" in sentence(numbers)


def test_a_class_with_too_few_items_belongs_to_all_sets():
    probs = torch.tensor([[0.9, 0.1]]).expand(30, 2)
    prediction = bdl.Prediction(probs, *torch.zeros(3, 30), torch.zeros(30, 2))
    sets = bdl.ConformalSets.fit(prediction, torch.tensor([0] * 26 + [1] * 4), 0.9, by_class=True)
    assert sets(prediction)[:, 1].all() and sets.threshold[1] == 1.0  # type: ignore[index]


@pytest.mark.parametrize("method, outputs", [("temperature", "logits"), ("conformal", "values")])
def test_what_has_no_classes_is_refused_by_class(method, outputs):
    with pytest.raises(ConfigError, match="calibrate.by=class"):
        CalibrationRequest(method, 0.9, "class").check(outputs, True, True, 100)
