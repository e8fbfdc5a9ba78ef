"""What a method does with a budget of core-seconds: a search of its usual settings, more networks, or more steps.

A search begins with the method's defaults (of CatBoost and NGBoost: with fewer and larger steps), and goes on with
random settings, a hundred in all at most. A trial is a cross-validation in three parts of the training rows, by NLL, or
by CRPS where the method has no density. Another trial begins while twice the time of the slowest is left. It is broken
off when only the time of the slowest is left, which is for the last fit: the best settings, or the first ones if these
fail, on all training rows.

A deep ensemble searches with single networks for half of its budget, and trains networks in the other half. bdl and bde
take the number of steps, or of samples, for which a line through the times of two short fits leaves time; these count.
"""

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

import numpy as np
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.tree import DecisionTreeRegressor

from tabular.scores import Law, scores_of_numbers
from tabular.sources import Fold

PARTS, TRIALS = 3, 100
SPARED = 0.9  # share of the time left that a run of chosen length plans for: times vary
FARTHEST = 10  # times the longer of the two lengths that are timed: a line through noisy times leads no farther
Fit = Callable[..., Law | np.ndarray]  # (fold, seed, **settings)
Result = TypeVar("Result")

NETWORK = {"hidden": [32, 64, 128, 256], "lr": (1e-3, 1e-2), "decay": (1e-6, 1e-2)}
SPACES: dict[str, dict[str, Any]] = {  # (low, high) is log-uniform, and a list has the choices
    "linear": {"C": (1e-3, 1e3)},
    "GP": {
        "shape": ["RBF", "Matern 3/2", "Matern 5/2"], "linear": [False, True], "n_restarts_optimizer": [0, 2],
    },
    "HGB": {
        "max_iter": (30, 300), "learning_rate": (0.02, 0.3), "max_leaf_nodes": (3, 63), "min_samples_leaf": (2, 40),
        "l2_regularization": (1e-3, 10.0),
    },
    "LightGBM": {
        "n_estimators": (30, 300), "learning_rate": (0.02, 0.3), "num_leaves": (3, 63), "min_child_samples": (2, 40),
        "reg_lambda": (1e-3, 10.0), "colsample_bytree": [0.5, 0.75, 1.0],
    },
    "CatBoost": {
        "iterations": (30, 300), "learning_rate": (0.03, 0.3), "depth": [2, 3, 4, 5, 6], "l2_leaf_reg": (0.3, 30.0),
    },
    "NGBoost": {
        "n_estimators": (30, 300), "learning_rate": (0.01, 0.1), "minibatch_frac": [0.5, 0.75, 1.0],
        "col_sample": [0.5, 0.75, 1.0], "Base": [DecisionTreeRegressor(max_depth=depth) for depth in (2, 3, 4)],
    },
    "MC dropout": {**NETWORK, "rate": (0.01, 0.5)},
    "deep ensemble": NETWORK,
}  # fmt: skip
OF_NUMBERS = {  # where they differ
    "linear": {name: (1e-6, 10.0) for name in ("alpha_1", "alpha_2", "lambda_1", "lambda_2")},
    "GP": SPACES["GP"] | {"each": [False, True]},
}
FIRST = {  # where a fit at the defaults takes too much of a budget: CatBoost's 1,000 trees, NGBoost's 500 at 0.01
    "CatBoost": {"iterations": 100, "learning_rate": 0.1},
    "NGBoost": {"n_estimators": 100, "learning_rate": 0.05},
}
LENGTHS = {"bdl": ("steps", (500, 4_000)), "bde": ("n_samples", (100, 500))}  # setting, and lengths of the timed fits


class OutOfTimeError(Exception):
    """A trial that took more time than was left for it."""


@dataclass(frozen=True)
class Clock:
    """Counts the core-seconds of this process against a budget. told: what they were used for."""

    budget: float
    now: Callable[[], float] = time.process_time
    began: float = field(default_factory=time.process_time)
    told: dict[str, float] = field(default_factory=dict)

    @property
    def left(self) -> float:
        return self.budget - (self.now() - self.began)

    def turns(self) -> Iterator[int]:
        """0, 1, 2, ... while the time of the longest turn is left."""
        longest = 0.0
        for turn in count():
            before = self.left
            yield turn
            longest = max(longest, before - self.left)
            if self.left < longest:
                return

    @contextmanager
    def at_most(self, seconds: float) -> Iterator[None]:
        """Raises OutOfTimeError when this process has taken these core-seconds, as soon as Python runs."""

        def stop(*_: object) -> None:
            raise OutOfTimeError

        before = signal.signal(signal.SIGPROF, stop)
        signal.setitimer(signal.ITIMER_PROF, max(seconds, 1e-3))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)


