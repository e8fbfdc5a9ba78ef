"""The partition of the energies into bins: how a user names its edges, and what a pilot fills in."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bdl.errors import ConfigError

Given = float | str | None  # nats, "0.1%" (a quantile of the pilot's energies), "2N" (nats per item), or None

LOWEST, HIGHEST = 0.001, 0.999  # quantiles of the pilot's energies that bound its bins
MARGIN = 0.1  # share of the range between these quantiles that is added above it


@dataclass(frozen=True)
class Bound:
    """One end of the bins: a number of nats, or a quantile of the pilot's energies."""

    nats: float | None = None
    quantile: float | None = None

    @classmethod
    def parse(cls, name: str, given: Given, default: float, num_data: int) -> Bound:
        """Raises ConfigError for a text that is neither "x%" nor "xN", and for numbers that are not finite."""
        if given is None:
            return cls(quantile=default)
        match = re.fullmatch(r"\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*([%N]?)\s*", str(given))
        try:
            value, unit = float(match[1]), match[2]  # type: ignore[index]
        except (TypeError, ValueError):
            value, unit = math.nan, ""
        if not math.isfinite(value) or (unit == "%" and not 0 <= value <= 100):
            raise ConfigError(
                f'{name} must be an energy in nats, a quantile such as "0.1%", a multiple of the number of items such '
                f'as "0.5N", or null; got {given!r}'
            )
        if unit == "%":
            return cls(quantile=value / 100)
        return cls(nats=value * num_data if unit == "N" else value)

    def of(self, ordered: Tensor) -> Tensor:
        """(E,) nats, from energies (E, n) in ascending order."""
        if self.nats is not None:
            return ordered.new_full((len(ordered),), self.nats)
        last = ordered.shape[1] - 1
        tail = math.floor((last + 1) * min(self.quantile, 1 - self.quantile) + 1e-9)  # type: ignore[type-var,operator]
        return ordered[:, min(tail, last) if self.quantile < 0.5 else max(last - tail, 0)]  # type: ignore[operator]


@dataclass(frozen=True)
class Partition:
    """The bins of a weighting as they were asked for.

    Args:
        low, high: the lower edge of the first bin and the upper edge of the last one.
        bins: how many, all of one width.
        margin: whether `high` is to lie above the quantile that the pilot finds.
        descends: whether the floor goes down while energies lie in the lowest bin.
        edges: all edges, given by hand; then there is no pilot and nothing moves.
    """

    low: Bound
    high: Bound
    bins: int
    margin: bool
    descends: bool
    edges: tuple[float, ...] | None = None

    @property
    def given(self) -> bool:
        """Whether every edge is known without a pilot."""
        return self.edges is not None or (self.low.nats is not None and self.high.nats is not None)

    def edges_for(self, energies: Tensor) -> Tensor:
        """(E, m + 1) edges, nats, from the energies (E, n) of a pilot, or of any number where all edges are given.

        Raises ConfigError where the lowest edge is not below the highest.
        """
        if self.edges is not None:
            return torch.tensor([self.edges], dtype=energies.dtype).to(energies.device, non_blocking=True)
        ordered = energies.sort(1).values
        low, high = self.low.of(ordered), self.high.of(ordered)
        if self.margin:
            high = high + MARGIN * (high - low).clamp_min(0)
        found = self.low.nats is None or self.high.nats is None
        if found and not bool((low < high).all()):
            raise ConfigError(
                f"low = {float(low.max()):g} is not below high = {float(high.min()):g} nats, and the energies lie in "
                f"[{float(ordered.min()):g}, {float(ordered.max()):g}]: set low below most of them, or to null"
            )
        steps = torch.arange(self.bins + 1, dtype=energies.dtype, device=energies.device) / self.bins
        return low[:, None] + (high - low)[:, None] * steps


def checked_edges(edges: Sequence[float]) -> tuple[float, ...]:
    """The edges as floats. Raises ConfigError unless there are three or more that ascend and are finite."""
    try:
        values = tuple(float(e) for e in edges)
    except (TypeError, ValueError):
        values = ()
    ascending = all(a < b for a, b in itertools.pairwise(values))
    if len(values) < 3 or not ascending or not all(map(math.isfinite, values)):
        raise ConfigError(f"edges must be at least three energies in ascending order, got {edges!r}")
    return values
