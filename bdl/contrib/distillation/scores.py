"""Two predictions of the same items side by side: their scores, their uncertainties, and how far they are apart."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bdl.likelihoods import Likelihood
from bdl.posterior.class_prediction import ClassColumnsPrediction
from bdl.posterior.passes import evaluation_of
from bdl.posterior.prediction import AnyPrediction, LabelPrediction, Prediction, ValuePrediction

SCORES = ("accuracy", "rmse", "nll", "nll_normal", "ece", "quantile_error")  # as far as a kind of prediction has them


def scored(prediction: AnyPrediction, likelihood: Likelihood, y: Tensor) -> dict[str, float]:
    """`SCORES` of a prediction against y. Elements of items, such as tokens, and labels of items are rows."""
    kept: object = prediction
    if not isinstance(prediction, ValuePrediction):
        assert not isinstance(prediction, ClassColumnsPrediction)  # `numbers_kept` has refused several columns
        kept = _classes(prediction).flatten(0, -2)
        counted = likelihood.counted(y) if prediction.probs.ndim > 2 else None
        if counted is not None:
            kept, y = kept[counted], y[counted]
    likelihood.check(y)
    every = evaluation_of(likelihood.of_rows(), y, 1).scores(kept)
    return {name: every[name] for name in SCORES if name in every}


def uncertainties(prediction: AnyPrediction) -> dict[str, float]:
    """Means over items: entropies in nats, or root mean squares of standard deviations, as far as they are kept."""
    if isinstance(prediction, ValuePrediction):
        parts = {name: getattr(prediction, name).square().mean().sqrt() for name in ("std", "aleatoric", "epistemic")}
    else:
        parts = {name: getattr(prediction, name).mean() for name in ("entropy", "aleatoric", "epistemic")}
    return {name: float(value) for name, value in parts.items() if not math.isnan(value)}


def distances(teacher: AnyPrediction, student: AnyPrediction) -> dict[str, float]:
    """How far two predictions are apart.

    Of probabilities: `divergence`, mean KL(teacher | student) in nats; `total_variation`; `agreement`, the share of
    items with the same most probable class. Of numbers: `mean`, the root mean square difference of the means in the
    teacher's standard deviations, and `std`, that of the logarithms of the standard deviations.
    """
    if isinstance(teacher, ValuePrediction) and isinstance(student, ValuePrediction):
        apart = (student.mean - teacher.mean) / teacher.std
        parts = {"mean": apart.square().mean().sqrt(), "std": (student.std / teacher.std).log().square().mean().sqrt()}
        return {name: float(value) for name, value in parts.items()}
    p, q = (_classes(one).double() for one in (teacher, student))
    divergence = (torch.special.xlogy(p, p) - torch.special.xlogy(p, q)).sum(-1).mean()
    agree = (p.argmax(-1) == q.argmax(-1)).double().mean()
    return {
        "divergence": float(divergence),
        "total_variation": float((p - q).abs().sum(-1).mean() / 2),
        "agreement": float(agree),
    }


def _classes(prediction: AnyPrediction) -> Tensor:
    """(..., K) probabilities of classes, of which a label has two."""
    if isinstance(prediction, Prediction):
        return prediction.probs
    assert isinstance(prediction, LabelPrediction)
    return torch.stack([1 - prediction.probs, prediction.probs], -1)
