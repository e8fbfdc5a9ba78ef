"""The partition of the energies into bins: how a user names it, how a pilot finds it, whether it holds."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.weighting.histogram import Histogram

Given = float | str | None  # nats, "0.1%" (a quantile of the pilot's energies), "2N" (nats per item), or None

LOWEST, HIGHEST = 0.001, 0.999  # quantiles of the pilot's energies that bound its bins
MARGIN = 0.1  # share of the range between these quantiles that is added above it
NO_DRIFT = 0.2  # standard deviations; largest shift between the halves of a window of energies without drift
MOST_WINDOWS = 10  # the pilot ends after so many, drift or not
RECENT = 100  # steps between checks that the bins contain the energies of these steps
FLOOR_SHARE = 0.05  # while a larger share of the recent energies lies in the lowest bin, the floor goes down
TARGET_SHARE = 0.01  # while a larger share of the target distribution lies there, it goes down
DESCENT = 4  # the floor goes down by one bin in so many
MOST_BINS = 10_000  # the floor stops at so many


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
    """The bins of a weighting as they were asked for."""

    low: Bound  # the lower edge of the first bin
    high: Bound  # the upper edge of the last one
    bins: int  # how many, all of one width
    margin: bool  # whether `high` is to lie above the quantile that the pilot finds
    descends: bool  # whether the floor goes down while energies lie in the lowest bin
    edges: tuple[float, ...] | None = None  # all edges, given by hand; then there is no pilot and nothing moves

    @property
    def given(self) -> bool:
        """Whether every edge is known without a pilot."""
        return self.edges is not None or (self.low.nats is not None and self.high.nats is not None)

    def edges_for(self, energies: Tensor) -> Tensor:
        """(E, m + 1) edges, nats, from the energies (E, n) of a pilot, or of any number where all edges are given."""
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


def end_pilot(h: Histogram, partition: Partition, pooled: bool) -> None:
    """Set the edges if the full window of energies shows no drift; their quantiles are those of its later half.

    After MOST_WINDOWS windows the pilot takes the last one as it is: the energies of a single chain that moves slowly
    drift in every window. pooled: take the quantiles over all chains, because they share one temperature.
    """
    if h.seen < MOST_WINDOWS * h.pilot and drifts(h.window):
        return
    late = h.window[h.pilot // 2 :]
    h.edges = partition.edges_for(late.flatten()[None] if pooled or len(h.psi) == 1 else late.T)
    h.seen = 0


def check_range(h: Histogram, partition: Partition, start: Tensor, of_target: float | None = None) -> None:
    """Compare the bins with the energies of the last RECENT steps.

    A floor that descends goes down where more than FLOOR_SHARE of them lie in the lowest bin or below. With a target it
    does so where more than TARGET_SHARE of the target distribution lies there, which `of_target` says. A range that the
    pilot found is dropped, and the pilot starts again from psi `start` (R, m), where more than half of the energies lie
    outside. Raises ConfigError for a given range that misses all of them, unless they still fall towards it.
    """
    assert h.edges is not None
    recent = h.recent(RECENT)
    below, above = recent < h.edges[:, 0], recent > h.edges[:, -1]
    if partition.given:
        _refuse_missed(recent, below, above, h.edges)
    elif (above if partition.descends else below | above).double().mean() > 0.5:
        h.restart(start)
    elif partition.descends and h.bins < MOST_BINS:
        low = float((recent < h.edges[:, 1]).double().mean()) > FLOOR_SHARE
        if low if of_target is None else of_target > TARGET_SHARE:
            h.extend_down(min(max(1, h.bins // DESCENT), MOST_BINS - h.bins))


def _refuse_missed(recent: Tensor, below: Tensor, above: Tensor, edges: Tensor) -> None:
    # Burn-in lowers the energy: it may still reach the bins from above, but from below it only moves away.
    if (below.all() and float(drifts_of(recent).mean()) < NO_DRIFT) or ((below | above).all() and not drifts(recent)):
        raise ConfigError(
            f"bins miss the energies: low = {edges.min().item():g}, high = {edges.max().item():g}, but the last "
            f"{len(recent)} energies lie in [{recent.min().item():g}, {recent.max().item():g}] nats; "
            "set low and high (or edges) around them, or leave them null for a pilot"
        )


def drifts(u: Tensor) -> bool:
    """Whether the energies (n, C) still drift together, by at least NO_DRIFT and two standard errors."""
    each = drifts_of(u)
    error = float(each.std()) / math.sqrt(len(each)) if len(each) > 1 else 0.0  # slow chains wander, each its own way
    return not abs(float(each.mean())) < max(NO_DRIFT, 4 / math.sqrt(u.numel()), 2 * error)  # NaN drifts


def drifts_of(u: Tensor) -> Tensor:
    """(C,) how much higher the later half of the energies (n, C) lies than the earlier half, in standard deviations.

    The later half gives the unit, because a fast descent widens the earlier half more than it moves its mean.
    """
    first, second = u[: len(u) // 2], u[len(u) // 2 :]
    return (second.mean(0) - first.mean(0)) / second.std(0).mean().clamp_min(1e-30)


def batch_error(h: Histogram) -> float:
    """Standard deviation of the noise of one energy, at most, from successive differences; NaN before there are two."""
    u = h.window[: min(h.seen, h.pilot)] if h.seen <= h.pilot else h.recent(h.pilot)
    return float((u.diff(dim=0).square().mean() / 2).sqrt()) if len(u) > 1 else math.nan
