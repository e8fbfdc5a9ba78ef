"""Tests of `bdl.posterior.report.next_steps`, `.tables`, `.page`, `.pictures`: advice, contents, tables."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import bdl
from bdl.posterior.class_evaluation import ClassEvaluation
from bdl.posterior.judgements import or_nan
from bdl.posterior.report.next_steps import next_steps, of_an_estimator
from bdl.posterior.report.page import page
from bdl.posterior.report.pictures import ReportData, moves
from bdl.posterior.report.tables import class_rows, ood_rows

CONF = Path(__file__).parents[3] / "conf"
COMMAND = "bdl train sampler=sghmc length=100 seed=3 'sampler.lr=0.4'"


def advised(
    outcome: str, needed: float = math.nan, command: str = COMMAND, decisive: str = "", **metrics: float
) -> list[str]:
    judged: Any = SimpleNamespace(
        outcome=outcome, needed=needed, decisive=SimpleNamespace(name=decisive), head=SimpleNamespace(kind="open")
    )
    m = or_nan({"samples": 50.0, "lr": 0.4, **metrics})
    return [line for _, line in next_steps(judged, m, command, 100)]


@pytest.mark.parametrize(
    ("outcome", "needed", "expected"),
    [
        ("more samples", 350.0, ["bdl train sampler=sghmc seed=3 sampler.lr=0.4 length=700"]),
        ("more samples", math.nan, ["bdl train sampler=sghmc seed=3 sampler.lr=0.4 length=400"]),
        ("broken", math.nan, ["bdl train sampler=sghmc length=100 seed=3 sampler.lr=0.1"]),
        ("another temperature", math.nan, ["bdl train sampler=sghmc length=100 seed=3 tune=auto"]),
        ("trust", math.nan, ["bdl train sampler=sghmc length=100 sampler.lr=0.4 seed=4"]),
        ("no posterior", math.nan, ["bdl train sampler=sghmc length=100 seed=3 sampler.lr=0.4 tune=auto"]),
    ],
)
def test_the_command_changes_in_the_key_that_matters(outcome, needed, expected):
    assert advised(outcome, needed) == expected


def test_nothing_is_advised_that_cannot_be_done():
    assert advised("trust", command="") == [] and advised("more samples", command=f"{COMMAND} budget=1m") == []
    assert (
        len(advised("ensemble over modes")) == 2 and len(advised("ensemble over modes", **{"start/members": 4.0})) == 1
    )


def test_a_run_that_was_tuned_is_not_told_to_tune():
    assert advised("not known", **{"tune/kept/rest": 1.0}) == []
    assert advised("another temperature", decisive="Coldest direction", **{"tune/kept/rest": 1.0}) == []
    (line,) = advised("another temperature", **{"tune/kept/rest": 1.0})
    assert line == "bdl train sampler=sghmc length=100 seed=3 sampler.lr=0.1"


def test_a_run_that_is_not_at_rest_is_told_how_much_longer():
    judged: Any = SimpleNamespace(
        outcome="not at rest", needed=math.nan, head=SimpleNamespace(kind="open"), decisive=SimpleNamespace(name="Rest")
    )
    m = or_nan({"ess/within": 40.0, "chains": 8.0, "samples": 800.0})
    assert next_steps(judged, m, COMMAND, 100) == [
        ("Sample 5 times as long", "bdl train sampler=sghmc seed=3 sampler.lr=0.4 length=500")
    ]


@pytest.mark.parametrize("sampler", ["awsghmc", "awsgld", "awsgnht", "awpsgld", "awsgrld"])
def test_samples_of_weighted_distribution_lead_to_plain_sampler(sampler):
    """It exists, and takes the other keys."""
    command = f"bdl train sampler={sampler} sampler.weighting.zeta=300 data=landsat"
    plain = sampler.removeprefix("aw")
    assert advised("no posterior", command=command, decisive="Weighted distribution") == [
        f"bdl train data=landsat sampler={plain}"
    ]
    assert (CONF / "sampler" / f"{plain}.yaml").exists()
    assert advised("no posterior", decisive="Weighted distribution") == [f"{COMMAND.replace(chr(39), '')} tune=auto"]


@pytest.mark.parametrize("decisive, temperature", [("Approximation", 1.0), ("Temperature", 0.0)])
def test_what_is_no_sampler_leads_to_the_default_one(decisive, temperature):
    command = "bdl train sampler=swag sampler.lr=0.1 'data=csv' data.path='a b.csv'"
    (line,) = advised("no posterior", command=command, decisive=decisive, temperature=temperature)
    assert line == "bdl train data=csv 'data.path=a b.csv'"
    assert advised("no posterior", command="bdl train seed=1", decisive=decisive, temperature=temperature) == []


def test_a_posterior_worse_than_its_start_says_so_first():
    scores = {"test/one_sample/accuracy": 0.8, "test/bma/accuracy": 0.9, "test/bma/nll": 0.5, "test/start/nll": 0.4}
    text = page(ReportData("a", metrics=scores))
    places = [
        "worse than the ensemble at which",
        "Would another run",
        "misclassifies",
        "Predictions</h2>",
        "Checks</h2>",
    ]
    assert sorted(map(text.index, places)) == [text.index(place) for place in places]
    assert text.count("Predictions</h2>") == 1 and text.index(">Predictions</a>") < text.index(">Checks</a>")
    assert "worse than the ensemble" not in page(ReportData("a", metrics=scores | {"test/start/nll": 0.6}))


def test_contents_lead_to_every_section():
    text = page(ReportData("a", {"N": "3"}, "b", {"test/bma/nll": 0.5}, classes=[("x", ["1"] * 5)], command=COMMAND))
    titles = text[text.index("<nav") : text.index("</nav>")].count("<a href=")
    assert titles == text.count("<section id=") > 4
    for part in text[: text.index("</nav>")].split('<a href="#')[1:]:
        assert f'<section id="{part.partition(chr(34))[0]}"' in text


def test_a_picture_of_constants_is_left_out():
    assert moves([1.0, 1.0, 2.0]) and not moves([0.3, 0.3 + 1e-17, np.nan]) and not moves([]) and not moves([0.0, 0.0])
    steps = {"step": np.arange(3.0)}
    constant = ReportData("a", trace={**steps, "lr": np.full(3, 0.1), "temperature": np.ones(3)})
    assert "Learning rate" not in page(constant)
    assert "Learning rate" in page(ReportData("a", trace={**steps, "lr": np.array([0.3, 0.2, 0.1])}))


def test_the_table_of_classes_has_names_means_and_strange_scores():
    evaluation = ClassEvaluation(bdl.CategoricalNLL(), torch.tensor([0, 1, 1]), 1)
    evaluation.add([0], 9 * torch.eye(2)[[0, 1, 0]][None])
    rows = dict(class_rows(evaluation, ["cat", "dog"]))
    assert list(rows) == ["cat", "dog", "mean"] and rows["dog"][:3] == ["2", "0.500", "1.000"]
    assert rows["mean"][:2] == ["3", "0.750"]
    assert [name for name, _ in class_rows(evaluation, ["cat"])] == ["0", "1", "mean"]
    m = or_nan({"ood/bma/auroc": 0.75, "ood/bma/aupr": 0.5, "ood/bma/fpr95": 0.25})
    assert ood_rows(m) == [("entropy", ["0.7500", "0.5000", "25.0 %"])]


def test_the_steps_of_a_hot_mclmc_are_to_be_tested():
    """Its lr is where its own tuning begins, so that another lr changes nothing."""
    wanted = [f"{COMMAND} sampler.dynamics.adjusted=true sampler.dynamics.energy_var=0.0005".replace("'", "")]
    for tuned in ({}, {"tune/kept/rest": 1.0}):
        assert advised("another temperature", energy_error=1.0, temperature=1.0, **tuned) == wanted
    assert advised("another temperature", command=wanted[0], energy_error=1.0, temperature=1.0) == []


@pytest.mark.parametrize(
    ("outcome", "needed", "given", "expected"),
    [
        ("not at rest", math.nan, {}, ["set_params(steps=400).fit(X, y)"]),
        ("more samples", 350.0, {}, ["set_params(steps=700, samples=175).fit(X, y)"]),
        ("more samples", math.nan, {}, ["set_params(steps=400).fit(X, y)"]),
        ("prior does not fit", math.nan, {"prior_std": 0.1}, ["set_params(prior_std=None).fit(X, y)"]),
        ("another temperature", math.nan, {"lr": 0.1}, ["set_params(lr=None).fit(X, y)"]),
        ("another temperature", math.nan, {}, []),
        ("trust", math.nan, {}, []),
        ("not known", math.nan, {}, ["set_params(steps=400).fit(X, y)"]),
    ],
)
def test_the_next_fit_of_an_estimator_names_its_arguments(outcome, needed, given, expected):
    at_rest = {"rest/ess": 50.0, "rest/slope": 0.0}
    decisive = SimpleNamespace(name="", words="sample longer" if outcome == "not known" else "")
    judged: Any = SimpleNamespace(outcome=outcome, needed=needed, metrics=or_nan(at_rest), decisive=decisive)
    assert [line for _, line in of_an_estimator(judged, 100, 25, 2, given)] == expected


def test_too_few_chains_are_not_cured_by_longer_ones():
    """The verdict says "2 chains may miss the same modes: run at least 4", and the command sampled them longer."""
    assert advised("more samples", decisive="Chains") == [f"{COMMAND} chains=4".replace("'", "")]
    judged: Any = SimpleNamespace(outcome="more samples", needed=math.nan, decisive=SimpleNamespace(name="Chains"))
    assert of_an_estimator(judged, 100, 25, 2, {})[0][1] == "set_params(chains=4).fit(X, y)"
    assert next_steps(judged, or_nan({"samples": 9.0}), "", 100, "runs/a")[0][1].startswith("chains=4 ")
