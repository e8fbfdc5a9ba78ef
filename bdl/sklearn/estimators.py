"""BayesianMLPClassifier and BayesianMLPRegressor: posteriors of multilayer perceptrons behind fit and predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data
from torch import Tensor

from bdl.advice import naming
from bdl.errors import ConfigError
from bdl.posterior.calibration import ConformalIntervals, ConformalSets
from bdl.posterior.class_prediction import ClassColumnsPrediction, Prediction
from bdl.posterior.prediction import ValuePrediction
from bdl.sklearn.base import ARGUMENTS, BayesianMLP, dense
from bdl.sklearn.columns_of_y import law_of_y, learn_classes, learn_y, normalised
from bdl.sklearn.rows import (
    checked_classes,
    checked_inputs,
    checked_numbers,
    group_numbers,
    refuse_probabilities,
    rows_that_count,
)


@dataclass(eq=False, repr=False)
class BayesianMLPClassifier(ClassifierMixin, BayesianMLP):
    """A classifier that averages the predictions of networks drawn from their posterior.

    The networks are multilayer perceptrons under a normal prior; the likelihood is categorical. Several chains of a
    sampler run together. y holds one class for each row, as numbers or as text, or one in each of k columns (n, k),
    which are independent given the row.

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
        classes_: (K,) the classes, sorted; a list of the classes of each column where y has columns.
        verdict_: whether its samples can be trusted, by what they say of the training rows; see `verdict_.line`.
        posterior_: the `bdl.Posterior`, in memory. It takes inputs as `encoding_` makes them, in double precision.
        encoding_: makes inputs of the network from rows.
        n_features_in_, feature_names_in_: columns of X, and their names where X had any.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> BayesianMLPClassifier:
        """Sample the posterior given rows X (n, features) and their classes y, (n,) or (n, k).

        sample_weight: (n,) >= 0, or None. A row of weight 2 counts as the row twice; one of weight 0 is left out.
        groups: (n,) equal for rows that depend on each other, such as those of one person. Rows that the fit holds out
            for a while, to stop the start and to compare priors, are then whole groups. The posterior is that of all.

        Raises ValueError for values that are missing or not finite, and for one class only.
        """
        X, y = checked_inputs(X), checked_classes(y)
        X, y = validate_data(self, X, y, dtype=np.float64, accept_sparse=True, multi_output=True, ensure_min_samples=2)
        y = column_or_1d(y, warn=True) if y.shape[1:] == (1,) else dense(y)
        X, y, groups, weights = rows_that_count(self._dense(X), y, groups, sample_weight)
        refuse_probabilities(y)
        check_classification_targets(y)
        classes, codes, law = learn_classes(y)
        self.classes_ = classes[0] if y.ndim == 1 else classes
        outputs = sum(map(len, classes))
        self._sample(X, codes, self._net(outputs, len(y), outputs), law, groups, weights)
        return self

    def predictive(self, X: Any) -> Prediction | ClassColumnsPrediction:
        """The whole predictive distribution, which tells aleatoric from epistemic uncertainty.

        See `bdl.Prediction`, and `bdl.ClassColumnsPrediction` of several columns.
        """
        return self._predictive(X)

    def predict_proba(self, X: Any) -> np.ndarray | list[np.ndarray]:
        """(n, K) probabilities, averaged over the posterior, in the order of `classes_`; a list of these of columns."""
        prediction = self.predictive(X)
        if isinstance(prediction, ClassColumnsPrediction):
            return [normalised(column.probs) for column in prediction.of_columns]
        return normalised(prediction.probs)

    def predict(self, X: Any) -> np.ndarray:
        """(n,) the most probable class of each row, or (n, k) of each column."""
        probs = self.predict_proba(X)
        if isinstance(probs, list):
            each = [classes[p.argmax(1)] for classes, p in zip(self.classes_, probs, strict=True)]
            return np.stack(each, 1)
        return self.classes_[probs.argmax(1)]

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
        if isinstance(prediction, ClassColumnsPrediction):
            raise ConfigError("conformal_set is made for one column of classes: fit an estimator for each column of y")
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
        loss: the law of y around a network: "normal", the law of several columns, with one outlier in a hundred rows
            where `noise` is no number, see `bdl.HeteroscedasticNLL`; "lognormal" or "gamma", for positive numbers;
            "ordinal", for a few levels in an order, such as ratings, see `bdl.OrdinalNLL`; "hurdle", see
            `bdl.HurdleNLL`, which "auto" takes where a tenth of y is one value. Compare by `predictive(X).crps(y)`.
        standardize: give every column of X, and y, mean 0 and standard deviation 1.

    Attributes:
        verdict_: whether its samples can be trusted, by what they say of the training rows; see `verdict_.line`.
        posterior_: the `bdl.Posterior`, in memory. It takes inputs as `encoding_` makes them, in double precision, and
            predicts y as `target_` makes it.
        encoding_, target_: make inputs and targets of the network.
        n_features_in_, feature_names_in_: columns of X, and their names where X had any.
    """

    noise: Literal["input", "constant"] | float | Sequence[float] = field(default="input", kw_only=True)
    loss: Literal["auto", "normal", "hurdle", "lognormal", "gamma", "ordinal"] = field(default="auto", kw_only=True)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> BayesianMLPRegressor:
        """Sample the posterior given rows X (n, features) and their numbers y, (n,) or (n, k).

        sample_weight, groups: as in `BayesianMLPClassifier.fit`.

        Raises ValueError for values that are missing or not finite, for a constant y, and where `loss` does not fit y.
        """
        X, y = checked_inputs(X), checked_numbers(y)
        X, y = validate_data(
            self, X, y, dtype=np.float64, accept_sparse=True, y_numeric=True, multi_output=True, ensure_min_samples=2
        )
        X, y, groups, weights = rows_that_count(self._dense(X), y, groups, sample_weight)
        self._y_has_columns = y.ndim > 1
        with naming(ARGUMENTS):
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
