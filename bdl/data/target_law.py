"""Which law fits the values of a numeric target, and in which units a network sees them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from bdl.advice import override, takes
from bdl.data.kinds import unit_of
from bdl.display import count_of
from bdl.errors import ConfigError
from bdl.likelihoods.support import Support, Tail

NORMAL, HURDLE, LOG_NORMAL, GAMMA, ORDINAL = (
    f"bdl.{name}" for name in ("HeteroscedasticNLL", "HurdleNLL", "LogNormalNLL", "GammaNLL", "OrdinalNLL")
)
NAMES = {"auto": None, "normal": NORMAL, "hurdle": HURDLE, "lognormal": LOG_NORMAL, "gamma": GAMMA, "ordinal": ORDINAL}
SHARE = 0.1  # a value on a larger share of the rows has a mass; see scripts/results/tables/repeated.md
TIMES = 5.0  # it is so many times as frequent as any other value: rounding makes ties everywhere
MOST = 50  # different values, up to which loss=ordinal takes them as levels
LEAST = 10  # rows on a value that has a mass, rows elsewhere, and different values there
POINTS = 3  # values with a mass, at most
FEW = 20  # different values, up to which a target has levels and no density
GAIN = 0.2  # nats a row by which a log-normal law fits the values better than a normal one, where it is proposed
LIMIT = 10.0  # means under a log-normal tail are limited at so many times the largest training value
OUTLIERS = 0.01  # the share of rows whose errors are wider, see bdl.HeteroscedasticNLL
ROUNDING = math.sqrt(12)  # a step, over the standard deviation of what rounding to it leaves


@dataclass(frozen=True)
class TargetLaw:
    """The units in which the network sees a target, (value - origin) / scale, and the likelihood that fits it there.

    loss: its `_target_` and arguments; words: what a run says about the values, or None.
    """

    origin: float
    scale: float
    loss: Mapping[str, Any] = field(default_factory=dict)
    words: str | None = None


def find_law(
    values: np.ndarray, every: np.ndarray, asked: str | None, name: str, moments: tuple[float, float]
) -> TargetLaw:
    """The law of training values (n,), one that also takes `every` value, which the held-out rows have as well.

    Args:
        asked: the class of the likelihood that the user gave; None where one that fits is to be found.
        name: of the target, for messages.
        moments: mean and standard deviation of the training values.

    Raises ConfigError for a likelihood that does not take the values.
    """
    mean, std = moments
    if asked in (LOG_NORMAL, GAMMA):
        return _positive(values, every, asked, name, std)
    if asked == ORDINAL:
        return _ordinal(values, every, name)
    points, words = repeated(values), _words(values, every)
    if asked == HURDLE and not points:
        points = [_most_frequent(values, name)]
    if points and asked in (None, HURDLE):
        return _hurdle(values, every, points, std, _share_words(values, points))
    if points:
        remedy = f"{override('loss', 'auto')} takes one that has, for a single target"
        words = f"{_share_words(values, points)}, and {_named(asked)} has no mass there: {remedy}"
    return TargetLaw(mean, std, _rounded(values, std), words)


def repeated(values: np.ndarray) -> list[float]:
    """The values on which more rows sit than rounding explains, in order; [] for a target of few levels.

    Each holds SHARE of the rows that no more frequent one has, because the density is that of these rows, and is TIMES
    as frequent as the most frequent of the others: rounding a density puts about as many rows on neighbouring values.
    """
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= FEW:
        return []
    order = counts.argsort()[::-1]
    most = counts[order]
    for points in range(POINTS, 0, -1):
        others = len(values) - np.append(0, most[:points].cumsum())  # rows that none of the first so many has
        rest = others[-1]
        enough = (most[:points] >= np.maximum(LEAST, SHARE * others[:-1])).all() and rest >= LEAST
        if enough and most[points - 1] >= TIMES * most[points] and len(distinct) - points >= LEAST:
            return sorted(float(v) for v in distinct[order[:points]])
    return []


def _hurdle(values: np.ndarray, every: np.ndarray, points: list[float], std: float, share: str) -> TargetLaw:
    """Masses at points, and a density above the last of them that is below all other values of all rows, and below the
    first that is above them, where there are such points.
    """
    others = every[~np.isin(every, points)]
    low = max((point for point in points if point < others.min()), default=None)
    high = min((point for point in points if point > others.max()), default=None)
    origin = high if low is None and high is not None else points[0] if low is None else low
    scale = std if low is None or high is None else high - low
    seen = [_single((point - origin) / scale) for point in points]
    rest = (values[~np.isin(values, points)] - origin) / scale
    at = dict(zip(points, seen, strict=True))
    bounds = {"low": None if low is None else at[low], "high": None if high is None else at[high]}
    support, tail = _fitted(rest, bounds["low"], bounds["high"]), {}
    shares = np.array([(values == point).sum() + 1.0 for point in points]) / (len(rest) + 1.0)
    if (low is None) != (high is None):
        reach = float(np.abs(rest).max())
        tail = {"tail": support.tail, **({"limit": LIMIT * reach} if support.tail == "log" else {})}
    loss = {
        "_target_": HURDLE, "points": seen, "logits": [float(v) for v in np.log(shares)], **bounds, **tail,
        "center": support.center, "spread": support.spread, **_least(rest, support),
    }  # fmt: skip
    bound = "elsewhere" if low is None and high is None else f"below {high:g}" if low is None else f"above {low:g}"
    masses = "a mass there" if len(points) == 1 else "masses there"
    words = f"{share}: {HURDLE} has {masses} and a density {bound if low is None or high is None else 'between them'}"
    return TargetLaw(origin, scale, loss, words)


def _positive(values: np.ndarray, every: np.ndarray, asked: str, name: str, std: float) -> TargetLaw:
    """A law of positive numbers. Raises ConfigError where some are not."""
    if (wrong := every[every <= 0]).size:
        same = takes("data.missing") and (wrong == wrong[0]).all()
        leave = f", {override('data.missing', ['?', f'{name}={wrong[0]:g}'])} leaves these rows out" if same else ""
        raise ConfigError(
            f"{_named(asked)} takes positive numbers, and {override('data.target', name)} has "
            f"{count_of(len(wrong), 'value')} below or at 0, such as {wrong[0]:g}: {override('loss', 'auto')} finds "
            f"one that fits, {override('loss', 'normal')} takes all numbers{leave}"
        )
    support = _fitted(values / std, 0.0, None, tails=("log",))
    limit = LIMIT * float(values.max() / std)
    loss = {"_target_": asked, "center": support.center, "spread": support.spread, "limit": limit}
    if asked == LOG_NORMAL:
        loss |= _least(values / std, support)
    return TargetLaw(0.0, std, loss)


def _ordinal(values: np.ndarray, every: np.ndarray, name: str) -> TargetLaw:
    """Levels in an order, with the thresholds of their shares. Raises ConfigError for too many of them."""
    levels = np.unique(every)
    if len(levels) > MOST:
        raise ConfigError(
            f"{_named(ORDINAL)} is a law of a few levels, and {override('data.target', name)} has {len(levels)} "
            f"different values, more than {MOST}: {override('loss', 'auto')} finds a law that fits"
        )
    counts = (values[:, None] == levels).sum(0) + 0.5  # a level that held-out rows alone have, has a share too
    below = counts.cumsum()[:-1] / counts.sum()
    thresholds = [float(t) for t in np.log(below / (1 - below))]
    loss = {"_target_": ORDINAL, "levels": [_single(level) for level in levels], "thresholds": thresholds}
    return TargetLaw(0.0, 1.0, loss, f"{len(levels)} levels in their order, {levels[0]:g} to {levels[-1]:g}")


def _fitted(
    rest: np.ndarray, low: float | None, high: float | None, tails: tuple[Tail, ...] = ("log", "linear")
) -> Support:
    """The support with these bounds whose map makes the values most nearly normal, by their likelihood."""
    fits = {}
    for tail in tails:
        u, slope = _mapped(rest, Support(low, high, tail))
        spread = float(u.std()) or 1.0
        fits[slope.mean() - math.log(spread)] = Support(low, high, tail, float(u.mean()), spread)
    return fits[max(fits)]


def _mapped(values: np.ndarray, support: Support) -> tuple[np.ndarray, np.ndarray]:
    """Places on the line, and the logs of the slope."""
    y = torch.from_numpy(values.astype(np.float64))
    return support.to_line(y).numpy(), support.log_slope(y).numpy()


def _least(rest: np.ndarray, support: Support) -> dict[str, float]:
    """The bound of the standard deviation on the line that the rounding of a middling value leaves, if it matters."""
    step = float(np.diff(np.unique(rest)).min()) / ROUNDING
    slope = math.exp(float(np.median(_mapped(rest, support)[1])))
    return {"min_std": step * slope} if step * slope > 0.01 else {}


def _rounded(values: np.ndarray, std: float) -> dict[str, Any]:
    """The normal law, with the bound of its std that the rounding of the values leaves, if it matters."""
    step = float(np.diff(np.unique(values)).min()) / ROUNDING / std
    return normal_loss(step if step > 0.01 else 0.0)


def normal_loss(least: float | list[float]) -> dict[str, Any]:
    """The normal law of a target with a share of outliers, or of several. least: the bound of each, 0 for none."""
    return {"_target_": NORMAL, "outliers": OUTLIERS, **({"min_std": least} if np.any(least) else {})}


def _words(values: np.ndarray, every: np.ndarray) -> str | None:
    """What a run says of a target of few levels, and of one that is positive and skewed."""
    distinct, counts = np.unique(values, return_counts=True)
    whole = bool((distinct == distinct.round()).all())
    if len(distinct) <= FEW and whole:
        counted = distinct[0] == 0 and counts.argmax() == 0
        fits = "data.task=counts or loss=ordinal" if counted else "loss=ordinal or data.task=classification"
        return (
            f"{len(distinct)} levels, {100 * counts.max() / len(values):.0f} % on {distinct[counts.argmax()]:g}, which "
            f"no density fits: {fits} does"
        )
    if every.min() > 0 and log_gain(values) > GAIN:
        return "positive and skewed: loss=lognormal and loss=gamma predict positive numbers only"
    return None


def log_gain(values: np.ndarray) -> float:
    """Nats a row by which a log-normal law fits positive values better than a normal one."""
    logs = np.log(values)
    unit = unit_of(values)  # the squares of numbers beyond 1e154 overflow
    return math.log((values / unit).std()) + math.log(unit) - math.log(logs.std()) - float(logs.mean())


def _most_frequent(values: np.ndarray, name: str) -> float:
    """The value of most rows. Raises ConfigError where none is repeated."""
    distinct, counts = np.unique(values, return_counts=True)
    if counts.max() < 2 or len(distinct) < 3:
        raise ConfigError(
            f"{_named(HURDLE)} needs a value that is repeated, and others; {override('data.target', name)} has "
            f"{len(distinct)} different values in {len(values)} rows: {override('loss', 'auto')} finds a law that fits"
        )
    return float(distinct[counts.argmax()])


def _named(asked: str | None) -> str:
    """A likelihood as the reader asked for it."""
    word = next((word for word, name in NAMES.items() if name == asked), "auto")
    return str(asked) if takes("loss._target_") else override("loss", word)


def _share_words(values: np.ndarray, points: list[float]) -> str:
    each = [f"{100 * (values == point).mean():.0f} % of the values are exactly {point:g}" for point in points]
    return " and ".join(each)


def _single(value: float) -> float:
    """As float32 rounds it, in which networks see targets."""
    return float(np.float32(value))
