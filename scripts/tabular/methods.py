"""Ten methods, each from rows to what it says of test rows: at its own defaults, or with settings by its own names.

Words have become columns of zeros and ones for all of them. Inputs, and targets that are numbers, are standardised for
all but bdl, which does that itself.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from tabular.budget import Clock, Fit, within
from tabular.scores import LEVELS, Law, mixture, of_prediction
from tabular.sources import Fold

FOLDS = 5  # of the residuals of HGB
README = {  # of bde: its defaults are for a first look, 2 chains of 10 samples
    "n_members": 8, "hidden_layers": [30, 30], "epochs": 200, "validation_split": 0.15, "lr": 1e-3,
    "weight_decay": 1e-4, "warmup_steps": 5000, "n_samples": 2000, "n_thinning": 2, "patience": 10,
}  # fmt: skip


@dataclass(frozen=True)
class Method:
    """A method: the module that has it, what predicts numbers (a `Law`) and what predicts classes (n, K)."""

    library: str
    numbers: Fit  # (fold, seed, **settings) to a Law
    classes: Fit  # (fold, seed, **settings) to probabilities (n, K)


def standardised(fold: Fold) -> Fold:
    """Inputs, and y where it has numbers, of mean 0 and std 1 on the training rows."""
    std = fold.x.std(0)
    x, x_test = ((part - fold.x.mean(0)) / np.where(std > 0, std, 1) for part in (fold.x, fold.x_test))
    if fold.classes:
        return Fold(x, fold.y, x_test, fold.y_test, fold.classes)
    y, y_test = ((part - fold.y.mean()) / fold.y.std() for part in (fold.y, fold.y_test))
    return Fold(x, y, x_test, y_test, 0)


def normal(mean: np.ndarray, std: np.ndarray, fold: Fold) -> Law:
    return mixture(mean[None], np.maximum(std, 1e-6)[None], fold.y_test)


def probabilities(model: Any, fold: Fold) -> np.ndarray:
    return model.fit(fold.x, fold.y).predict_proba(fold.x_test)


def bdl_numbers(fold: Fold, seed: int, **settings: Any) -> Law:
    from bdl.sklearn import BayesianMLPRegressor

    prediction = BayesianMLPRegressor(random_state=seed, **settings).fit(fold.x, fold.y).predictive(fold.x_test)
    return of_prediction(prediction, fold.y_test)


def bdl_classes(fold: Fold, seed: int, **settings: Any) -> np.ndarray:
    from bdl.sklearn import BayesianMLPClassifier

    return probabilities(BayesianMLPClassifier(random_state=seed, **settings), fold)


def bde_numbers(fold: Fold, seed: int, **settings: Any) -> Law:
    from bde import BdeRegressor  # type: ignore[import-not-found]
    from bde.loss import GaussianNLL  # type: ignore[import-not-found]

    x, y, x_test = (part.astype(np.float32) for part in (fold.x, fold.y, fold.x_test))
    outputs = np.asarray(
        BdeRegressor(**README | settings, loss=GaussianNLL(), seed=seed).fit(x, y).predict(x_test, raw=True)
    )
    outputs = outputs[~np.isnan(outputs).any((1, 2, 3))].astype(np.float64)  # (chains, samples, n, 2)
    outputs = outputs[:, :: max(1, outputs.shape[1] // 50)].reshape(-1, *outputs.shape[-2:])
    return mixture(outputs[..., 0], np.logaddexp(0, outputs[..., 1]) + 1e-6, fold.y_test)


def bde_classes(fold: Fold, seed: int, **settings: Any) -> np.ndarray:
    from bde import BdeClassifier  # type: ignore[import-not-found]
    from bde.loss import CategoricalCrossEntropy  # type: ignore[import-not-found]

    model = BdeClassifier(**README | settings, loss=CategoricalCrossEntropy(), seed=seed)
    model.fit(fold.x.astype(np.float32), fold.y.astype(np.int32))
    return np.asarray(model.predict_proba(fold.x_test.astype(np.float32)), np.float64)


def ensemble_numbers(fold: Fold, seed: int, **settings: Any) -> Law:
    from tabular.networks import ensemble

    out = ensemble(fold.x, fold.y, fold.x_test, 0, seed, **settings)
    return mixture(out[..., 0], out[..., 1], fold.y_test)


def ensemble_classes(fold: Fold, seed: int, **settings: Any) -> np.ndarray:
    from tabular.networks import ensemble

    return ensemble(fold.x, fold.y, fold.x_test, fold.classes, seed, **settings).mean(0)


def dropout_numbers(fold: Fold, seed: int, **settings: Any) -> Law:
    from tabular.networks import dropout

    out = dropout(fold.x, fold.y, fold.x_test, 0, seed, **settings)
    return mixture(out[..., 0], out[..., 1], fold.y_test)


def dropout_classes(fold: Fold, seed: int, **settings: Any) -> np.ndarray:
    from tabular.networks import dropout

    return dropout(fold.x, fold.y, fold.x_test, fold.classes, seed, **settings).mean(0)


def kernel_of(fold: Fold, shape: str, each: bool, linear: bool) -> Any:
    """each: a length scale for every input; linear: plus a linear kernel."""
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern

    columns = fold.x.shape[1]
    lengths: Any = np.full(columns, columns**0.5) if each else columns**0.5
    smooth = {"Matern 3/2": Matern(lengths, nu=1.5), "Matern 5/2": Matern(lengths, nu=2.5)}.get(shape, RBF(lengths))
    return ConstantKernel() * smooth + ConstantKernel() * DotProduct() if linear else ConstantKernel() * smooth


def process_numbers(
    fold: Fold, seed: int, *, shape: str = "RBF", each: bool = False, linear: bool = False, **settings: Any
) -> Law:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import WhiteKernel

    kernel = kernel_of(fold, shape, each, linear) + WhiteKernel()
    model: Any = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed, **settings).fit(fold.x, fold.y)
    mean, std = model.predict(fold.x_test, return_std=True)
    return normal(mean, std, fold)


def process_classes(fold: Fold, seed: int, *, shape: str = "RBF", linear: bool = False, **settings: Any) -> np.ndarray:
    from sklearn.gaussian_process import GaussianProcessClassifier

    kernel = kernel_of(fold, shape, False, linear)
    return probabilities(GaussianProcessClassifier(kernel, random_state=seed, **settings), fold)


def linear_numbers(fold: Fold, seed: int, **settings: Any) -> Law:
    from sklearn.linear_model import BayesianRidge

    model: Any = BayesianRidge(**settings).fit(fold.x, fold.y)
    mean, std = model.predict(fold.x_test, return_std=True)
    return normal(mean, std, fold)


def linear_classes(fold: Fold, seed: int, **settings: Any) -> np.ndarray:
    from sklearn.linear_model import LogisticRegression

    return probabilities(LogisticRegression(max_iter=1000, **settings), fold)


def ngboost_numbers(fold: Fold, seed: int, **settings: Any) -> Law:
    from ngboost import NGBRegressor  # type: ignore[import-not-found]

    law = NGBRegressor(random_state=seed, verbose=False, **settings).fit(fold.x, fold.y).pred_dist(fold.x_test)
    return normal(law.params["loc"], law.params["scale"], fold)


def ngboost_classes(fold: Fold, seed: int, **settings: Any) -> np.ndarray:
    from ngboost import NGBClassifier  # type: ignore[import-not-found]
    from ngboost.distns import k_categorical  # type: ignore[import-not-found]

    law = k_categorical(fold.classes)
    return probabilities(NGBClassifier(Dist=law, random_state=seed, verbose=False, **settings), fold)


CATBOOST = {"verbose": False, "allow_writing_files": False, "thread_count": 1}


def catboost_numbers(fold: Fold, seed: int, **settings: Any) -> Law:
    """A model for the quantiles together, and one for the mean."""
    from catboost import CatBoostRegressor  # type: ignore[import-not-found]

    def predicted(loss: str) -> np.ndarray:
        model = CatBoostRegressor(loss_function=loss, random_seed=seed, **CATBOOST, **settings)
        return model.fit(fold.x, fold.y).predict(fold.x_test)

    alphas = ",".join(f"{level:.2f}" for level in LEVELS)
    return Law(predicted("RMSE"), predicted(f"MultiQuantile:alpha={alphas}").T)


def catboost_classes(fold: Fold, seed: int, **settings: Any) -> np.ndarray:
    from catboost import CatBoostClassifier  # type: ignore[import-not-found]

    loss = "MultiClass" if fold.classes > 2 else "Logloss"
    return probabilities(CatBoostClassifier(loss_function=loss, random_seed=seed, **CATBOOST, **settings), fold)


LIGHTGBM = {"n_jobs": 1, "verbose": -1}


def lightgbm_numbers(fold: Fold, seed: int, **settings: Any) -> Law:
    """A model for each of the 19 quantiles, and one for the mean."""
    from lightgbm import LGBMRegressor  # type: ignore[import-not-found]

    def predicted(**objective: Any) -> np.ndarray:
        model = LGBMRegressor(random_state=seed, **LIGHTGBM, **settings, **objective)
        return model.fit(fold.x, fold.y).predict(fold.x_test)

    quantiles = np.stack([predicted(objective="quantile", alpha=level) for level in LEVELS])
    return Law(predicted(), quantiles)


def lightgbm_classes(fold: Fold, seed: int, **settings: Any) -> np.ndarray:
    from lightgbm import LGBMClassifier  # type: ignore[import-not-found]

    return probabilities(LGBMClassifier(random_state=seed, **LIGHTGBM, **settings), fold)


def hgb_numbers(fold: Fold, seed: int, **settings: Any) -> Law:
    """Cross-conformal: the mean of all rows' model, and around it the residuals of models that did not see the row."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.model_selection import KFold, cross_val_predict

    model = HistGradientBoostingRegressor(random_state=seed, **settings)
    folds = KFold(FOLDS, shuffle=True, random_state=seed)
    residuals = np.sort(fold.y - cross_val_predict(model, fold.x, fold.y, cv=folds))
    n, mean = len(residuals), model.fit(fold.x, fold.y).predict(fold.x_test)
    # a new residual is below the k-th of n with probability k / (n + 1)
    places = np.where(LEVELS <= 0.5, np.floor((n + 1) * LEVELS), np.ceil((n + 1) * LEVELS)).astype(int)
    return Law(mean, mean + residuals[np.clip(places, 1, n) - 1][:, None])


