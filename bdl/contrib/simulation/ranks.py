"""Ranks of true values among draws: whether they are uniform, as under the right posterior (Talts et al. 2018)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BARS = " ▁▂▃▄▅▆▇█"
EACH = 10  # replications in a bin, at least
MOST = 10  # bins
DOUBT = 0.01  # p below which the ranks are not uniform, after the correction for several quantities


@dataclass(frozen=True)
class Ranks:
    """names: of q quantities. shares: (R, q) share of the draws below the truth, in [0, 1], one row a replication."""

    names: Sequence[str]
    shares: Tensor

    def counts(self) -> Tensor:
        """(bins, q) replications in bins of equal width."""
        bins = min(MOST, max(2, len(self.shares) // EACH))
        place = (self.shares * bins).long().clamp_max(bins - 1)
        return torch.stack([(place == b).sum(0) for b in range(bins)])

    def p_values(self) -> list[float]:
        """The probability, for each quantity, that uniform ranks are as uneven: the chi-square test."""
        from scipy import stats  # slow to import

        return [float(stats.chisquare(column.numpy()).pvalue) for column in self.counts().T]

    def rows(self) -> Iterator[tuple[str, str, float]]:
        """(name, a histogram in signs, p) of each quantity."""
        for name, counts, p in zip(self.names, self.counts().T.tolist(), self.p_values(), strict=True):
            yield name, "".join(BARS[round(8 * c / max(1, *counts))] for c in counts), p

    def worst(self) -> float:
        """The smallest p, times the number of quantities (Bonferroni)."""
        return min(1.0, min(self.p_values()) * len(self.names))

    def sentence(self) -> str:
        """What is found, in one sentence."""
        p, runs = self.worst(), len(self.shares)
        if p >= DOUBT:
            return f"calibrated, as far as {runs} replications tell: the truth ranks uniformly (p = {p:.2g})"
        column = self.counts().double()[:, self.p_values().index(min(self.p_values()))]
        ends, middle = float(column[[0, -1]].mean()), float(column.mean())
        shape = "too narrow or apart: the truth is at the ends too often" if ends > middle else (
            "too wide: the truth is in the middle too often"
        )  # fmt: skip
        return f"not calibrated (p = {p:.2g}): the sampled law is {shape}"

    def plain(self) -> dict[str, Any]:
        each = {
            name: {"counts": counts, "p": p}
            for name, counts, p in zip(self.names, self.counts().T.tolist(), self.p_values(), strict=True)
        }
        return {"replications": len(self.shares), "worst_p": self.worst(), "quantities": each}
