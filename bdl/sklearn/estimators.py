"""BayesianMLPClassifier and BayesianMLPRegressor: posteriors of multilayer perceptrons behind fit and predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from bdl.data.encoding import InputEncoding
from bdl.data.kinds import NumberColumn
from bdl.data.loader import TensorSlices
from bdl.errors import ConfigError
from bdl.likelihoods import CategoricalNLL, Likelihood
from bdl.models.mlp import MLP, hidden_layers
from bdl.posterior.calibration import ConformalIntervals, ConformalSets
from bdl.posterior.prediction import Prediction, ValuePrediction
from bdl.run.threads import on_threads
from bdl.samplers.dynamics.base import Transition
from bdl.sklearn.columns_of_y import law_of_y, learn_y
from bdl.sklearn.rows import group_numbers, rows_that_count
from bdl.sklearn.sampling import SamplingPlan, sample
from bdl.start import AdamWStart


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
        rows: Any = validate_data(self, X, reset=False, dtype=np.float64, accept_sparse=True)
        frame = self._frame(dense(rows))
        if self.standardize:
            self.encoding_.warn_of_far(frame, self.posterior_.target["num_data"], "X")
        x = self.encoding_.encode(frame, "X: ", "X").double()
        with on_threads(1):
            return self.posterior_.predict(TensorSlices(x, torch.zeros(len(x))))

    def _sample(
        self, X: np.ndarray, y: Tensor, net: nn.Module, likelihood: Likelihood, groups: Any, weights: Tensor | None
    ) -> None:
        """Learn the encoding of X (n, features), and sample the posterior of the network for the encoded y."""
        columns = [str(name) for name in getattr(self, "feature_names_in_", range(X.shape[1]))]
        frame = pd.DataFrame(X, columns=columns)
        learned = (NumberColumn.learn(frame[name]) for name in columns)
        as_it_is = (NumberColumn(name, mean=0.0, std=1.0, fill=0.0, gaps=False) for name in columns)
        self.encoding_ = InputEncoding(tuple(learned if self.standardize else as_it_is))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        names = SamplingPlan.__dataclass_fields__.keys() - {"seed"}
        plan = SamplingPlan(**{name: value for name, value in vars(self).items() if name in names}, seed=seed)
        codes = group_numbers(groups, len(y), "groups")
        self.posterior_, self.verdict_ = sample(
            net, likelihood, self.encoding_.encode(self._frame(X), "X: ", "X"), y, plan, codes, weights
        )

    def _frame(self, X: np.ndarray) -> pd.DataFrame:
        return pd.DataFrame(X, columns=[column.name for column in self.encoding_.columns])

    def _net(self, outputs: int, rows: int, classes: int = 0) -> nn.Module:
        inputs, hidden = self.n_features_in_, self.hidden_layer_sizes
        hidden = hidden_layers(rows, inputs, classes) if isinstance(hidden, str) else np.atleast_1d(hidden).tolist()
        with torch.random.fork_rng(devices=[]):  # layers draw weights, which the chains' own starts replace
            return MLP([inputs, *map(int, hidden), outputs], self.activation)


@dataclass(eq=False, repr=False)
class BayesianMLPClassifier(ClassifierMixin, BayesianMLP):
    """A classifier that averages the predictions of networks drawn from their posterior.

    The networks are multilayer perceptrons under a normal prior; the likelihood is categorical. Several chains of a
    sampler run together. y holds one class for each row, as numbers or as text.

    Args:
        hidden_layer_sizes: units of each hidden layer, or the units of a single one; () is a linear model. "auto":
            see `bdl.models.mlp.hidden_layers`.
        activation: "tanh", "relu", "silu" or "gelu".
        sampler: "mclmc" (microcanonical Langevin) and "hmc" take all rows at every step and find their own step size;
            "sghmc" takes batches. "auto": "mclmc" for up to 50,000 rows, "sghmc" for more. Or dynamics such as
            `bdl.SGHMC(friction=0.05)`.
        start: "adamw" trains the chains as a deep ensemble first, see `bdl.AdamWStart`, which may also be passed; None
            begins at random.
        chains: independent chains. Two or more show whether they agree.
        samples: networks that are kept of each chain; the average is over chains x samples networks.
        steps: how many each chain takes. The first 40 % are burn-in. None: 20,000 on all of up to 1,200 rows, fewer on
            more rows, and down to a quarter where chains agree in a trial; at least 2,500; 80,000 on batches.
        lr: step size in the units of SGD, at which "mclmc" and "hmc" begin their search. None finds it.
        batch_size: rows of a batch, for samplers that take batches. None finds it.
        temperature: T of exp(-U/T); 1 is the Bayes posterior, which "auto" takes for numbers. For classes "auto" finds
            T by the predictions for rows that are held out meanwhile: at T = 0.1 each row counts ten times.
        prior_std: standard deviation of the prior of every weight; "fan_in" and "he" scale it by the layer's inputs.
            None finds it by the predictions for rows that are held out meanwhile; it is 1 where the chains of short
            trials do not come to rest, or there are too few steps for such trials.
        standardize: give every column of X mean 0 and standard deviation 1.
        random_state: seed; the same one gives the same samples to the bit.
        verbose: show progress, and afterwards whether the samples can be trusted.

    Attributes:
        classes_: (K,) the classes, sorted.
        verdict_: whether its samples can be trusted, by what they say of the training rows; see `verdict_.line`.
        posterior_: the `bdl.Posterior`, in memory. It takes inputs as `encoding_` makes them, in double precision.
        encoding_: makes inputs of the network from rows.
        n_features_in_, feature_names_in_: columns of X, and their names where X had any.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> BayesianMLPClassifier:
        """Sample the posterior given rows X (n, features) and their classes y (n,).

        sample_weight: (n,) >= 0, or None. A row of weight 2 counts as the row twice; one of weight 0 is left out.
        groups: (n,) equal for rows that depend on each other, such as those of one person. Rows that the fit holds out
            for a while, to stop the start and to compare priors, are then whole groups. The posterior is that of all.

        Raises ValueError for values that are missing or not finite, and for one class only.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, accept_sparse=True, ensure_min_samples=2)
        X, y, groups, weights = rows_that_count(dense(X), y, groups, sample_weight)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ConfigError(f"y has one class only, {self.classes_[0]!r}: give rows of another class")
        net = self._net(len(self.classes_), len(y), len(self.classes_))
        self._sample(X, torch.from_numpy(codes).long(), net, CategoricalNLL(), groups, weights)
        return self

    def predictive(self, X: Any) -> Prediction:
        """The whole predictive distribution; it tells aleatoric from epistemic uncertainty. See `bdl.Prediction`."""
        return self._predictive(X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, K) probabilities, averaged over the posterior, in the order of `classes_`."""
        p = self.predictive(X).probs.double().numpy()
        return p / p.sum(1, keepdims=True)  # float32 sums to 1 within 1e-7 only

    def predict(self, X: Any) -> np.ndarray:
        """(n,) the most probable class of each row."""
        likeliest = self.predict_proba(X).argmax(1)
        return self.classes_[likeliest]

    def conformal_set(
        self, X: Any, X_val: Any, y_val: Any, coverage: float = 0.9, groups_val: Any = None, by_class: bool = False
    ) -> np.ndarray:
        """(n, K) whether a class belongs to the set of a row; the sets hold the true class with this probability.

        That holds on average over rows that are exchangeable with (X_val, y_val), which `fit` must not have seen; see
        `bdl.ConformalSets`. With groups_val (n,), of rows that depend on each other, it holds for rows of new groups;
        by_class, for the rows of each class by themselves.
        Raises ValueError for too few rows or groups, and for classes that `fit` has not seen.
        """
        prediction: Any = self.predictive(X_val)
        codes = np.searchsorted(self.classes_, y_val).clip(max=len(self.classes_) - 1)
        if strange := np.asarray(y_val)[self.classes_[codes] != np.asarray(y_val)].tolist():
            raise ConfigError(f"y_val has the class {strange[0]!r}, which fit has not seen: leave its rows out")
        new: Any = self.predictive(X)
        groups = group_numbers(groups_val, len(codes), "groups_val")
        return ConformalSets.fit(prediction, torch.from_numpy(codes), coverage, groups, by_class)(new).numpy()