def hgb_classes(fold: Fold, seed: int, **settings: Any) -> np.ndarray:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return probabilities(HistGradientBoostingClassifier(random_state=seed, **settings), fold)


METHODS = {
    "linear": Method("sklearn", linear_numbers, linear_classes),
    "GP": Method("sklearn", process_numbers, process_classes),
    "HGB": Method("sklearn", hgb_numbers, hgb_classes),
    "LightGBM": Method("lightgbm", lightgbm_numbers, lightgbm_classes),
    "CatBoost": Method("catboost", catboost_numbers, catboost_classes),
    "NGBoost": Method("ngboost", ngboost_numbers, ngboost_classes),
    "MC dropout": Method("torch", dropout_numbers, dropout_classes),
    "deep ensemble": Method("torch", ensemble_numbers, ensemble_classes),
    "bdl": Method("bdl.sklearn", bdl_numbers, bdl_classes),
    "bde": Method("bde", bde_numbers, bde_classes),
}
ITSELF = ("bdl",)  # what standardises by itself


def predicted(name: str, fold: Fold, seed: int, clock: Clock | None = None) -> tuple[Law | np.ndarray, Fold]:
    """What a method says of the test rows, and the fold in whose units that is. clock: its budget, or its defaults."""
    fit = METHODS[name].classes if fold.classes else METHODS[name].numbers
    fold = fold if name in ITSELF else standardised(fold)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that have not converged, and of names of columns
        return fit(fold, seed) if clock is None else within(name, fit, fold, seed, clock), fold
