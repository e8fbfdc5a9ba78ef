"""Bayesian neural networks as estimators of scikit-learn. Needs the extra `[sklearn]`; `import bdl` does not load it."""

from bdl.sklearn.estimators import BayesianMLPClassifier, BayesianMLPRegressor

__all__ = ["BayesianMLPClassifier", "BayesianMLPRegressor"]
