"""Adaptive calibration error, the parts of the Brier score, and errors of the most confident items, against loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_metrics import draw

from bdl.posterior.metrics import adaptive_ece, brier_parts, classification_metrics, risk_coverage


@pytest.mark.parametrize(("n", "k"), [(500, 2), (503, 6), (7, 3)])
def test_adaptive_ece_against_a_loop_over_equal_bins(n, k):
    probs, labels = draw(n, k)
    p, y = probs.numpy(), labels.numpy()
    order = np.argsort(p.max(1), kind="stable")
    total = 0.0
    for part in np.array_split(order, 15):
        if len(part):
            total += len(part) * abs((p[part].argmax(1) == y[part]).mean() - p[part].max(1).mean())
    assert adaptive_ece(probs, labels) == pytest.approx(total / n, rel=1e-10)


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


def test_risk_and_coverage_by_hand():
    confidence = torch.tensor([0.9, 0.6, 0.8, 0.7])
    probs, labels = torch.stack([confidence, 1 - confidence], 1), torch.tensor([0, 1, 0, 1])
    torch.testing.assert_close(risk_coverage(probs, labels), torch.tensor([0, 0, 1 / 3, 0.5], dtype=torch.double))
    scores = classification_metrics(probs, labels)
    assert scores["aurc"] == pytest.approx((1 / 3 + 0.5) / 4) and scores["coverage_at_5_risk"] == 0.5


def test_items_of_equal_confidence_share_their_errors():
    """The curve is the mean over all orders of the tied items, whatever their order in the data."""
    confidence = torch.tensor([0.9, 0.7, 0.7, 0.7])
    probs = torch.stack([confidence, 1 - confidence], 1)
    expected = torch.tensor([0, 1 / 6, 2 / 9, 1 / 4], dtype=torch.double)
    for labels in ([0, 1, 0, 0], [0, 0, 0, 1]):
        torch.testing.assert_close(risk_coverage(probs, torch.tensor(labels)), expected)


def test_nothing_is_covered_where_the_surest_item_is_wrong():
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2]])
    assert classification_metrics(probs, torch.tensor([1, 1]))["coverage_at_5_risk"] == 0
    assert classification_metrics(probs, torch.tensor([0, 0]))["coverage_at_5_risk"] == 1
