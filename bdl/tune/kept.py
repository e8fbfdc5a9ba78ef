"""What the samples of a run say of the promises that tuning made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bdl.advice import key_or_argument
from bdl.posterior.judge_rest import is_long_enough, take_longer
from bdl.posterior.judgements import Numbers, alone, energy_drifts, or_nan
from bdl.tune.step import ENERGY_BUDGET, MOMENTA_BUDGET, MOMENTA_TOLERATED, NOISE_BUDGET

PROMISES = ("heat", "rest", "energy_error")
HOTTER = 1.25  # times the budget, beyond the error of a running estimate of Var(g)
# Times the promised mean square, most of which is in rare steps: that cost 0.1 nats at most on eight tables
MORE = 10.0


@dataclass(frozen=True)
class Promised:
    """What tuning has promised of a run, and what the run has said of it.

    heat: the share by which batches heat the hottest direction at most; None where that was not promised. at_rest:
    False where the run has said that its samples are not at rest.
    """

    heat: float | None = None
    at_rest: bool = True


NOTHING = Promised()


def broken_promises(metrics: Mapping[str, float], promised: Promised = NOTHING) -> dict[str, str]:
    """A line by the name of each promise that the samples do not keep, from the metrics of the run.

    "heat": batches heat the chains by 10 % at most, and with the error of the step they heat the momenta by 20 %.
    "rest": the energy no longer moves, and each chain has made some independent draws: what the verdict calls at rest.
    "energy_error": the error that a sampler allows itself for a step, such as `energy_var` of MCLMC, is what its steps
    have, unless each is tested.
    """
    m = or_nan(metrics)
    error = m["energy_error"]
    lines = {
        "heat": _too_hot(m, promised.heat),
        "rest": _not_at_rest(m, promised.at_rest),
        "energy_error": (
            f"steps have {error:.2g} times the energy error that the sampler was to reach: adapt it for longer, or "
            "begin at a lower lr"
        ) if error > MORE and math.isnan(m["acceptance"]) else None,
    }  # fmt: skip
    return {name: f"tune: a promise is not kept: {line}" for name, line in lines.items() if line is not None}


def _too_hot(m: Numbers, heat: float | None) -> str | None:
    """What says that batches heat more than tuning has promised; None where they do not."""
    hottest, limit = m["temperature/directions/hottest"] / m["temperature"] if m["temperature"] else 1.0, math.inf
    if heat is not None:
        limit = (1 + heat) * (1 + ENERGY_BUDGET)
    lower = f"lower {key_or_argument('sampler.lr')}"
    if (shown := m["t_eff"] / m["temperature"] - 1 if m["temperature"] else 0.0) > HOTTER * NOISE_BUDGET:
        return f"batches heat the chains by {shown:.0%}, not {NOISE_BUDGET:.0%} at most: {lower}"
    if _hottest_surely(m) > limit:
        remedy = f"{lower}, or raise {key_or_argument('data.batch_size')}"
        return f"the hottest direction has {hottest:.3g} T, not {limit:.3g} T at most: {remedy}"
    if _momenta_are_hot(m):
        shown, budget = m["kinetic_temperature"] / m["temperature"], 1 + MOMENTA_BUDGET
        return f"the kinetic temperature is {shown:.3g} T, not {budget:.3g} T at most: {lower}"
    return None


def _not_at_rest(m: Numbers, at_rest: bool) -> str | None:
    """What says that samples are not at rest; None where they are. at_rest: what the run has said itself."""
    if energy_drifts(m):
        moved = f"the energy moved by {m['energy/drift']:+.2g} standard deviations while samples were kept"
        return f"{moved}: take a longer run ({key_or_argument('length')})"
    if not is_long_enough(m):
        each = f"each chain alone has made {alone(m):.2g} independent draws"
        return f"samples are not at rest: {each}: {take_longer(m)}"
    longer = f"take a longer run ({key_or_argument('length')})"
    return None if at_rest else f"the burn-in ended before samples were at rest: {longer}"


def _hottest_surely(m: Mapping[str, float]) -> float:
    """Temperature over T of the hottest direction, less two standard errors; NaN where it was not measured."""
    if not m["temperature"] > 0:
        return math.nan
    return (m["temperature/directions/hottest"] - 2 * m["temperature/directions/hottest_se"]) / m["temperature"]


def _momenta_are_hot(m: Mapping[str, float]) -> bool:
    """Whether momenta are surely hotter than what the verdict tolerates, two standard errors away."""
    error = 0.0 if math.isnan(m["kinetic_temperature_se"]) else m["kinetic_temperature_se"]
    surely = m["kinetic_temperature"] - 2 * error
    return m["temperature"] > 0 and surely > (1 + MOMENTA_TOLERATED) * m["temperature"]
