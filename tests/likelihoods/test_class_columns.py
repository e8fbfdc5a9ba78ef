"""Tests of `bdl.likelihoods.class_columns` and `bdl.posterior.class_prediction`.

Several columns of classes are scored and predicted as each of them would be by itself.
"""

import math
from typing import Any

import pytest
import torch

import bdl
from bdl.errors import ConfigError
from bdl.likelihoods import with_weights
from bdl.likelihoods.base import by_autograd
from bdl.posterior.class_evaluation import ClassEvaluation, class_metrics
from bdl.posterior.prediction import prediction_of

D64 = torch.float64
CLASSES, NAMES = (3, 2, 4), {"colour": ("r", "g", "b"), "size": ("S", "L"), "grade": tuple("abcd")}
LAW = bdl.MultiCategoricalNLL(CLASSES)
N, CHAINS, DRAWS = 40, 2, 3


def problem() -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs (networks, N, 9), and classes y (N, 3), of which some are missing."""
    generator = torch.Generator().manual_seed(2)
    outputs = torch.randn(CHAINS * DRAWS, N, sum(CLASSES), generator=generator, dtype=D64)
    y = torch.stack([torch.randint(k, (N,), generator=generator) for k in CLASSES], 1)
    y[:5, 0], y[3:9, 2] = -100, -100
    return outputs, y


def columns(outputs: torch.Tensor, y: torch.Tensor):
    for j, part in enumerate(outputs.split(CLASSES, -1)):
        rows = y[:, j] >= 0
        yield part[:, rows], y[rows, j], rows


def test_the_loss_is_that_of_the_columns_that_are_there():
    outputs, y = problem()
    expected = torch.zeros(len(outputs), N, dtype=D64)
    for part, labels, rows in columns(outputs, y):
        expected[:, rows] += bdl.CategoricalNLL()(part, labels.expand(len(part), -1))
    torch.testing.assert_close(LAW(outputs, y), expected)
    loss, gradient = LAW.mean_and_gradient(outputs, y)
    torch.testing.assert_close(loss, expected.mean(-1))
    torch.testing.assert_close(gradient, by_autograd(lambda o: LAW(o, y).mean(-1), outputs)[1])
    whole = y.clamp_min(0)
    torch.testing.assert_close(LAW.distribution(outputs).log_prob(whole), -LAW(outputs, whole))
    weighted, w = bdl.WeightedNLL(LAW), torch.arange(1.0, N + 1)
    torch.testing.assert_close(weighted(outputs, with_weights(whole, w)), w * LAW(outputs, whole))


def test_each_column_is_evaluated_as_if_it_were_alone():
    outputs, y = problem()
    chains = [0, 1] * DRAWS
    together = ClassEvaluation(LAW, y, CHAINS)
    together.add(chains, outputs)
    metrics, losses = class_metrics({"test": together}, [f"{c}={k}" for c in NAMES for k in NAMES[c]], NAMES), {}
    constants = torch.full((N, 3), torch.nan, dtype=D64)
    claims = []
    for (name, names), (part, labels, rows) in zip(NAMES.items(), columns(outputs, y), strict=True):
        alone = ClassEvaluation(bdl.CategoricalNLL(), labels, CHAINS)
        alone.add(chains, part)
        for score, value in alone.metrics().items():
            if score.startswith("bma/") and score != "bma/mean_iou":
                assert metrics[f"test/bma/{name}/{score.removeprefix('bma/')}"] == pytest.approx(value, abs=1e-6)
        never = class_metrics({"test": alone}, names, {})
        assert {k: v for k, v in metrics.items() if f"never_predicted/{name}=" in k} == {
            k.replace("predicted/", f"predicted/{name}="): v for k, v in never.items()
        }
        assert metrics[f"test/targets/{name}"] == len(labels)
        losses[name] = alone.losses()
        constants[rows, list(NAMES).index(name)] = alone.constant_losses()
        claims.append(alone.claim() * len(labels))
    assert float(together.losses().sum()) == pytest.approx(sum(float(v.sum()) for v in losses.values()), rel=1e-5)
    torch.testing.assert_close(together.constant_losses(), constants[y >= 0])
    assert together.claim() == pytest.approx(sum(claims) / int((y >= 0).sum()), abs=1e-6)
    assert all(math.isfinite(v) for v in (*together.repeat_error().values(), together.entropy()))


def test_each_column_is_predicted_as_if_it_were_alone():
    outputs, _ = problem()
    weights = torch.rand(len(outputs), generator=torch.Generator().manual_seed(0))
    prediction: Any = prediction_of([(outputs, weights)], LAW)
    frame = prediction.to_frame(NAMES)
    for (name, names), part in zip(NAMES.items(), outputs.split(CLASSES, -1), strict=True):
        alone = prediction_of([(part, weights)], bdl.CategoricalNLL()).to_frame(names)
        for column in alone:
            kind, _, label = str(column).partition("_")
            found = frame["_".join(filter(None, [kind, name, label]))]
            assert found.tolist() == (
                alone[column].tolist() if kind == "class" else pytest.approx(alone[column], abs=1e-6)
            )
    assert prediction[3:5].to_frame(NAMES).equals(frame[3:5].reset_index(drop=True)) and prediction.entropy.shape == (
        N,
        3,
    )


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: bdl.MultiCategoricalNLL((3, 1)), "classes must be 2 or more for each column"),
        (lambda: LAW.check(torch.tensor([[0, 2, 0]])), r"none of the \[3, 2, 4\] classes of its column"),
        (lambda: LAW.check(torch.tensor([[-100, -100, -100]])), "missing with all others"),
        (lambda: LAW.check(torch.tensor([0, 1])), "takes a class in each of 3 columns"),
        (lambda: LAW(torch.zeros(2, 9), torch.zeros(2, 2)), "do not fit 3 columns"),
        (lambda: LAW(torch.zeros(2, 8), torch.zeros(2, 3)), "an output for each of 9 classes"),
    ],
)
def test_what_does_not_fit_is_refused(call, line):
    with pytest.raises(ConfigError, match=line):
        call()
