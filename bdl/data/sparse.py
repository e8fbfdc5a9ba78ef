"""Wide tables: the few inputs of which a lasso predicts better than a ridge regression does of all."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from bdl.data.table_encoding import TableEncoding

FOLDS = 5
MOST_ROWS = 2000  # training rows; of more, all inputs are kept
FEWEST_ROWS = 30  # training rows that tell one input from another
STEADY = 4  # folds in which the lasso has to keep an input: those that fit by chance are others in each
GAIN = 0.1  # share of a ridge's squared error by which the lasso has to be better, and by so many standard errors:
ERRORS = 2.0
PENALTIES = np.logspace(0, -2, 20)  # of the lasso, in that at which it keeps no input
SHRINKAGES = np.logspace(-2, 4, 13)  # of the ridge, in the rows
Splits: TypeAlias = dict[str, tuple[Tensor, Tensor]]


def with_few_inputs(
    encoding: TableEncoding, splits: Splits, widths: list[int], groups: Tensor | None
) -> tuple[TableEncoding, Splits, str | None]:
    """The columns that `few_inputs` chooses, the splits with their inputs, and what was done; else all, and None.

    widths: how many inputs each column makes. groups: (n,) of the training rows, see `DataModule.groups`.
    """
    x, y = splits["train"]
    found = few_inputs(x[:, : sum(widths)].numpy(), y.numpy(), None if groups is None else groups.numpy())
    if found is None:
        return encoding, splits, None
    of_input = np.repeat(np.arange(len(widths)), widths)
    kept, explained = sorted({int(of_input[i]) for i in found[0]}), found[1]
    inputs = replace(encoding.inputs, columns=tuple(encoding.inputs.columns[j] for j in kept))
    places = torch.cat(
        [torch.from_numpy(np.flatnonzero(np.isin(of_input, kept))), torch.arange(sum(widths), x.shape[1])]
    )
    words = (
        f"of more columns than rows, a lasso keeps {len(kept)}, which explain {100 * explained[0]:.0f} % of the target "
        f"in rows held out for that, and a ridge of all {100 * max(0, explained[1]):.0f} % (data.select=all keeps all)"
    )
    return replace(encoding, inputs=inputs), {s: (x[:, places], y) for s, (x, y) in splits.items()}, words


def few_inputs(
    x: np.ndarray, y: np.ndarray, groups: np.ndarray | None = None
) -> tuple[np.ndarray, tuple[float, float]] | None:
    """The inputs that a lasso keeps, and the shares of the target that it and a ridge explain in held-out rows.

    By cross-validation: the lasso has the largest penalty whose error is within a standard error of the least (Hastie,
    Tibshirani and Friedman 2009, section 7.10), for each target, and keeps an input in STEADY of the folds. None where
    the ridge is about as good, as where many inputs say a little each, and where the rows are too few or too many to
    tell.

    x: (n, d); y: (n,) classes, or (n, k) numbers, NaN where some are missing, or classes, then below 0. groups: (n,).
    """
    codes = np.unique(np.arange(len(x)) if groups is None else groups, return_inverse=True)[1]
    if not FEWEST_ROWS <= len(x) <= MOST_ROWS or codes.max() < FOLDS:
        return None
    folds = np.random.default_rng(0).permutation(codes.max() + 1)[codes] % FOLDS
    kept: set[int] = set()
    errors = np.zeros((2, FOLDS))  # of lasso and ridge, in shares of the variance
    targets = [z for z in _numbers_of(y) if np.nanstd(z) > 0]
    for z in targets:
        rows = ~np.isnan(z)
        if any(np.ptp(z[rows & (folds != k)], axis=0) == 0 or not (rows & (folds == k)).any() for k in range(FOLDS)):
            return None
        of_target = x[rows].astype(np.float64), (z[rows] - z[rows].mean()) / z[rows].std(), folds[rows]
        error, chosen = _lasso(*of_target)
        kept |= set(chosen.tolist())
        errors += np.stack([error, _ridge(*of_target)]) / len(targets)
    gain = errors[1] - errors[0]
    clear = gain.mean() > max(ERRORS * gain.std(ddof=1) / FOLDS**0.5, GAIN * errors[1].mean())
    explained = 1 - errors.mean(1)
    return (np.array(sorted(kept)), (float(explained[0]), float(explained[1]))) if clear and kept else None


def _numbers_of(y: np.ndarray) -> list[np.ndarray]:
    """The targets as numbers: of classes, one that is 1 in the rows of a class, but for the first class."""
    columns = y.reshape(len(y), -1).T
    if y.dtype.kind == "f":
        return list(columns.astype(np.float64))
    each = [(column, k) for column in columns for k in range(1, int(column.max()) + 1)]
    return [np.where(column < 0, np.nan, (column == k).astype(np.float64)) for column, k in each]


def _lasso(x: np.ndarray, z: np.ndarray, folds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(FOLDS,) mean squared errors, and the inputs that are kept."""
    from sklearn.linear_model import lasso_path  # slow to import

    penalties = PENALTIES * np.abs(x.T @ z).max() / len(z)
    errors, used = np.zeros((FOLDS, len(penalties))), np.zeros((x.shape[1], len(penalties)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a path need not be exact to choose by
        for k in range(FOLDS):
            rows = folds != k
            shift, mean = x[rows].mean(0), z[rows].mean()
            _, weights, _ = lasso_path(
                np.asfortranarray(x[rows] - shift), z[rows] - mean, alphas=penalties, tol=1e-3, max_iter=300
            )
            used += weights != 0
            errors[k] = np.square(mean + (x[~rows] - shift) @ weights - z[~rows, None]).mean(0)
    each = errors.mean(0)
    best = int(each.argmin())
    largest = int(np.flatnonzero(each <= each[best] + errors[:, best].std(ddof=1) / FOLDS**0.5)[0])
    return errors[:, largest], np.flatnonzero(used[:, largest] >= STEADY)


def _ridge(x: np.ndarray, z: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """(FOLDS,) mean squared errors of the best of SHRINKAGES, by the inner products of rows."""
    products, errors = x @ x.T, np.zeros((len(SHRINKAGES), FOLDS))
    scale = np.trace(products) / len(z)
    for k in range(FOLDS):
        rows = folds != k
        among, mean = products[np.ix_(rows, rows)], z[rows].mean()
        values, vectors = np.linalg.eigh(among)
        of_rows, beside = vectors.T @ (z[rows] - mean), products[np.ix_(~rows, rows)] @ vectors
        for i, shrinkage in enumerate(SHRINKAGES):
            predicted = mean + beside @ (of_rows / (values.clip(0) + shrinkage * scale))
            errors[i, k] = np.square(predicted - z[~rows]).mean()
    return errors[errors.mean(1).argmin()]
