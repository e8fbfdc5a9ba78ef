"""Tests of `bdl.posterior.judgements` and `.heads` where one class is rare: limits follow the scale of the data."""

import math

import pytest
import torch
from test_verdict import GOOD

import bdl
from bdl.posterior.class_evaluation import ClassEvaluation, never_predicted
from bdl.posterior.report.page import page
from bdl.posterior.report.pictures import ReportData
from bdl.posterior.value_evaluation import ValueEvaluation
from bdl.posterior.verdict import Verdict, verdict

RARE = {"test/constant/entropy": 0.0079, "test/constant/nll": 0.0079, "test/constant/least": 0.0079,
        "test/items": 10_000.0, "test/bma/nll": 2e-5, "test/draw/nll": 3e-5,
        "mcse/most": 1e-4, "mcse/worst": 2e-4}  # fmt: skip


def of(**changes: float) -> Verdict:
    return verdict(GOOD | RARE | {k.replace("__", "/"): v for k, v in changes.items()})


def level(judged: Verdict, name: str) -> str:
    return next(check.level for check in judged.checks if check.name == name)


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, "trust"),  # AUC 1
        ({"test__bma__nll": 0.0065}, "trust"),
        ({"test__bma__nll": 0.00789}, "not known"),  # 0.1 % of what the constant leaves open
        ({"test__bma__nll": 0.0092, "test__constant__gain_se": 1e-4}, "broken"),
        ({"mcse__most": 9e-4}, "more samples"),  # a probability of 0.001 is not known to ± 0.0009
        ({"test__start__nll": 1e-5}, "trust"),
        ({"test__bma__nll": 0.004, "test__start__nll": 0.001, "test__start__gain_se": 1e-4}, "prior does not fit"),
        ({"test__bma__nll": 0.004, "test__simple__linear__nll": 0.001}, "prior does not fit"),
        ({"test__bma__nll": 0.004, "test__last_ten__nll": 0.001}, "prior does not fit"),
    ],
)
def test_gains_and_errors_are_shares_of_what_a_constant_leaves_open(changes, outcome):
    assert of(**changes).outcome == outcome


def test_small_gains_count_where_they_are_sure():
    """Equal classes and many items: 0.002 nats are 10 standard errors."""
    equal = {"test__constant__entropy": 0.69, "test__constant__nll": 0.69, "test__constant__least": 0.69,
             "test__bma__nll": 0.688, "test__draw__nll": 0.688, "mcse__most": 0.01}  # fmt: skip
    assert of(**equal).outcome == "not known" and of(**equal, test__constant__gain_se=2e-4).outcome == "trust"


def test_small_numbers_are_shown_with_their_digits():
    words = next(judgement.value for judgement in of().target if judgement.name == "Average against a constant")
    assert words == "NLL 0.00002, constant 0.00790"


def test_calibration_of_a_rare_class_is_no_matter_of_course():
    """p = 0.0001 where 1 in 100 is positive: an ECE of 0.0099, which is all that there is to know."""
    one_in_100 = {"test__constant__entropy": 0.056, "test__bma__accuracy": 0.99, "test__bma__ece": 0.0099}
    assert level(of(**one_in_100), "Calibration error (ECE)") != "ok"
    assert level(of(**one_in_100 | {"test__items": 100.0}), "Calibration error (ECE)") == "ok"  # chance does that
    assert level(of(test__bma__ece=2e-4, test__bma__accuracy=0.999), "Calibration error (ECE)") == "ok"


def evaluated(p: torch.Tensor, y: torch.Tensor) -> ClassEvaluation:
    """Of two networks, one of each chain, with the probabilities p (n,) of class 1."""
    logits = torch.stack([torch.zeros_like(p), p.logit()], -1)
    evaluation = ClassEvaluation(bdl.CategoricalNLL(), y, 2)
    evaluation.add([0, 1], torch.stack([logits, logits]))
    return evaluation


