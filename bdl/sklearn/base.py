"""BayesianMLP: what the estimators share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from bdl.advice import naming
from bdl.data.encoding import InputEncoding
from bdl.data.far import warn_of_far
from bdl.data.kinds import NumberColumn
from bdl.data.loader import TensorSlices
from bdl.data.missing_codes import warn_of_codes
from bdl.errors import check_choice, check_whole
from bdl.likelihoods import Likelihood
from bdl.models.mlp import MLP, hidden_layers
from bdl.run.threads import on_threads
from bdl.samplers.dynamics.base import Transition
from bdl.sklearn.rows import checked_inputs, group_numbers
from bdl.sklearn.sampling import SamplingPlan, sample
from bdl.start import AdamWStart

# What an estimator calls the keys of the command, for messages
ARGUMENTS = {
    "data.target": "", "loss": "loss", "data.batch_size": "batch_size", "sampler.lr": "lr", "sampler": "sampler",
    "data.group": "groups", "data.weight": "sample_weight", "model.hidden": "hidden_layer_sizes",
    "length": "steps",
}  # fmt: skip


def dense(X: Any) -> np.ndarray:
    """(n, features): a sparse matrix, as encoders of categories make it, becomes an array."""
    return X.toarray() if issparse(X) else X


@dataclass(eq=False, repr=False)
class BayesianMLP(BaseEstimator):
    """What the classifier and the regressor share: arguments, the encoding of inputs, the run, and its predictions."""

    hidden_layer_sizes: int | Sequence[int] | Literal["auto"] = "auto"
    activation: str = "tanh"
    _: KW_ONLY
    sampler: str | Transition = "auto"
    start: AdamWStart | str | None = "adamw"
    chains: int = 10
    samples: int = 100
    steps: int | None = None
    lr: float | None = None
    batch_size: int | None = None
    temperature: float | Literal["auto"] = "auto"
    prior_std: float | str | None = None
    standardize: bool = True
    random_state: Any = None
    verbose: bool = False
    n_features_in_: int = field(init=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _predictive(self, X: Any) -> Any:
        """A `bdl.Prediction` of classes, or a `bdl.ValuePrediction` of the standardised target."""
        check_is_fitted(self)
        rows: Any = validate_data(self, checked_inputs(X), reset=False, dtype=np.float64, accept_sparse=True)
        frame = self._frame(dense(rows))
        warn_of_far(getattr(self, "_seen", ()), frame, self.posterior_.target["num_data"], "X")
        x = self.encoding_.encode(frame, "X: ", "X").double()
        with on_threads(1):
            return self.posterior_.predicted(self.posterior_.batches(TensorSlices(x, torch.zeros(len(x)))))

    def _sample(
        self, X: np.ndarray, y: Tensor, net: nn.Module, likelihood: Likelihood, groups: Any, weights: Tensor | None
    ) -> None:
        """Learn the encoding of X (n, features), and sample the posterior of the network for the encoded y."""
        columns = self._names()
        frame = pd.DataFrame(X, columns=columns)
        self._seen = tuple(NumberColumn.learn(frame[name]) for name in columns)
        as_it_is = tuple(NumberColumn(name, mean=0.0, std=1.0, fill=0.0, gaps=False) for name in columns)
        self.encoding_ = InputEncoding(self._seen if self.standardize else as_it_is)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        names = SamplingPlan.__dataclass_fields__.keys() - {"seed"}
        plan = SamplingPlan(**{name: value for name, value in vars(self).items() if name in names}, seed=seed)
        codes = group_numbers(groups, len(y), "groups")
        with naming(ARGUMENTS):
            self.posterior_, self.verdict_ = sample(
                net, likelihood, self.encoding_.encode(self._frame(X), "X: ", "X"), y, plan, codes, weights
            )

    def _names(self) -> list[str]:
        return [str(name) for name in getattr(self, "feature_names_in_", range(self.n_features_in_))]

    def _dense(self, X: Any) -> np.ndarray:
        """`dense` rows to fit. Warns of codes for missing values; zeros of a sparse matrix are none."""
        if not issparse(X):
            with naming(ARGUMENTS):
                warn_of_codes(pd.DataFrame(X, columns=self._names()), self._names(), (), "X", stacklevel=4)
        return dense(X)

    def _frame(self, X: np.ndarray) -> pd.DataFrame:
        return pd.DataFrame(X, columns=[column.name for column in self.encoding_.columns])

    def _net(self, outputs: int, rows: int, classes: int = 0) -> nn.Module:
        inputs, hidden = self.n_features_in_, self.hidden_layer_sizes
        if isinstance(hidden, str):
            check_choice("hidden_layer_sizes", hidden, ["auto"])
            hidden = hidden_layers(rows, inputs, classes)
        hidden = np.atleast_1d(hidden).tolist()
        for units in hidden:
            check_whole("units in hidden_layer_sizes", units)
        with torch.random.fork_rng(devices=[]):  # layers draw weights, which the chains' own starts replace
            return MLP([inputs, *map(int, hidden), outputs], self.activation)
