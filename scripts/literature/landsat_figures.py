"""Pictures of the Landsat experiment: training along the run, and published errors beside ours."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from literature.figures import BLUE, GREEN, GREY, RED, SKY, canvas, label
from literature.landsat_chains import Run
from literature.landsat_methods import Method

COLOURS = {
    "csSGD": RED,
    "SGLD, T = 1": GREEN,
    "dsSGD": BLUE,
    "dsSGLD": SKY,
    "AWSGLD, T = 1": "black",
}  # as in Liang 2024
AVERAGES = {"one": "one sample", "chain": "one chain's average", "all": "all chains' average"}
SHADES = {"one": SKY, "chain": BLUE, "all": RED}

Scores = Mapping[str, Tensor]  # average -> (seeds,) errors in %


def draw_paths(runs: Mapping[str, Run]) -> Figure:
    """Training energy and error of the five published methods along the run; thin: one chain, thick: mean of all."""
    title = "Energy and error of the present θ along the run (bold: mean of all chains)"
    figure, axes = canvas(title, 1, 2, width=5.2, height=3.9)
    for name in COLOURS:
        run = runs[name]
        thousands = np.array(run.steps) / 1000
        for ax, values in zip(axes[0], (run.energies, run.errors), strict=True):
            paths = torch.stack(values)  # (P, C)
            ax.plot(thousands, paths[:, 0], color=COLOURS[name], lw=0.6, alpha=0.4)
            ax.plot(thousands, paths.mean(1), color=COLOURS[name], lw=2, label=name)
    label(axes[0, 0], "Training energy", "gradients (thousands)", "-Σ log p(y | x, θ) over 4,435 rows (nats)")
    label(axes[0, 1], "Training error", "gradients (thousands)", "training error of the present θ (%)")
    axes[0, 0].set_yscale("log")
    axes[0, 1].set_ylim(0, 12)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def draw_errors(methods: Sequence[Method], scores: Mapping[str, tuple[Scores, Scores]]) -> Figure:
    """Published and our errors of every method. scores: method -> (fit, prediction)."""
    title = "Published errors, and ours for one sample, one chain's average and all chains' average"
    figure, axes = canvas(title, 1, 2, width=5.2, height=4.2, sharey=True)
    for ax, column in zip(axes[0], (1, 0), strict=True):
        _draw_panel(ax, methods, scores, column)
    axes[0, 0].set_yticks(range(len(methods)), [m.name for m in methods])
    axes[0, 0].invert_yaxis()
    axes[0, 1].set_xlim(left=0)
    label(axes[0, 0], "Prediction: 2,000 test rows", "error (%)")
    label(axes[0, 1], "Fit: 4,435 training rows", "error (%)")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _draw_panel(ax: Axes, methods: Sequence[Method], scores: Mapping[str, tuple[Scores, Scores]], column: int) -> None:
    """column: 0 = fit, 1 = prediction."""
    shown = [(row, m.published[column]) for row, m in enumerate(methods) if m.published]
    ax.scatter([x for _, x in shown], [row for row, _ in shown], marker="x", color="black", label="published", zorder=3)
    for average, text in AVERAGES.items():
        mean = [scores[m.name][column][average].mean().item() for m in methods]
        spread = [standard_error(scores[m.name][column][average]) for m in methods]
        ax.errorbar(mean, range(len(methods)), xerr=spread, fmt="o", color=SHADES[average], label=text)
    ax.axvline(shown[0][1], color=GREY, lw=1, ls="--", zorder=0)


def standard_error(values: Tensor) -> float:
    return (values.std() / len(values) ** 0.5).item()
