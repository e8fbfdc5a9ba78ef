"""The pilot that finds the range of the bins, and the checks that they still hold the energies."""

from __future__ import annotations

import math

from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.weighting.histogram import Histogram
from bdl.samplers.weighting.partition import Partition

NO_DRIFT = 0.2  # standard deviations; largest shift between the halves of a window of energies without drift
MOST_WINDOWS = 10  # after which the pilot ends, drift or not
RECENT = 100  # steps between checks that the bins contain the energies of these steps
FLOOR_SHARE = 0.05  # while a larger share of the recent energies lies in the lowest bin, the floor goes down
DESCENT = 4  # the floor goes down by one bin in so many
MOST_BINS = 10_000  # with so many the floor stops


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


def check_range(h: Histogram, partition: Partition, start: Tensor) -> None:
    """Compare the bins with the energies of the last RECENT steps.

    A floor that descends goes down where more than FLOOR_SHARE of them lie in the lowest bin or below. A range that the
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
        if (recent < h.edges[:, 1]).double().mean() > FLOOR_SHARE:
            h.extend_down(min(max(1, h.bins // DESCENT), MOST_BINS - h.bins))


def _refuse_missed(recent: Tensor, below: Tensor, above: Tensor, edges: Tensor) -> None:
    # Burn-in lowers the energy: it may still reach the bins from above, but from below it only moves away.
    if (below.all() and drift(recent) < NO_DRIFT) or ((below | above).all() and not drifts(recent)):
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


def drift(u: Tensor) -> float:
    """The mean over chains of `drifts_of`."""
    return float(drifts_of(u).mean())


def drifts_of(u: Tensor) -> Tensor:
    """(C,) how much higher the later half of the energies (n, C) lies than the earlier half, in standard deviations.

    The later half gives the unit, because a fast descent widens the earlier half more than it moves its mean.
    """
    first, second = u[: len(u) // 2], u[len(u) // 2 :]
    return (second.mean(0) - first.mean(0)) / second.std(0).mean().clamp_min(1e-30)


def batch_error(h: Histogram) -> float:
    """Standard deviation of the noise of one energy, from the differences of successive ones; NaN before there are two.

    It is an upper bound where the chain itself moves far in one step.
    """
    u = h.window[: min(h.seen, h.pilot)] if h.seen <= h.pilot else h.recent(h.pilot)
    return float((u.diff(dim=0).square().mean() / 2).sqrt()) if len(u) > 1 else math.nan
