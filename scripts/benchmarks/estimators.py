"""Compares the estimators of bdl.sklearn with scikit-learn's own, at their defaults: `scripts/bench.py estimators`.

Held out are 25 % of the rows, by seeds 0, 1, ... The others have standardised inputs too, and for regression a
standardised target; where they have no predictive law, the NLL is that of a normal law with the training RMSE as its
standard deviation. Seconds are CPU seconds of fit and predict, on one thread.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bdl.sklearn import BayesianMLPClassifier, BayesianMLPRegressor

KERNEL = ConstantKernel() * RBF(5.0)
CLASSIFIERS: dict[str, Callable[[int], Any]] = {
    "BayesianMLPClassifier": lambda seed: BayesianMLPClassifier(random_state=seed),
    "MLPClassifier": lambda seed: scaled(MLPClassifier(hidden_layer_sizes=(32, 32), max_iter=1000, random_state=seed)),
    "HistGradientBoostingClassifier": lambda seed: HistGradientBoostingClassifier(random_state=seed),
    "GaussianProcessClassifier": lambda seed: scaled(GaussianProcessClassifier(KERNEL, random_state=seed)),
}
REGRESSORS: dict[str, Callable[[int], Any]] = {
    "BayesianMLPRegressor": lambda seed: BayesianMLPRegressor(random_state=seed),
    "MLPRegressor": lambda seed: scaled(
        TransformedTargetRegressor(
            MLPRegressor(hidden_layer_sizes=(32, 32), max_iter=1000, random_state=seed), transformer=StandardScaler()
        )
    ),
    "HistGradientBoostingRegressor": lambda seed: HistGradientBoostingRegressor(random_state=seed),
    "GaussianProcessRegressor": lambda seed: scaled(
        GaussianProcessRegressor(KERNEL + WhiteKernel(), normalize_y=True, random_state=seed)
    ),
}


def scaled(estimator: Any) -> Any:
    return make_pipeline(StandardScaler(), estimator)


def main(*, seeds: int = 3) -> None:
    warnings.filterwarnings("ignore", module="sklearn.*")
    print("| breast_cancer | accuracy | NLL | s |\n|---|---|---|---|", flush=True)
    for name, build in CLASSIFIERS.items():
        print(row(name, build, load_breast_cancer, score_classes, seeds), flush=True)
    print("\n| diabetes | RMSE | NLL | s |\n|---|---|---|---|", flush=True)
    for name, build in REGRESSORS.items():
        print(row(name, build, load_diabetes, score_numbers, seeds), flush=True)


def row(name: str, build: Callable[[int], Any], load: Any, score: Any, seeds: int) -> str:
    """A line of the table: means over the splits, with their standard errors."""
    X, y = load(return_X_y=True)
    scores, began = [], time.process_time()
    for seed in range(seeds):
        parts = train_test_split(X, y, random_state=seed)
        scores.append(score(build(seed), *parts))
    seconds = (time.process_time() - began) / seeds
    errors = np.std(scores, 0, ddof=1) / np.sqrt(seeds)
    values = [f"{m:.4g} ± {e:.2g}" for m, e in zip(np.mean(scores, 0), errors, strict=True)]
    return f"| `{name}` | {' | '.join(values)} | {seconds:.1f} |"


def score_classes(model: Any, X: Any, X_test: Any, y: Any, y_test: Any) -> tuple[float, float]:
    """Accuracy, and NLL in nats."""
    p = model.fit(X, y).predict_proba(X_test)
    return float((p.argmax(1) == y_test).mean()), float(log_loss(y_test, p))


def score_numbers(model: Any, X: Any, X_test: Any, y: Any, y_test: Any) -> tuple[float, float]:
    """RMSE, and NLL in nats."""
    model.fit(X, y)
    mean = model.predict(X_test)
    if isinstance(model, BayesianMLPRegressor):
        nll = -float(model.predictive(X_test).log_density(torch.as_tensor(y_test)).mean())
    else:
        nll = -float(norm.logpdf(y_test, mean, predicted_std(model, X, X_test, y)).mean())
    return float(np.sqrt(np.mean((mean - y_test) ** 2))), nll


def predicted_std(model: Any, X: Any, X_test: Any, y: Any) -> Any:
    """A Gaussian process says it for each row; for others it is the RMSE on the training rows."""
    try:
        return model.predict(X_test, return_std=True)[1]
    except TypeError:
        return np.sqrt(np.mean((model.predict(X) - y) ** 2))
