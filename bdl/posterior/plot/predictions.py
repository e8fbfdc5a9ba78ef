"""Pictures of predictions: calibration of classes and of numbers, intervals and bands against data, risk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from bdl.display import count_of
from bdl.errors import ConfigError
from bdl.likelihoods import as_columns
from bdl.posterior.metrics import QUANTILE_GRID, reliability_bins, risk_coverage, shares_below
from bdl.posterior.plot.axes import BLUE, GREY, RED, axis_or_new, name_axes
from bdl.posterior.prediction import LabelPrediction, Prediction, ValuePrediction

ITEMS_IN_BIN = 10  # items that a bin of confidence needs to be drawn: fewer have no meaningful accuracy
INTERVALS_SHOWN = 120  # items with an interval: more would touch each other

Part = Literal["entropy", "aleatoric", "epistemic"]


def reliability(
    prediction: Prediction | LabelPrediction | Tensor, y: Any, ax: Axes | None = None, *, label: str | None = None,
    color: str = BLUE, marker: str = "o",
) -> Axes:  # fmt: skip
    """Accuracy against confidence, with standard errors, in bins of ten items or more; on the diagonal they agree.

    prediction: one of classes or labels, or the probabilities (n, K) of classes. y: (n,) classes, or (n, k) labels.
    """
    ax = axis_or_new(ax, 4.2, 4.2)
    confidence, accuracy, count = (t.numpy() for t in reliability_bins(*probs_and_labels(prediction, y)))
    if not any(line.get_label() == "calibrated" for line in ax.get_lines()):
        ax.plot([0, 1], [0, 1], color=GREY, lw=0.8, ls=":", label="calibrated")
    error = np.sqrt(accuracy * (1 - accuracy) / np.maximum(count, 1))  # standard error of a proportion
    shown = count >= ITEMS_IN_BIN
    style = {"color": color, "marker": marker, "ms": 4, "lw": 1.3, "elinewidth": 0.8}
    ax.errorbar(confidence[shown], accuracy[shown], error[shown], label=label, **style)
    start = min(ax.get_xlim()[0] if len(ax.containers) > 1 else 1.0, (count > 0).argmax() / len(count))
    ax.set(xlim=(start, 1.01), ylim=(max(0, start - 0.1), 1.02))
    ax.legend(loc="upper left")
    name_axes(ax, "confidence: probability of the predicted class", "accuracy")
    return ax


def intervals(
    prediction: ValuePrediction, y: Any, ax: Axes | None = None, *, level: float = 0.9, target: int = 0,
    name: str = "target",
) -> Axes:  # fmt: skip
    """Predicted means with their intervals, sorted, and the data; y outside its interval is marked.

    y: (n,) or (n, k). level: of the central intervals. target: which of the k. name: of the vertical axis.
    """
    low, high = prediction.interval(level)
    columns = as_columns(torch.as_tensor(y).double(), low.shape)
    y, mean, low, high = (v[:, target].double().numpy() for v in (columns, prediction.mean, low, high))
    return draw_intervals(axis_or_new(ax, 10.6, 3.8), y, mean, low, high, level, name)


def draw_intervals(
    ax: Axes, y: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray, level: float, name: str
) -> Axes:
    """`intervals` from arrays (n,)."""
    items = len(y)
    chosen = np.linspace(0, items - 1, min(INTERVALS_SHOWN, items)).astype(int)
    order = np.argsort(mean, kind="stable")[chosen]
    y, mean, low, high = (v[order] for v in (y, mean, low, high))
    place, outside = np.arange(len(order)), (y < low) | (y > high)
    what = f"all {items:,} items" if len(order) == items else f"{len(order):,} of {count_of(items, 'item')}"
    wide = 4 if len(order) > 60 else 7
    ax.vlines(place, low, high, color=BLUE, lw=wide, alpha=0.28, label=f"{100 * level:g} % interval")
    ax.plot(place, mean, color=BLUE, ls="", marker="_", ms=6, mew=1.6, label="predicted mean")
    dot: dict[str, Any] = {"ls": "", "marker": "o"}
    ax.plot(place[~outside], y[~outside], color="black", ms=3.6, label="data, inside", **dot)
    ax.plot(place[outside], y[outside], color=RED, mec="white", mew=0.4, ms=5.5, label="data, outside", **dot)
    ax.set_xlim(-1, len(order))
    ax.set_xticks([])
    ax.legend(ncols=4, loc="lower right", bbox_to_anchor=(1, 1), columnspacing=1.4, handlelength=1.2)
    name_axes(ax, f"{what}, sorted by predicted mean", name)
    return ax


def band(
    prediction: ValuePrediction, x: Any, ax: Axes | None = None, *, levels: Sequence[float] = (0.5, 0.9),
    target: int = 0, data: tuple[Any, Any] | None = None,
) -> Axes:  # fmt: skip
    """The predicted mean along one input, with the central intervals of these levels, and the data beside it.

    x: (n,) or (n, 1) values of the input, in any order. data: (x, y) to be drawn as points.

    Raises ConfigError for an x that is not one number for each item.
    """
    place = torch.as_tensor(x).double().flatten().numpy()
    if len(place) != len(prediction):
        raise ConfigError(
            f"x has {len(place)} numbers for a prediction of {count_of(len(prediction), 'item')}: a band "
            "needs one for each item"
        )
    ax, order = axis_or_new(ax), np.argsort(place, kind="stable")
    for level in sorted(levels, reverse=True):
        low, high = (edge[:, target].double().numpy()[order] for edge in prediction.interval(level))
        ax.fill_between(place[order], low, high, color=BLUE, alpha=0.2, lw=0, label=f"{100 * level:g} % interval")
    ax.plot(place[order], prediction.mean[:, target].double().numpy()[order], color=BLUE, lw=1.5, label="mean")
    if data is not None:
        points = [torch.as_tensor(part).double().reshape(len(part), -1) for part in data]
        ax.plot(points[0][:, 0], points[1][:, target], color="black", ls="", marker="o", ms=3, label="data")
    ax.legend(loc="best")
    name_axes(ax, "x", "y")
    return ax


def coverage_risk(
    prediction: Prediction | LabelPrediction | Tensor, y: Any, ax: Axes | None = None, *, label: str | None = None,
    color: str = BLUE,
) -> Axes:  # fmt: skip
    """The error among the most confident items, against the share of items that they are; low and rising is good.

    prediction, y: see `reliability`.
    """
    ax = axis_or_new(ax)
    risk = risk_coverage(*probs_and_labels(prediction, y)).numpy()
    coverage = np.arange(1, len(risk) + 1) / len(risk)
    area = f"area {risk.mean():.4f}"
    ax.plot(100 * coverage, 100 * risk, color=color, lw=1.5, label=area if label is None else f"{label}, {area}")
    ax.set(xlim=(0, 100), ylim=(0, None))
    ax.legend(loc="upper left")
    name_axes(ax, "items that are predicted, the most confident first (%)", "error among them (%)")
    return ax


def quantiles(
    prediction: ValuePrediction, y: Any, ax: Axes | None = None, *, label: str | None = None, color: str = BLUE
) -> Axes:
    """The share of the data below each predicted quantile; on the diagonal the predictive distribution is right."""
    q = torch.tensor(QUANTILE_GRID, dtype=torch.float64)
    shares = shares_below(prediction, torch.as_tensor(y), q)
    return draw_quantiles(axis_or_new(ax, 4.2, 3.9), q.numpy(), np.asarray(shares), len(prediction), label, color)


def draw_quantiles(
    ax: Axes, q: np.ndarray, share: np.ndarray, items: int, label: str | None, color: str = BLUE, marker: str = "s"
) -> Axes:
    """`quantiles` from shares (q,)."""
    if not ax.get_lines():
        grid = np.linspace(0, 1, 101)
        error = 2 * np.sqrt(grid * (1 - grid) / max(items, 1))  # two standard errors of a share
        ax.fill_between(grid, grid - error, grid + error, color=GREY, alpha=0.15, lw=0, label="calibrated, 2 s.e.")
        ax.plot(grid, grid, color=GREY, lw=0.8, ls=":")
    ax.plot(q, share, color=color, marker=marker, ms=4, lw=1.3, label=label)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.legend(loc="upper left")
    name_axes(ax, "quantile that is predicted", "share of the data below it")
    return ax


def uncertainty_map(prediction: Prediction, item: int = 0, ax: Axes | None = None, *, part: Part = "entropy") -> Axes:
    """How uncertain the class of each pixel of one item is, in nats, with a bar of colours.

    prediction: one of pixels, with probs (n, H, W, K), as `CategoricalNLL(class_axis=-3)` gives. part: which
    uncertainty. Raises ConfigError for predictions that are not of pixels, and for another part.
    """
    if part not in get_args(Part):
        raise ConfigError(f"part must be {', '.join(get_args(Part)[:-1])} or {get_args(Part)[-1]}, got {part!r}")
    if not isinstance(prediction, Prediction) or len(prediction.shape) != 3:
        raise ConfigError(
            f"an uncertainty map needs a prediction of the pixels of images, probs (n, H, W, K), got a "
            f"{type(prediction).__name__} of shape {tuple(prediction.shape)}: bdl.plot.coverage_risk takes any classes"
        )
    ax = axis_or_new(ax, 4.2, 3.6)
    image = ax.imshow(getattr(prediction, part)[item].clamp_min(0).double().cpu().numpy(), cmap="magma", vmin=0)
    ax.figure.colorbar(image, ax=ax, label=f"{part} (nats)")
    ax.set(xticks=[], yticks=[])
    return ax


def probs_and_labels(prediction: Prediction | LabelPrediction | Tensor, y: Any) -> tuple[Tensor, Tensor]:
    """Probabilities (n, K) and classes (n,). Each element, and each of k labels, counts as an item."""
    labels = torch.as_tensor(y).flatten()
    if isinstance(prediction, LabelPrediction):
        p = prediction.probs.flatten()
        return torch.stack([1 - p, p], 1), labels.long()
    probs = prediction if isinstance(prediction, Tensor) else prediction.probs
    return probs.flatten(0, -2), labels


def has_reliability(probs: Tensor, labels: Tensor) -> bool:
    """Whether any bin of confidence has enough items to be drawn."""
    return bool((reliability_bins(probs, labels)[2] >= ITEMS_IN_BIN).any())
