"""What to ask next: rows of a pool, by what a fitted estimator would learn from them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from bdl.posterior.prediction import Prediction, ValuePrediction


def bald(estimator: Any, X: Any, n_instances: int = 1) -> np.ndarray:
    """(n_instances,) rows of X with the largest `information`, the largest first: a query strategy, as modAL has them.

    estimator: a fitted `BayesianMLPClassifier` or `BayesianMLPRegressor`, or a Pipeline that ends with one.
    """
    return np.argsort(-information(estimator, X), kind="stable")[:n_instances]


def epistemic_variance(estimator: Any, X: Any, n_instances: int = 1) -> np.ndarray:
    """`bald` by `disagreement`."""
    return np.argsort(-disagreement(estimator, X), kind="stable")[:n_instances]


def information(estimator: Any, X: Any) -> np.ndarray:
    """(n,) I(y; θ) of each row, nats: by how much its label is expected to reduce the entropy of the networks.

    BALD (Houlsby et al. 2011): H(E p) - E H(p) of classes. Of numbers log(std / aleatoric), summed over targets, which
    is exact for normal distributions whose mean alone is uncertain.
    """
    prediction = _predictive(estimator, X)
    if isinstance(prediction, Prediction):
        return prediction.epistemic.double().numpy()
    return (prediction.std / prediction.aleatoric).log().sum(-1).numpy()


def disagreement(estimator: Any, X: Any) -> np.ndarray:
    """(n,) variance between the networks' probabilities, summed over classes, or between their means of y."""
    prediction = _predictive(estimator, X)
    spread = prediction.std if isinstance(prediction, Prediction) else prediction.epistemic
    return spread.double().square().sum(-1).numpy()


def _predictive(estimator: Any, X: Any) -> Prediction | ValuePrediction:
    if isinstance(estimator, Pipeline):
        X, estimator = estimator[:-1].transform(X), estimator[-1]
    return estimator.predictive(X)