def within(name: str, fit: Fit, fold: Fold, seed: int, clock: Clock) -> Law | np.ndarray:
    """What a method says of the test rows when it has used its budget."""
    if name in LENGTHS:
        setting, lengths = LENGTHS[name]
        return longest(lambda length: fit(fold, seed, **{setting: length}), setting, lengths, clock)
    parts = list(parts_of(fold, seed))
    space = SPACES[name] if fold.classes else OF_NUMBERS.get(name, SPACES[name])
    first, alone = FIRST.get(name, {}), {}
    if name == "deep ensemble":
        alone, last = {"members": range(1)}, {"members": clock.turns()}
        search = replace(clock, budget=clock.budget / 2)
    else:
        last, search = {}, clock
    settings = best_settings(lambda s: mean_loss(fit, parts, seed, {**s, **alone}), space, first, search, seed)
    try:
        return fit(fold, seed, **settings, **last)
    except Exception:  # on all rows a matrix may be singular that was not so on two thirds of them
        if settings == first:
            raise
        return fit(fold, seed, **first, **last)


def best_settings(
    loss: Callable[[dict[str, Any]], float], space: Mapping[str, Any], first: dict[str, Any], clock: Clock, seed: int
) -> dict[str, Any]:
    """The settings of the least loss among the first ones and random ones; a fit that fails has an infinite one."""
    rng = np.random.default_rng(seed)
    best, least, slowest = first, math.inf, 0.0
    for trial in range(TRIALS):
        settings, before = drawn(space, rng) if trial else first, clock.left
        if before < 2 * slowest:
            break
        try:
            with clock.at_most(before - slowest):
                reached = loss(settings)
        except OutOfTimeError:
            break
        except Exception:
            reached = math.inf
        clock.told["trials"] = trial + 1
        slowest = max(slowest, before - clock.left)
        if reached < least:
            best, least = settings, reached
    return best


def drawn(space: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Random settings: from (low, high) log-uniform, a whole number where these are; from a list one of its values."""

    def value(of: Any) -> Any:
        if isinstance(of, list):
            return of[rng.integers(len(of))]
        number = math.exp(rng.uniform(*np.log(of)))
        return round(number) if isinstance(of[0], int) else number

    return {name: value(of) for name, of in space.items()}


def parts_of(fold: Fold, seed: int) -> Iterator[Fold]:
    """The training rows in three parts: each is once what is predicted. The test rows are not among them."""
    folds = (StratifiedKFold if fold.classes else KFold)(PARTS, shuffle=True, random_state=seed)
    for train, held in folds.split(fold.x, fold.y):
        yield Fold(fold.x[train], fold.y[train], fold.x[held], fold.y[held], fold.classes)


def mean_loss(fit: Fit, parts: list[Fold], seed: int, settings: Mapping[str, Any]) -> float:
    return float(np.mean([loss_of(fit(part, seed, **settings), part) for part in parts]))


def loss_of(said: Law | np.ndarray, part: Fold) -> float:
    """NLL, or CRPS of what has no density."""
    if isinstance(said, Law):
        scores = scores_of_numbers(said, part.y_test, 1.0)
        return scores.get("nll", scores["crps"])
    return float(log_loss(part.y_test, said, labels=range(part.classes)))


def longest(run: Callable[[int], Result], setting: str, lengths: tuple[int, int], clock: Clock) -> Result:
    """The run that fits in the time left, by a line through the times of two; the second one, if no longer one fits."""
    times, result = [], None
    for length in lengths:
        before = clock.left
        result = run(length)
        times.append(before - clock.left)
    each = max((times[1] - times[0]) / (lengths[1] - lengths[0]), 1e-6)
    length = min(lengths[1] + int((SPARED * clock.left - times[1]) / each), FARTHEST * lengths[1])
    clock.told[setting] = max(length, lengths[1])
    return run(length) if length > lengths[1] else result  # type: ignore[return-value]
