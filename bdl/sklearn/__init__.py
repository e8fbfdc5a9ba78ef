"""Bayesian neural networks as estimators of scikit-learn."""

from __future__ import annotations

from bdl.collector import paused

with paused():
    from bdl.sklearn.estimators import BayesianMLPClassifier, BayesianMLPRegressor

__all__ = ["BayesianMLPClassifier", "BayesianMLPRegressor"]