def metrics_of(evaluation: ClassEvaluation | ValueEvaluation) -> dict[str, float]:
    scores = evaluation.metrics() | evaluation.against_constant()
    return {f"test/{name}": value for name, value in scores.items()} | {"test/items": float(evaluation.items)}


@pytest.mark.parametrize("positives", [1, 3, 10, 100])
def test_a_perfect_ranking_of_rare_positives_is_learnt(positives):
    """Of 10,000 items; NLL 2e-5. Before, no prediction could pass below 0.13 % of positives."""
    y = (torch.arange(10_000) < positives).long()
    p = torch.where(y == 1, 1 - 2e-5, 2e-5)
    judged = verdict(
        GOOD | {"mcse/most": 1e-5, "mcse/worst": 1e-5, "test/draw/nll": 2e-5} | metrics_of(evaluated(p, y))
    )
    assert judged.outcome == "trust", judged.line


def test_rare_events_that_are_counted():
    """5 events in 5,000 rows: rates that find them are no constant, whose NLL is 0.008."""
    y = (torch.arange(5000) < 5).double()
    rates = torch.where(y > 0, 0.9, 1e-4).log()[:, None]
    evaluation = ValueEvaluation(bdl.PoissonNLL(), y, 2)
    evaluation.add([0, 1], torch.stack([rates, rates]).float())
    metrics = metrics_of(evaluation)
    assert metrics["test/constant/entropy"] < 0.02
    judged = verdict(GOOD | {"mcse/most": 0.001, "mcse/worst": 0.001, "test/draw/nll": 0.001} | metrics)
    assert level(judged, "Average against a constant") == "ok"
    vague = verdict(GOOD | metrics | {"mcse/most": 0.08})  # ± 0.0025 for a rate of 0.001
    assert vague.repeats.outcome == "more samples"
    density = ValueEvaluation(bdl.GaussianNLL(1.0), y, 2)
    assert math.isnan(density.entropy())


def test_the_head_names_a_class_that_is_never_predicted():
    y = (torch.arange(1000) < 28).long()
    evaluation = evaluated(torch.where(y == 1, 0.4, 0.01), y)
    metrics = metrics_of(evaluation) | never_predicted({"test": evaluation}, ["good", "fraud"])
    head = verdict(GOOD | {"test/draw/nll": 0.05, "mcse/most": 1e-3} | metrics).head
    assert head.level == "ok" and "never predicted: class fraud (recall 0 of 28)" in head.sentence
    assert metrics["test/constant/accuracy"] == 0.972 and metrics["test/bma/average_precision"] == 1
    assert "never" not in of().head.sentence
    for kind, heat in (
        ("posterior", {}),
        ("good ensemble", {"t_eff": 3.0, "kinetic_temperature": 3.0, "test/last_ten/nll": 1.0}),
    ):
        known = GOOD | {"test/draw/nll": 0.05, "mcse/most": 1e-3} | metrics | heat
        assert verdict(known).head.kind == kind
        assert page(ReportData("t", metrics=known)).lower().count("never predicted: class fraud (recall 0 of 28)") == 1


def test_an_error_above_that_of_the_most_frequent_class_is_said():
    y = (torch.arange(1000) < 28).long()
    p = torch.where(torch.arange(1000) % 10 == 0, 0.6, 0.01)
    judged = verdict(GOOD | metrics_of(evaluated(p, y)))
    assert level(judged, "Error against a constant") == "look"
    assert level(of(test__bma__accuracy=0.999, test__constant__accuracy=0.999), "Error against a constant") == "ok"


def test_labels_that_are_never_predicted():
    """Several labels of an item: each is a class of its own."""
    y = torch.zeros(50, 2)
    y[:5, 1] = 1
    y[:25, 0] = 1
    evaluation = ClassEvaluation(bdl.BernoulliNLL(), y, 2)
    logits = torch.stack([10 * y[:, 0] - 5, torch.full((50,), -2.0)], 1)
    evaluation.add([0, 1], torch.stack([logits, logits]))
    assert never_predicted({"test": evaluation}, ["wet", "icy"]) == {"test/never_predicted/icy": 5.0}
