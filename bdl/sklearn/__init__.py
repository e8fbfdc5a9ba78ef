"""Bayesian neural networks as estimators of scikit-learn, which comes with the extra `[sklearn]`."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("sklearn") is None:
    raise ImportError("bdl.sklearn needs scikit-learn: pip install 'bdl[sklearn]'")

from bdl.sklearn.estimators import BayesianMLPClassifier, BayesianMLPRegressor

__all__ = ["BayesianMLPClassifier", "BayesianMLPRegressor"]
