"""Which items are for training, validation and testing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sized
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.seeding import generator

Items = TypeVar("Items", bound=Sized)


def hold_out(
    items: int, fraction: float, seed: int, fold: int = 0, groups: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Rows of the items that are kept and of those held out, both in ascending order.

    >>> kept, held_out = hold_out(items=8, fraction=0.25, seed=0)
    >>> len(kept), len(held_out)
    (6, 2)

    Args:
        items: number of items.
        fraction: share of the items held out, in [0, 1).
        seed: decides a random order of the items.
        fold: which part of that order is held out, from 0 to 1 / fraction - 1.
        groups: (items,) whose rows stay together: a share of the groups is held out, one at least. A single group is
            divided.

    Raises ConfigError for a fraction or a fold out of range, and when no item would be kept.
    """
    if not 0 <= fraction < 1:
        raise ConfigError(f"data.val_fraction must be in [0, 1), got {fraction}")
    if fold and not 0 < (fold + 1) * fraction <= 1:
        raise ConfigError(
            f"data.fold must be from 0 to 1 / data.val_fraction - 1, got {fold} with data.val_fraction {fraction}"
        )
    if groups is not None and fraction and len(every := groups.unique()) > 1:
        _, out = hold_out(len(every), max(fraction, 1 / len(every)), seed, fold)
        held = torch.isin(groups, every[out.to(every.device)]).cpu()
        return (~held).nonzero().flatten(), held.nonzero().flatten()
    rows = torch.randperm(items, generator=generator("cpu", "split", seed))
    start, end = (round(fraction * items * k) for k in (fold, fold + 1))
    if end - start == items:
        raise ConfigError(f"data.val_fraction = {fraction} holds out all of the {items} items: lower it")
    return torch.cat([rows[:start], rows[end:]]).sort().values, rows[start:end].sort().values


def train_test_rows(items: int, test_fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the training and of the test items, both in ascending order.

    They are those of scikit-learn's `train_test_split(test_size=test_fraction, random_state=seed)`, so that results
    compare with published ones.

    >>> train, test = train_test_rows(items=10, test_fraction=0.2, seed=42)
    >>> train.tolist(), test.tolist()
    ([0, 2, 3, 4, 5, 6, 7, 9], [1, 8])

    Raises ConfigError unless both parts get items.
    """
    if not 0 < test_fraction < 1:
        raise ConfigError(f"data.test_fraction must be in (0, 1), got {test_fraction}")
    count = math.ceil(test_fraction * items)
    if count >= items:
        raise ConfigError(f"data.test_fraction = {test_fraction} leaves no training row of {items}: lower it")
    rows = np.random.RandomState(seed).permutation(items)
    return np.sort(rows[count:]), np.sort(rows[:count])


def divide(
    parts: Mapping[str, Items],
    take: Callable[[Items, np.ndarray], Items],
    test: Callable[[Items], tuple[np.ndarray, np.ndarray]],
    val: Callable[[Items], tuple[np.ndarray, np.ndarray]],
) -> dict[str, Items]:
    """The items of "train", "test" and "val". Where the last two are missing, they are taken from "train".

    take: the items of these rows, in ascending order. test, val: rows of the items that are kept and held out.
    """
    train = parts["train"]
    for split, rule in (("test", test), ("val", val)):
        if split not in parts:
            kept, held_out = rule(train)
            parts, train = {**parts, split: take(train, held_out)}, take(train, kept)
    return {**parts, "train": train}


def split_by_seed(
    parts: Mapping[str, Items],
    take: Callable[[Items, np.ndarray], Items],
    test_fraction: float,
    val_fraction: float,
    seed: int,
    fold: int,
) -> dict[str, Items]:
    """The items of "train", "test" and "val", as `divide` returns them, by `train_test_rows` and `hold_out`."""

    def val(train: Items) -> tuple[np.ndarray, np.ndarray]:
        kept, held_out = hold_out(len(train), val_fraction, seed, fold)
        return kept.numpy(), held_out.numpy()

    return divide(parts, take, lambda train: train_test_rows(len(train), test_fraction, seed), val)
