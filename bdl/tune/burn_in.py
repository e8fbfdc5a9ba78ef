"""How many steps a chain needs before its samples count."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bdl.tune.choice import Choice

LEAST_BURN_IN = 0.1  # share of a run; what looked at rest in a trial may still move slowly
MOST_BURN_IN = 0.4  # the default of conf/collect
PARTS = 20  # a trace is cut into so many, and their means are compared
FEWEST_ENERGIES = 8  # energies in which a trend shows
MOVES = 0.3  # standard deviations of the energy in two halves of a series; what the verdict takes for a drift
TREND_ERRORS = 4.0  # standard deviations of 5 to 10 means; normal means go that far in 1 of 300 cases


def rest(trace: Tensor) -> int | None:
    """The step from which a trace (C, steps) stays within the range of its last half; None if it never comes to rest.

    The mean over chains of each of PARTS parts is compared with mean and spread of the later half of the parts. A trend
    in the later half means that there is no rest: its two halves differ by more than TREND_ERRORS standard errors, as
    in Geweke's test (1992).
    """
    length = trace.shape[1] // PARTS
    if length < 1:
        return None
    means = trace[:, : PARTS * length].double().view(len(trace), PARTS, length).mean(-1).mean(0)  # (PARTS,)
    late = means[PARTS // 2 :]
    change, error = trend(late)
    if abs(change) > TREND_ERRORS * error:
        return None
    near = (means - late.mean()).abs() <= TREND_ERRORS * late.std()
    away = (~near).nonzero()
    return length * (int(away.max()) + 1 if len(away) else 0)


def trend(series: Tensor) -> tuple[float, float]:
    """The change of a series (n,) from its first half to its second, and the standard error of this change.

    Both are of the means of PARTS // 2 parts, or of fewer where n is smaller; n >= 4. The error is that of the
    differences between neighbouring parts (von Neumann 1941), to which the change itself adds little.
    """
    parts = min(PARTS // 2, len(series)) // 2 * 2
    means = series[len(series) % parts :].double().view(parts, -1).mean(1)
    first, second = means.chunk(2)
    error = means.diff().square().mean().sqrt() * math.sqrt(2 / parts)
    return float(second.mean() - first.mean()), float(error)


def movement(energies: Tensor, temperature: float, parameters: int) -> float:
    """By how many of its standard deviations the energy moves from one half of a series (n,) to the other.

    0 where the change may be noise. Under a Gaussian posterior of d parameters, U has the standard deviation
    T sqrt(d / 2).
    """
    if len(energies) < FEWEST_ENERGIES:
        return 0.0
    change, error = trend(energies)
    return abs(change) / (temperature * math.sqrt(parameters / 2)) if abs(change) > TREND_ERRORS * error else 0.0


def choose_burn_in(traces: list[Tensor], autocorrelation: float, prior_steps: float, steps: int) -> Choice:
    """Twice the steps that the traces took to come to rest; 20 autocorrelation times or `prior_steps` if that is more.

    traces: (C, steps) each, of the energy and of predictions, from the start of a trial. autocorrelation: in steps, at
    the settings found. prior_steps: in which the prior acts, see `bdl.tune.prior`; longer than any trial. A trial is
    short: where it saw no rest, the default share of the run is burn-in.
    """
    least, most = round(LEAST_BURN_IN * steps), round(MOST_BURN_IN * steps)
    rests = [rest(trace) for trace in traces]
    if any(step is None for step in rests):
        return Choice("burn_in", most, f"the trial was still moving at its end, so {MOST_BURN_IN:.0%} of the run")
    settled = max([step for step in rests if step is not None], default=0)
    wanted = max(2 * settled, round(20 * autocorrelation), round(min(prior_steps, steps)))
    reason = f"energy and predictions came to rest after {settled:,} steps, correlated over {autocorrelation:,.0f}"
    reason += f"; the prior acts within {prior_steps:,.0f}" if prior_steps > least else ""
    return Choice("burn_in", min(most, max(least, wanted)), reason)


def mean_trace(series: Tensor) -> Tensor:
    """(C, draws) one number per chain and draw of series (draws, C, quantities): the distance to where the chain ends.

    Predictions that still drift come closer to their end, and those at rest do not.
    """
    end = series[-max(1, len(series) // 4) :].mean(0)
    return torch.linalg.vector_norm(series - end, dim=-1).T
