"""SkproRegressor: bdl's regressor behind skpro's interface, with its predictive distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

from bdl.errors import ConfigError
from bdl.posterior.prediction import ValuePrediction
from bdl.sklearn.estimators import BayesianMLPRegressor

try:
    from skpro.distributions.base import BaseDistribution  # pyright: ignore[reportMissingImports]
    from skpro.regression.base import BaseProbaRegressor  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ConfigError("SkproRegressor needs skpro: pip install 'bdl[skpro]'") from error


class PredictiveDistribution(BaseDistribution):
    """A `bdl.ValuePrediction` of one target as skpro's distribution: the mixture over networks, not an approximation.

    prediction: of as many items as the index has.
    """

    _tags = {
        "capabilities:approx": ["energy", "pdfnorm"],
        "capabilities:exact": ["mean", "var", "pdf", "log_pdf", "cdf", "ppf"],
        "distr:measuretype": "continuous",
        "broadcast_init": "off",
    }

    def __init__(self, prediction: ValuePrediction, index: Any = None, columns: Any = None):
        self.prediction = prediction
        super().__init__(index=index, columns=columns)

    def _mean(self) -> np.ndarray:
        return self.prediction.mean.double().numpy()

    def _var(self) -> np.ndarray:
        return self.prediction.std.double().square().numpy()

    def _log_pdf(self, x: Any) -> np.ndarray:
        return self.prediction.log_density_of_each(_tensor(x)).double().numpy()

    def _pdf(self, x: Any) -> np.ndarray:
        return np.exp(self._log_pdf(x))

    def _cdf(self, x: Any) -> np.ndarray:
        return self.prediction.cdf(_tensor(x)).double().numpy()

    def _ppf(self, p: Any) -> np.ndarray:
        """Each different probability is inverted for all items; a call has one or a few."""
        levels, place = np.unique(p, return_inverse=True)
        each = self.prediction.quantile(levels.tolist()).double().numpy()  # (levels, n, 1)
        return np.take_along_axis(each, place.reshape(1, *np.shape(p)), 0)[0]

    def _sample(self, n_samples: int | None = None) -> pd.DataFrame:
        seed = int(np.random.randint(2**31 - 1))
        draws = self.prediction.draw(n_samples or 1, seed).double().numpy()
        frames = [pd.DataFrame(draw, index=self.index, columns=self.columns) for draw in draws]
        return frames[0] if n_samples is None else pd.concat(frames, keys=range(n_samples))

    def _iloc(self, rowidx: Any = None, colidx: Any = None) -> PredictiveDistribution:
        index: Any = self.index
        rows = np.arange(len(index)) if rowidx is None else np.atleast_1d(rowidx)
        part = self.prediction.part(torch.as_tensor(rows, dtype=torch.long))
        return PredictiveDistribution(part, index.take(rows), self.columns)


class SkproRegressor(BaseProbaRegressor):
    """`BayesianMLPRegressor` as a probabilistic regressor of skpro, for one target.

    settings: arguments of `BayesianMLPRegressor`, as a dictionary; None for its defaults.

    >>> from bdl.contrib.decisions.skpro_regressor import SkproRegressor
    >>> SkproRegressor({"samples": 50, "random_state": 0}).settings["samples"]
    50
    """

    _tags = {"capability:multioutput": False, "capability:missing": False, "maintainers": ["bdl"]}

    def __init__(self, settings: dict[str, Any] | None = None):
        self.settings = settings
        super().__init__()

    def _fit(self, X: pd.DataFrame, y: pd.DataFrame, C: Any = None) -> SkproRegressor:
        self.columns_ = y.columns
        self.regressor_ = BayesianMLPRegressor(**(self.settings or {})).fit(X.to_numpy(), y.to_numpy()[:, 0])
        return self

    def _predict_proba(self, X: pd.DataFrame) -> Any:
        return PredictiveDistribution(self.regressor_.predictive(X.to_numpy()), X.index, self.columns_)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> Any:
        """Settings for skpro's tests, short on time."""
        short = {"hidden_layer_sizes": 3, "start": None, "chains": 2, "samples": 5, "steps": 40, "prior_std": 1.0}
        return [{"settings": short | {"random_state": seed}} for seed in (0, 1)]


def _tensor(x: Any) -> torch.Tensor:
    return torch.as_tensor(np.array(x, dtype=np.float64))