@dataclass(eq=False, repr=False)
class BayesianMLPRegressor(RegressorMixin, BayesianMLP):
    """A regressor whose predictive distribution is a mixture over networks drawn from their posterior.

    The networks are multilayer perceptrons under a normal prior; errors are normal. Several chains of a sampler run
    together. y holds one number for each row, (n,), or k numbers, (n, k). The networks see each of them standardised,
    and predictions have the shape and the units of y.

    Args:
        hidden_layer_sizes, activation, sampler, start, chains, samples, steps, lr, batch_size, temperature, prior_std,
            random_state, verbose: see `BayesianMLPClassifier`.
        noise: the standard deviation of y around the mean of a network. "input": it depends on the row, and is an
            output of the network. "constant": one for all rows, learned. A number: known, in the units of y; or a list
            of one for each of the k columns.
        loss: the law of y around a network: "normal", the law of several columns; "lognormal" or "gamma", for positive
            numbers; "hurdle", see `bdl.HurdleNLL`, which "auto" takes where a tenth of y is one value. Compare by
            `predictive(X).crps(y)`.
        standardize: give every column of X, and y, mean 0 and standard deviation 1.

    Attributes:
        verdict_: whether its samples can be trusted, by what they say of the training rows; see `verdict_.line`.
        posterior_: the `bdl.Posterior`, in memory. It takes inputs as `encoding_` makes them, in double precision, and
            predicts y as `target_` makes it.
        encoding_, target_: make inputs and targets of the network.
        n_features_in_, feature_names_in_: columns of X, and their names where X had any.
    """

    noise: Literal["input", "constant"] | float | Sequence[float] = field(default="input", kw_only=True)
    loss: Literal["auto", "normal", "hurdle", "lognormal", "gamma"] = field(default="auto", kw_only=True)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> BayesianMLPRegressor:
        """Sample the posterior given rows X (n, features) and their numbers y, (n,) or (n, k).

        sample_weight, groups: as in `BayesianMLPClassifier.fit`.

        Raises ValueError for values that are missing or not finite, for a constant y, and where `loss` does not fit y.
        """
        X, y = validate_data(
            self, X, y, dtype=np.float64, accept_sparse=True, y_numeric=True, multi_output=True, ensure_min_samples=2
        )
        X, y, groups, weights = rows_that_count(dense(X), y, groups, sample_weight)
        self._y_has_columns = y.ndim > 1
        self.target_, labels = learn_y(y, self.loss, self.noise, self.standardize)
        net, likelihood = law_of_y(self.target_, self.loss, self.noise, lambda outputs: self._net(outputs, len(y)))
        self._sample(X, labels, net, likelihood, groups, weights)
        return self

    def predictive(self, X: Any) -> ValuePrediction:
        """The whole predictive distribution, in the units of y; see `bdl.ValuePrediction`.

        It tells aleatoric from epistemic uncertainty, which the other methods add up.
        """
        prediction = self._predictive(X).rescaled(self.target_.mean, self.target_.std)
        if self.standardize:
            self.target_.warn_of_far(prediction.mean, prediction.std, self.posterior_.target["num_data"], "X")
        return prediction

    def predict(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predictive means of the shape of y; with `return_std` also the standard deviations, noise included."""
        prediction = self.predictive(X)
        mean = self._like_y(prediction.mean)
        return (mean, self._like_y(prediction.std)) if return_std else mean

    def predict_interval(self, X: Any, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """(low, high), each of the shape of y: the central interval that holds y with the probability `coverage`."""
        low, high = self.predictive(X).interval(coverage)
        return self._like_y(low), self._like_y(high)

    def conformal_interval(
        self, X: Any, X_val: Any, y_val: Any, coverage: float = 0.9, groups_val: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(low, high), of the shape of y: intervals that hold y with this probability, whatever the posterior is worth.

        That holds on average over rows that are exchangeable with (X_val, y_val), which `fit` must not have seen; see
        `bdl.ConformalIntervals`. With groups_val (n,), of rows that depend on each other, it holds for rows of new
        groups. Raises ValueError for too few rows or groups.
        """
        y = torch.tensor(np.asarray(y_val, dtype=np.float64))
        groups = group_numbers(groups_val, len(y), "groups_val")
        low, high = ConformalIntervals.fit(self.predictive(X_val), y, coverage, groups)(self.predictive(X))
        return self._like_y(low), self._like_y(high)

    def predict_quantiles(self, X: Any, quantiles: float | Sequence[float] = (0.05, 0.5, 0.95)) -> np.ndarray:
        """(n, q) quantiles of the predictive distribution, or (n, k, q) of k columns; q = 1 for one number."""
        return self._like_y(self.predictive(X).quantile(np.atleast_1d(quantiles).tolist()).movedim(0, -1))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int = 0) -> np.ndarray:
        """(n, n_samples) draws from the predictive distribution, or (n, k, n_samples) of k columns.

        One draw comes from one network, for all rows.
        """
        return self._like_y(self.predictive(X).draw(n_samples, random_state).movedim(0, -1))

    def _like_y(self, values: Tensor) -> np.ndarray:
        """Values (n, k, ...) without the axis of targets where y had none."""
        return (values if self._y_has_columns else values[:, 0]).double().numpy()
