"""Bins, the parts of scores and of uncertainties, against formulas evaluated by hand and against independent loops."""

import math

import numpy as np
import pytest
import torch

from bdl.errors import ConfigError
from bdl.posterior.metrics import brier_parts, classification_metrics, reliability_bins
from bdl.posterior.prediction import uncertainty


def draw(n: int, k: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(n, k, generator=generator, dtype=torch.double)).softmax(-1)
    return probs, torch.randint(k, (n,), generator=generator)


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


def test_reliability_bins_by_hand():
    probs = torch.tensor([[0.55, 0.45], [0.95, 0.05], [0.95, 0.05], [1.0, 0.0]], dtype=torch.double)
    confidence, accuracy, count = reliability_bins(probs, torch.tensor([1, 0, 1, 0]), bins=10)
    assert count.tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 3]
    assert (accuracy[5], confidence[5]) == (0, 0.55)
    assert accuracy[9].item() == pytest.approx(2 / 3) and confidence[9].item() == pytest.approx(2.9 / 3)
    assert torch.isnan(confidence[0]) and torch.isnan(accuracy[0])


def test_the_parts_of_the_brier_score_against_loops():
    """Resolution by its definition: between bins, minus the variance and plus the covariance inside them."""
    probs, labels = draw(400, 3)
    reliability = resolution = uncertainty = 0.0
    for k in range(3):
        p, y = probs[:, k].numpy(), (labels == k).numpy().astype(float)
        uncertainty += y.mean() * (1 - y.mean())
        for b in range(15):
            inside = (p >= b / 15) & (p < (b + 1) / 15)
            if not inside.any():
                continue
            pb, yb, share = p[inside], y[inside], inside.mean()
            reliability += share * (pb.mean() - yb.mean()) ** 2
            resolution += share * (yb.mean() - y.mean()) ** 2
            resolution += share * (2 * np.mean((yb - yb.mean()) * (pb - pb.mean())) - pb.var())
    parts = brier_parts(probs, labels)
    assert parts["reliability"] == pytest.approx(reliability, rel=1e-10)
    assert parts["uncertainty"] == pytest.approx(uncertainty, rel=1e-10)
    assert parts["resolution"] == pytest.approx(resolution, rel=1e-8)
    total = parts["reliability"] - parts["resolution"] + parts["uncertainty"]
    assert total == pytest.approx(classification_metrics(probs, labels)["brier"], rel=1e-10)


def test_base_rates_have_no_resolution_and_are_reliable():
    labels = torch.tensor([0, 0, 0, 1])
    parts = brier_parts(torch.tensor([[0.75, 0.25]]).expand(4, 2), labels)
    assert parts == pytest.approx({"reliability": 0, "resolution": 0, "uncertainty": 0.375})
