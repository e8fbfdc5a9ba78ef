"""ScoringBenchWrapper: a regressor of bdl as ScoringBench takes a model, with fit and predictive quantiles."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from bdl.errors import ConfigError
from bdl.sklearn.estimators import BayesianMLPRegressor


class ScoringBenchWrapper:
    """`BayesianMLPRegressor` on tables of numbers and categories, whose predictive distribution is read by quantiles.

    An entry of ScoringBench's MODELS is `"bdl": lambda: ScoringBenchWrapper()`.

    n_quantiles: how many, evenly spaced between 0 and 1. settings: arguments of `BayesianMLPRegressor`.
    """

    def __init__(self, n_quantiles: int = 99, **settings: Any):
        self.levels = (np.arange(n_quantiles) + 1) / (n_quantiles + 1)
        self.settings = settings

    def fit(self, X: Any, y: Any) -> Self:
        X = pd.DataFrame(X)
        words = list(X.select_dtypes(exclude="number").columns)
        encode = (OneHotEncoder(handle_unknown="ignore", sparse_output=False), words)
        columns = make_column_transformer(encode, remainder="passthrough", verbose_feature_names_out=False)
        y = np.asarray(y, dtype=np.float64).reshape(-1)
        self.train_range_ = float(y.min()), float(y.max())
        self.model_: Any = make_pipeline(columns, BayesianMLPRegressor(**self.settings)).fit(X, y)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """(n,) means."""
        return self.model_.predict(pd.DataFrame(X))

    def predict_quantiles(self, X: Any) -> np.ndarray:
        """(n, n_quantiles) quantiles of the predictive distribution at `levels`."""
        encode, regressor = self.model_[:-1], self.model_[-1]
        return regressor.predict_quantiles(encode.transform(pd.DataFrame(X)), self.levels)

    def predict_distribution(self, X: Any) -> Any:
        """ScoringBench's DistributionPrediction. Raises ConfigError where ScoringBench is not on the path."""
        try:
            from scoringbench.univariate.wrappers.base import DistributionPrediction  # pyright: ignore
        except ImportError as error:
            raise ConfigError(
                "predict_distribution needs ScoringBench: run it in a clone, which has scoringbench/"
            ) from error
        mean, q = self.predict(X), self.predict_quantiles(X)
        return DistributionPrediction.from_multi_quantile(q, self.levels, mean=mean, train_range=self.train_range_)
