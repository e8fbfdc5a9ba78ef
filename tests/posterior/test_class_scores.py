"""Scores of classes against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn import metrics

import bdl
from bdl.posterior.class_evaluation import ClassEvaluation
from bdl.posterior.class_scores import ClassScores


@pytest.mark.parametrize("classes", [2, 5])
def test_each_score_is_that_of_scikit_learn(classes):
    """With ties among the probabilities, and classes of different sizes."""
    random = torch.Generator().manual_seed(0)
    probs = (2 * torch.randn(300, classes, generator=random)).round().softmax(-1).double()
    labels = torch.multinomial(probs.pow(0.5), 1, generator=random).squeeze(1)
    scores, predicted = ClassScores.of(probs, labels), probs.argmax(1)
    precision, recall, _, support = metrics.precision_recall_fscore_support(labels, predicted)
    for mine, theirs in ((scores.precision, precision), (scores.recall, recall), (scores.items, support)):
        np.testing.assert_allclose(mine, theirs)
    np.testing.assert_allclose(scores.iou, metrics.jaccard_score(labels, predicted, average=None))
    each = [metrics.roc_auc_score(labels == k, probs[:, k]) for k in range(classes)]
    np.testing.assert_allclose(scores.auc, each)
    ap = [metrics.average_precision_score(labels == k, probs[:, k]) for k in range(classes)]
    np.testing.assert_allclose(scores.ap, ap)
    means = scores.means()
    assert means["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(labels, predicted))
    assert means["auc"] == pytest.approx(np.mean(each))
    assert means["average_precision"] == pytest.approx(ap[int(support.argmin())] if classes == 2 else np.mean(ap))


def test_class_that_nobody_has_or_predicts_is_left_out_of_means():
    probs = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.6, 0.4, 0.0]])
    scores = ClassScores.of(probs, torch.tensor([0, 1, 1]))
    assert torch.isnan(scores.recall[2]) and torch.isnan(scores.auc[2]) and torch.isnan(scores.iou[2])
    assert scores.means() == {"balanced_accuracy": 0.75, "mean_iou": 0.5, "auc": 1.0, "average_precision": 1.0}


def test_they_score_the_average_and_mean_iou_only_pixels():
    y = torch.tensor([0, 1, 1, 0])
    logits = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    for pixels in (False, True):
        evaluation = ClassEvaluation(bdl.CategoricalNLL(), y, 2, pixels=pixels)
        evaluation.add([0, 1], logits)
        means = ClassScores.of(evaluation.bma, y).means()
        metrics = evaluation.metrics()
        assert metrics["bma/balanced_accuracy"] == means["balanced_accuracy"] and metrics["bma/auc"] == means["auc"]
        assert metrics.get("bma/mean_iou") == (means["mean_iou"] if pixels else None)
