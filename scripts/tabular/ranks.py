"""Ranks of methods over tables, the tests of Friedman and Nemenyi (Demsar 2006), and their picture."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import f, rankdata, studentized_range

LEVEL = 0.05


@dataclass(frozen=True)
class Ranks:
    """Mean ranks (k,) of methods over N tables, 1 is best; p of Friedman's test in the form of Iman and Davenport.

    Two methods whose mean ranks are nearer than `critical` do not differ at `LEVEL` (Nemenyi).
    """

    methods: Sequence[str]
    tables: int
    mean: np.ndarray
    p: float
    critical: float

    def groups(self) -> list[tuple[int, int]]:
        """Places (first, last) of the longest runs of methods, in the order of their ranks, that do not differ."""
        ranks = np.sort(self.mean)
        ends = [int(np.searchsorted(ranks, rank + self.critical, "right")) - 1 for rank in ranks]
        runs = [(first, last) for first, last in enumerate(ends) if last > first]
        return [run for run in runs if not any(a <= run[0] and run[1] <= b for a, b in runs if (a, b) != run)]


def ranks_of(methods: Sequence[str], scores: np.ndarray) -> Ranks:
    """Of scores (N, k), lower is better; equal ones share their ranks, and what is infinite is last."""
    tables, k = scores.shape
    mean = rankdata(scores, axis=1).mean(0)
    chi2 = 12 * tables / (k * (k + 1)) * (np.sum(mean**2) - k * (k + 1) ** 2 / 4)
    rest = tables * (k - 1) - chi2
    statistic = (tables - 1) * chi2 / rest if rest > 0 else math.inf
    p = float(f.sf(statistic, k - 1, (k - 1) * (tables - 1))) if tables > 1 else math.nan
    return Ranks(methods, tables, mean, p, critical_difference(k, tables))


def critical_difference(k: int, tables: int) -> float:
    """q sqrt(k (k + 1) / (6 N)), where q is the quantile of the Studentized range over sqrt(2)."""
    q = studentized_range.ppf(1 - LEVEL, k, math.inf) / math.sqrt(2)
    return float(q * math.sqrt(k * (k + 1) / (6 * tables)))


def draw(panels: Mapping[str, Ranks], path: Path) -> None:
    """A diagram for each score, as a PNG: methods at their mean ranks, and bars over those that do not differ."""
    most = max(len(ranks.methods) for ranks in panels.values())
    firsts = {ranks.methods[int(np.argmin(ranks.mean))] for ranks in panels.values()}
    with matplotlib.rc_context({"font.size": 10}):
        figure = Figure((5.4, (1.2 + 0.16 * most) * len(panels) + 0.6), layout="constrained")
        for (title, ranks), ax in zip(panels.items(), figure.subplots(len(panels), squeeze=False).flat, strict=True):
            ax.axis("off")
            diagram(ax, title, ranks)
        best = f"{' or '.join(sorted(firsts))} has the lowest mean rank"
        figure.suptitle(f"{best};\nbars join methods that do not surely differ", fontweight="bold")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)


def diagram(ax: Axes, title: str, ranks: Ranks) -> None:
    """Demsar's picture: an axis of ranks, names to both sides, and the length of the critical difference above."""
    order, k = np.argsort(ranks.mean, kind="stable"), len(ranks.methods)
    half, groups = -(-k // 2), ranks.groups()
    bottom = -0.35 * len(groups) - 0.4
    ax.set_xlim(1 - 0.28 * k, k + 0.28 * k)
    ax.set_ylim(bottom - 0.7 * half, 1.9)
    ax.set_title(f"{title}, {ranks.tables} tables", loc="left", fontsize=11)
    ax.plot([1, k], [0, 0], color="black", lw=1)
    for rank in range(1, k + 1):
        ax.plot([rank, rank], [0, 0.15], color="black", lw=1)
        ax.text(rank, 0.25, str(rank), ha="center", fontsize=9)
    ends = [1, min(1 + ranks.critical, k)]
    ax.plot(ends, [1.2, 1.2], color="black", lw=1, marker="|")
    ax.text(sum(ends) / 2, 1.35, f"critical difference {ranks.critical:.2f}", ha="center", fontsize=8)
    for place, method in enumerate(order):
        mean, name = ranks.mean[method], ranks.methods[method]
        is_left = place < half
        y = bottom - 0.65 * (place if is_left else k - 1 - place)
        side: Any = 1 - 0.02 * k if is_left else k + 0.02 * k
        style: dict[str, Any] = {"color": "#1f6fb4" if name == "bdl" else "#444444", "lw": 1.2}
        ax.plot([mean, mean, side], [0, y, y], **style)
        words = f"{name} {mean:.1f}"
        ax.text(side + (-0.1 if is_left else 0.1), y, words, ha="right" if is_left else "left", va="center",
                color=style["color"], fontsize=9, fontweight="bold" if name == "bdl" else "normal")  # fmt: skip
    for line, (first, last) in enumerate(groups):
        y, span = -0.3 - 0.35 * line, ranks.mean[order[[first, last]]] + [-0.05, 0.05]
        ax.plot(span, [y, y], color="black", lw=3, solid_capstyle="round")
