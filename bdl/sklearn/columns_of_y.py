"""What estimators learn of y, one column or several, and the likelihood."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from bdl.data.missing_codes import warn_of_codes
from bdl.data.target import NumberTarget
from bdl.data.target_law import HURDLE, NAMES, NORMAL, ORDINAL
from bdl.data.targets import NumberTargets, labels_of, number_targets
from bdl.errors import ConfigError
from bdl.likelihoods import (
    CategoricalNLL,
    GaussianNLL,
    Likelihood,
    MultiCategoricalNLL,
    likelihood_of,
    with_constant_scale,
)

Noise = str | float | Sequence[float]


def learn_classes(y: np.ndarray) -> tuple[list[np.ndarray], Tensor, Likelihood]:
    """The classes of each column of y, (n,) or (n, k), sorted; their numbers (n,) or (n, k); and the likelihood.

    Raises ConfigError for one class only.
    """
    columns = [np.unique(column, return_inverse=True) for column in y.reshape(len(y), -1).T]
    classes = [each for each, _ in columns]
    for j, each in enumerate(classes):
        if len(each) < 2:
            name = "y" if y.ndim == 1 else f"y[:, {j}]"
            raise ConfigError(
                f"{name} has one class only, {each[:1].tolist()[0]!r}, in {len(y)} rows: give rows of another class"
            )
    codes = torch.from_numpy(np.stack([codes for _, codes in columns], 1).reshape(y.shape)).long()
    return classes, codes, CategoricalNLL() if y.ndim == 1 else MultiCategoricalNLL(tuple(map(len, classes)))


def normalised(probs: Tensor) -> np.ndarray:
    """(n, K) probabilities whose sums are 1 in double precision, where those of float32 are so within 1e-7."""
    p = probs.double().numpy()
    return p / p.sum(1, keepdims=True)


def learn_y(y: np.ndarray, loss: str, noise: Noise, standardize: bool) -> tuple[NumberTarget | NumberTargets, Tensor]:
    """What is learned of y, (n,) or (n, k), and the labels (n, k) of the network. One column is learned as y (n,) is.

    Raises ConfigError for a constant column, and for a loss that is unknown or does not fit y.
    """
    y = y[:, 0] if y.shape[1:] == (1,) else y
    if loss not in NAMES:
        raise ConfigError(f"loss must be one of {', '.join(NAMES)}, got {loss!r}")
    if y.ndim > 1 and loss not in ("auto", "normal"):
        raise ConfigError(f"loss={loss!r} is of one number for each row, and y has shape {y.shape}: loss='normal' fits")
    plain = y.ndim > 1 or loss == "auto" and (not _is(noise, "input") or not standardize)
    asked, frame = NORMAL if plain else NAMES[loss], pd.DataFrame(y, dtype=np.float64)
    frame.columns = ["y"] if y.ndim == 1 else [f"y{j}" for j in range(y.shape[1])]
    learned = []
    for name in frame:
        column: Any = frame[name]
        if column.min() == column.max():
            raise ConfigError(f"{name} is {column[0]:g} in all {len(y)} rows: nothing can be learned about a constant")
        part = NumberTarget.learn(column, "y", "regression", asked)
        as_it_is = not standardize and part.loss.get("_target_", NORMAL) == NORMAL
        learned.append(dataclasses.replace(part, mean=0.0, std=1.0) if as_it_is else part)
    masses = [part.loss.get("_target_") == HURDLE for part in learned]  # at 0 they need no word
    warn_of_codes(frame.where((frame != 0) | ~np.array(masses)), list(frame), (), "y", stacklevel=4)
    target = learned[0] if y.ndim == 1 else NumberTargets(tuple(learned))
    return target, labels_of(target, frame, "y")


def law_of_y(
    target: NumberTarget | NumberTargets, loss: str, noise: Noise, net: Callable[[int], nn.Module]
) -> tuple[nn.Module, Likelihood]:
    """The network, made by its number of outputs, and its likelihood, in the units that the network sees.

    Raises ConfigError for noise that does not fit.
    """
    k, kind = len(number_targets(target)), target.loss.get("_target_", NORMAL)
    predicted = likelihood_of({"type": kind, **target.loss})
    assert predicted is not None
    if kind == ORDINAL and _is(noise, "input"):
        return with_constant_scale(net(1), predicted.num_outputs(1) - 1), predicted
    if _is(noise, "input"):
        return net(predicted.num_outputs(k)), predicted
    if kind in (HURDLE, ORDINAL) or kind != NORMAL and not _is(noise, "constant"):
        raise ConfigError(f"noise={noise!r} does not fit loss={loss!r}: noise='input' does")
    if _is(noise, "constant"):
        return with_constant_scale(net(k), k), predicted
    if isinstance(noise, str) or np.size(noise) not in (1, k) or not np.all(np.asarray(noise) > 0):
        several = f", or one for each of {k} columns of y" if k > 1 else ""
        raise ConfigError(f"noise must be 'input', 'constant' or a number > 0{several}; got {noise!r}")
    std: Any = np.asarray(noise, dtype=float) / np.asarray(target.std)
    return net(k), GaussianNLL(std)


def _is(noise: Noise, word: str) -> bool:
    return isinstance(noise, str) and noise == word
