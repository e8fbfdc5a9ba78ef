"""Tests of `bdl.run.objective`: a misspelt metric is refused before the first run of a sweep."""

from __future__ import annotations

import pytest
import torch

from bdl.errors import ConfigError
from bdl.posterior.metrics import classification_metrics
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


def test_names_that_runs_have_pass():
    scores = classification_metrics(torch.full((4, 2), 0.5), torch.tensor([0, 1, 1, 0]))
    for name in (
        *(f"val/bma/{score}" for score in scores),
        "rhat/max",
        "test/bma/some target/rmse",
        "test/conformal/size",
    ):
        check_objective(name)
