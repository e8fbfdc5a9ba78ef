"""Scores against formulas evaluated by hand and against independent loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bdl.errors import ConfigError
from bdl.posterior.metrics import classification_metrics, reliability_bins
from bdl.posterior.prediction import uncertainty


def draw(n: int, k: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(n, k, generator=generator, dtype=torch.double)).softmax(-1)
    return probs, torch.randint(k, (n,), generator=generator)


def ece_by_loop(probs: np.ndarray, labels: np.ndarray, bins: int = 15) -> float:
    confidence, right = probs.max(1), probs.argmax(1) == labels
    total = 0.0
    for b in range(bins):
        inside = (confidence >= b / bins) & (confidence < (b + 1) / bins)
        if inside.any():
            total += inside.sum() * abs(right[inside].mean() - confidence[inside].mean())
    return total / len(labels)


def test_a_case_by_hand():
    probs = torch.tensor([[0.8, 0.2], [0.6, 0.4]], dtype=torch.double)
    scores = classification_metrics(probs, torch.tensor([0, 1]))
    assert scores["accuracy"] == 0.5
    assert scores["nll"] == pytest.approx(-(math.log(0.8) + math.log(0.4)) / 2, rel=1e-12)
    assert scores["brier"] == pytest.approx((0.04 + 0.04 + 0.36 + 0.36) / 2, rel=1e-12)
    assert scores["ece"] == pytest.approx((0.2 + 0.6) / 2, rel=1e-6)  # one item per bin; torchmetrics bins in float32


@pytest.mark.parametrize("k", [2, 6, 100])
def test_against_loops_over_items(k):
    probs, labels = draw(500, k)
    p, y = probs.numpy(), labels.numpy()
    scores = classification_metrics(probs, labels)
    assert scores["accuracy"] == pytest.approx(np.mean([p[i].argmax() == y[i] for i in range(len(y))]))
    assert scores["nll"] == pytest.approx(np.mean([-math.log(p[i, y[i]]) for i in range(len(y))]), rel=1e-12)
    squares = [sum((p[i, c] - (c == y[i])) ** 2 for c in range(k)) for i in range(len(y))]
    assert scores["brier"] == pytest.approx(np.mean(squares), rel=1e-12)
    assert scores["ece"] == pytest.approx(ece_by_loop(p, y), abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_certain_predictions_reach_the_ends_and_stay_finite(dtype):
    sure = torch.eye(3, dtype=dtype)
    wrong = classification_metrics(sure, torch.tensor([1, 2, 0]))
    assert wrong["nll"] == pytest.approx(-math.log(torch.finfo(torch.float32).tiny), rel=1e-6)
    assert (wrong["accuracy"], wrong["brier"], wrong["ece"]) == (0, 2, 1)
    right = classification_metrics(sure, torch.arange(3))
    assert (right["accuracy"], right["nll"], right["brier"], right["ece"]) == (1, 0, 0, 0)


def test_average_that_rounds_above_one_is_not_taken_for_logits():
    probs = torch.eye(4)[torch.arange(8) % 4] * (1 + 1e-6)
    assert classification_metrics(probs, torch.arange(8) % 4)["ece"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("probs", "labels", "words"),
    [
        (torch.full((3, 2), 0.5), torch.tensor([0, 1]), "need probabilities"),
        (torch.full((2, 2), 0.5), torch.tensor([0, 2]), "labels must be in 0 .. 1"),
        (torch.full((2, 2), 3.0), torch.tensor([0, 1]), "apply softmax"),
        (torch.full((2, 2), math.nan), torch.tensor([0, 1]), "got NaN"),
        (torch.ones(0, 2), torch.ones(0).long(), "n > 0"),
    ],
)
def test_mismatched_input_gets_a_clear_error(probs, labels, words):
    with pytest.raises(ConfigError, match=words):
        classification_metrics(probs, labels)


def test_networks_sure_of_different_classes_are_all_epistemic():
    each = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])  # (samples, n, K)
    parts = uncertainty(each.mean(0), torch.special.entr(each).sum(-1).mean(0))
    assert parts["total"].item() == pytest.approx(math.log(2))
    assert parts["aleatoric"].item() == 0
    assert parts["epistemic"].item() == pytest.approx(math.log(2))


def test_epistemic_part_is_the_mutual_information():
    each = torch.stack([draw(50, 5, seed)[0] for seed in range(7)])  # (samples, n, K)
    mean = each.mean(0)
    parts = uncertainty(mean, torch.special.entr(each).sum(-1).mean(0))
    kl = (each * (each / mean).log()).sum(-1).mean(0)  # I(y; θ) = E KL(p_θ || mean p)
    torch.testing.assert_close(parts["epistemic"], kl)
    torch.testing.assert_close(parts["total"], parts["aleatoric"] + parts["epistemic"])


def test_epistemic_part_of_equal_samples_is_not_negative():
    probs = draw(200, 10)[0].float()
    parts = uncertainty(probs, torch.special.entr(probs).sum(-1) + 1e-7)
    assert (parts["epistemic"] >= 0).all()


def test_reliability_bins_make_up_the_ece():
    probs, labels = draw(2000, 6)
    confidence, accuracy, count = reliability_bins(probs, labels)
    gaps = (count * (accuracy - confidence).abs()).nan_to_num().sum() / count.sum()
    assert gaps.item() == pytest.approx(classification_metrics(probs, labels)["ece"], abs=1e-5)
    assert count.sum() == len(labels)


def test_reliability_bins_by_hand():
    probs = torch.tensor([[0.55, 0.45], [0.95, 0.05], [0.95, 0.05], [1.0, 0.0]], dtype=torch.double)
    confidence, accuracy, count = reliability_bins(probs, torch.tensor([1, 0, 1, 0]), bins=10)
    assert count.tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 3]
    assert (accuracy[5], confidence[5]) == (0, 0.55)
    assert accuracy[9].item() == pytest.approx(2 / 3) and confidence[9].item() == pytest.approx(2.9 / 3)
    assert torch.isnan(confidence[0]) and torch.isnan(accuracy[0])
