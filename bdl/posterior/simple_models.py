"""Simple models of the same rows: what a linear model and a Gaussian process predict, for the verdict to compare with.

A run on few rows is worth its time if a network says more than these do, which take a second.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bdl.collector import paused
from bdl.likelihoods import CategoricalNLL, HeteroscedasticNLL, Loss
from bdl.posterior.evaluation import PosteriorEvaluation

MOST_ROWS = 500  # training rows; of more, a network is hardly ever behind
MOST_OF_GP = 300  # its time grows with the cube of the rows
Split = tuple[Tensor, Tensor]  # x (n, features) and y as the network sees them


def losses_of_simple_models(loss: Loss, train: Split, test: Split) -> dict[str, Tensor]:
    """(n,) -log p(y|x) in nats of the test rows by name of the model, in the units of the network's own losses.

    {} for many rows, for several targets, and for other laws than those of classes and of one number with normal
    errors. Linear models are scikit-learn's LogisticRegression and BayesianRidge; the Gaussian process has one length
    scale, and noise (Rasmussen and Williams 2006, chapter 2).
    """
    (x, y), (x_test, y_test) = train, test
    rows = len(y)
    if rows > MOST_ROWS or x.ndim != 2 or not len(y_test) or not torch.isfinite(x).all():
        return {}
    features = x.shape[1]
    if features > rows + len(x_test):  # inner products of rows are all that these models see: the axes may turn
        x, x_test = torch.linalg.qr(torch.cat([x, x_test]).double().T, "r").R.T.split([rows, len(x_test)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that have not converged, which then predict badly
        if isinstance(loss, CategoricalNLL) and y.ndim == 1:
            return {"linear": _of_classes(x, y, x_test, y_test)}
        if type(loss) is HeteroscedasticNLL and y.shape[1:] == (1,):
            return _of_numbers(x, y[:, 0], x_test, y_test[:, 0], features)
    return {}


def _of_classes(x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor) -> Tensor:
    with paused():  # slow to import
        from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=1000).fit(x.numpy(), y.numpy())
    log_p = torch.full((len(y_test), int(max(y.max(), y_test.max())) + 1), -math.inf, dtype=torch.float64)
    log_p[:, torch.from_numpy(model.classes_)] = torch.from_numpy(model.predict_log_proba(x_test.numpy())).double()
    return -log_p.gather(1, y_test.unsqueeze(1)).squeeze(1)


def _of_numbers(x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor, features: int) -> dict[str, Tensor]:
    with paused():  # slow to import
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
        from sklearn.linear_model import BayesianRidge

    models: dict[str, Any] = {"linear": BayesianRidge()}
    if len(y) <= MOST_OF_GP:
        kernel = ConstantKernel() * RBF(math.sqrt(features)) + WhiteKernel()
        models["gp"] = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    losses = {}
    for name, model in models.items():
        mean, std = model.fit(x.double().numpy(), y.double().numpy()).predict(x_test.double().numpy(), return_std=True)
        law = torch.distributions.Normal(torch.from_numpy(mean), torch.from_numpy(std).clamp_min(1e-6))
        losses[name] = -law.log_prob(y_test.double())
    return losses


def compared(losses: Mapping[str, Tensor], evaluations: Mapping[str, PosteriorEvaluation]) -> dict[str, float]:
    """`test/simple/NAME/nll` and `.../gain_se`, the standard error of the difference from the average's losses."""
    metrics = {}
    for name, each in losses.items():
        gain = evaluations["test"].losses() - each
        metrics[f"test/simple/{name}/nll"] = float(each.mean())
        metrics[f"test/simple/{name}/gain_se"] = float(gain.std() / math.sqrt(len(gain))) if len(gain) > 1 else math.nan
    return metrics
