"""Scores of each of several targets: those of a prediction of this target alone, in its units and without its gaps."""

import math

import numpy as np
import pytest
import torch
from by_hand import mixture_of

import bdl
from bdl.posterior.metrics import value_metrics
from bdl.posterior.prediction import of_mixture
from bdl.posterior.target_values import Units, target_metrics, target_rows, values_of
from bdl.posterior.value_evaluation import ValueEvaluation

N, K, NETWORKS = 40, 2, 6
UNITS = [Units("price", 100.0, 10.0), Units("rent", -3.0, 0.5)]


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs (NETWORKS, N, 2 K) of means and log variances, and targets (N, K) with gaps."""
    random = torch.Generator().manual_seed(2)
    outputs, y = torch.randn(NETWORKS, N, 2 * K, generator=random), torch.randn(N, K, generator=random)
    y[:15, 0] = y[10:13, 1] = math.nan
    y[10:13, 0] = 0.5
    return outputs, y


@pytest.fixture(scope="module")
def evaluation() -> ValueEvaluation:
    outputs, y = drawn()
    made = ValueEvaluation(bdl.ObservedNLL(bdl.HeteroscedasticNLL()), y, chains=2)
    made.add([0, 1] * (NETWORKS // 2), outputs)
    return made


def alone(target: int) -> tuple[dict[str, float], torch.Tensor]:
    """The scores of the mixture for one target, in its units, on the items that have it; and these items."""
    outputs, y = drawn()
    rows, units = (~y[:, target].isnan()).nonzero().squeeze(1), UNITS[target]
    mixture = mixture_of(outputs[:, rows][..., [target, target + K]], bdl.HeteroscedasticNLL())
    prediction = of_mixture(mixture).rescaled(units.shift, units.scale)
    return value_metrics(prediction, units.shift + units.scale * y[rows, target]), rows


@pytest.mark.parametrize("target", range(K))
def test_scores_are_those_of_the_target_alone_in_its_units(evaluation, target):
    found = target_metrics({"test": evaluation}, UNITS)
    expected, rows = alone(target)
    name = UNITS[target].name
    assert found[f"test/targets/{name}"] == len(rows)
    assert {k.rpartition("/")[2]: v for k, v in found.items() if k.startswith(f"test/bma/{name}/")} == pytest.approx(
        expected, rel=1e-4, abs=1e-6
    )


def test_the_joint_scores_count_every_target_that_is_there(evaluation):
    metrics = evaluation.metrics()
    outputs, y = drawn()
    each = [target_metrics({"test": evaluation})[f"test/bma/target {j}/rmse"] for j in range(K)]
    seen = (~y.isnan()).sum(0)
    pooled = math.sqrt(sum(int(n) * e**2 for n, e in zip(seen, each, strict=True)) / int(seen.sum()))
    assert metrics["bma/rmse"] == pytest.approx(pooled, rel=1e-6) == evaluation.curve.score[-1]
    mean, s = outputs.double().chunk(2, -1)
    law = torch.distributions.Normal(mean, (s / 2).exp(), validate_args=False)
    log_p = torch.logsumexp(law.log_prob(y.double()).nansum(-1), 0) - math.log(NETWORKS)
    assert metrics["bma/nll"] == pytest.approx(-float(log_p.mean()), rel=1e-6)
    assert all(math.isfinite(v) for v in [*metrics.values(), *evaluation.repeat_error().values()])
    assert bool(evaluation.constant_losses().isfinite().all())


def test_a_missing_target_has_no_units(evaluation):
    _, y = drawn()
    shift, scale = (torch.tensor([getattr(of, name) for of in UNITS]) for name in ("shift", "scale"))
    moved = evaluation.bma.rescaled(shift, scale)
    change = torch.where(y.isnan(), 0, scale.log()).sum(-1)
    torch.testing.assert_close(moved.log_density(shift + scale * y), evaluation.bma.log_density(y) - change)


def test_pictures_show_the_items_that_have_the_target(evaluation):
    _, y = drawn()
    for j, values in enumerate(values_of(evaluation, UNITS)):
        _, rows = alone(j)
        np.testing.assert_allclose(values.y, UNITS[j].shift + UNITS[j].scale * y[rows, j], rtol=1e-6)
        assert len(values.mean) == len(values.low) == len(rows) and values.units == UNITS[j]
    table = target_rows(target_metrics({"test": evaluation}, UNITS), values_of(evaluation, UNITS))
    assert [(name, texts[0]) for name, texts in table] == [("price", "28"), ("rent", "37")]


def test_a_single_target_has_no_scores_of_its_own():
    made = ValueEvaluation(bdl.GaussianNLL(1.0), torch.zeros(5, 1), chains=1)
    made.add([0], torch.zeros(1, 5, 1))
    assert target_metrics({"test": made}, UNITS[:1]) == {} and target_rows({}, values_of(made)) == []
