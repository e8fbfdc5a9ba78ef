"""Tests of `bdl.run.objective`: a misspelt metric is refused before the first run of a sweep."""

import pytest
import torch

import bdl
from bdl.errors import ConfigError
from bdl.posterior.class_evaluation import ClassEvaluation
from bdl.posterior.value_evaluation import ValueEvaluation
from bdl.run.objective import check_objective


@pytest.mark.parametrize(
    "name, words",
    [
        ("test/bma/nl", r"no run has a score nl \(did you mean nll\?\)"),
        ("tets/bma/nll", r"no run has a split tets \(did you mean test\?\)"),
        ("val/bmaa/nll", r"no run has an average bmaa \(did you mean bma\?\)"),
        ("nll", "write objective=test/bma/nll"),
    ],
)
def test_a_misspelt_metric_is_refused_by_its_wrong_part(name, words):
    with pytest.raises(ConfigError, match=words):
        check_objective(name)


CLASSES, VALUES = torch.tensor([0, 1, 1, 0, 1]), torch.linspace(0, 1, 5)
EVALUATIONS = {
    "classes": ClassEvaluation(bdl.CategoricalNLL(), CLASSES, 2),
    "tokens": ClassEvaluation(bdl.CategoricalNLL(), CLASSES, 2, tokens=True),
    "pixels": ClassEvaluation(bdl.CategoricalNLL(), CLASSES, 2, pixels=True),
    "labels": ClassEvaluation(bdl.BernoulliNLL(), torch.stack([CLASSES, 1 - CLASSES], 1), 2),
    "numbers": ValueEvaluation(bdl.HeteroscedasticNLL(), VALUES[:, None], 2),
}


@pytest.mark.parametrize("kind", EVALUATIONS)
def test_names_that_runs_have_pass(kind):
    evaluation = EVALUATIONS[kind]
    evaluation.add([0, 1], torch.linspace(-1, 1, 20).view(2, 5, 2))
    evaluation.row_weights = torch.ones(5)
    names = [f"val/{name}" for name in {**evaluation.metrics(), **evaluation.against_constant()}]
    assert len(names) > 20
    for name in (*names, "rhat/max", "test/bma/some target/rmse", "test/conformal/size"):
        check_objective(name)
