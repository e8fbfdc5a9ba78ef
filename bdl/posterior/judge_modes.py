"""Why do chains disagree? They are slow, and more steps mend it, or each sits in a mode of its own, and none do."""

from __future__ import annotations

import math

from bdl.display import count_of
from bdl.posterior.judgements import (
    COUNTED,
    ESS,
    REST,
    RHAT,
    TAIL,
    Judgement,
    Numbers,
    alone,
    energy_drifts,
    over,
    repeats,
    round_up,
    tolerance,
)

STUCK = 20.0  # times the budget: few would run that long, and so few draws cannot tell slow chains from stuck chains
RHAT_APART = 1.2  # the largest of all items; chains that are at rest in one mode do not reach it
FALLS = 0.5  # power of 1/steps by which R-hat - 1 falls: 0.9 ± 0.1 for slow chains, 0.0 to 0.4 for chains in modes
MODES_APART = 3.0  # ESS of chains alone over together; 1.3 where converged, 3.8 at least with modes 1/2 std apart


def falls(m: Numbers) -> bool:
    """Do the chains disagree, and does R-hat - 1 fall about as 1/steps, so that more steps make them agree?"""
    return m["rhat/max"] > RHAT and m["rhat/trend"] >= FALLS


def lengths_by_trend(m: Numbers) -> float:
    """How many times the length brings R-hat to RHAT, if R-hat - 1 falls as 1/steps."""
    return (m["rhat/max"] - 1) / (RHAT - 1)


def stuck(m: Numbers) -> bool:
    """Do the chains disagree in a way that more steps do not mend: is each of them in a mode of its own?

    The trend of R-hat tells, if each chain alone has made COUNTED independent draws and the energy has settled. Where
    it is not known, as before bdl 0.4, chains are stuck that have moved far enough by themselves, and whose samples
    alone would take too long.
    """
    if falls(m) or energy_drifts(m):
        return False
    if surely_apart(m) or math.isnan(m["rhat/trend"]):
        return surely_apart(m) or (alone(m) >= REST and m["ess/min"] * STUCK < ESS)
    return m["rhat/max"] > RHAT_APART and alone(m) >= COUNTED


def surely_apart(m: Numbers) -> bool:
    """Are chains that have moved far enough by themselves further apart than chance makes the worst of 50 items?

    The variance between few chains scatters as a χ² law over its chains - 1 degrees of freedom, whose quantile
    1 - 0.02/50 MODES_APART (1 + 3 / (chains - 1)) follows: 12.5 for 2 chains, 6.1 for 4, 3.8 for 8.
    """
    return alone(m) >= REST and m["ess/within"] > MODES_APART * (1 + 3 / (m["chains"] - 1 or math.nan)) * m["ess/min"]


def apart(m: Numbers, name: str, value: str) -> Judgement:
    """The judgement on chains that stay in different modes: what is known of their average."""
    again = repeats(m)
    same = "another run predicts the same" if again.outcome == "trust" else again.words.partition(";")[0]
    known = not math.isnan(m["modes/seen"])
    groups = f"{count_of(m['chains'], 'chain')} form {count_of(m['modes/seen'], 'group')}" if known else ""
    seen = f" ({groups} of about the same outputs)" if known else ""
    sure = alone(m) >= REST and not math.isnan(m["rhat/trend"])  # with few draws of a chain its trend says little
    stays = "; R-hat hardly falls with the steps, so more samples would not help" if sure else ""
    words = f"an ensemble over modes{seen}: {same}, but {_weights(m)}{stays}"
    return Judgement("ensemble over modes", name, value, words)


def _weights(m: Numbers) -> str:
    """What is known of the weights of modes."""
    unknown = "the weights of the modes are not known"
    if math.isnan(m["stacking/chains"]):
        return f"{unknown}: all chains count alike"
    gain = m["test/stacking/gain"]
    test = "" if math.isnan(gain) else f", {gain:+.3f} ± {m['test/stacking/gain_se']:.2g} nats a test item"
    return f"{unknown}; a second average weighs chains by how well they predict (stacking{test})"


def samples_needed(m: Numbers) -> float:
    """How many samples make the ESS of every item, and the Monte Carlo error, large and small enough; NaN: unknown.

    It is unknown too where no number would do, because an ESS is 0, where the predictions do not vary, and where these
    samples are enough for both: something else, such as a drift, then asks for more. And it is unknown below COUNTED
    independent draws of each chain: C chains that never meet have an ESS of about C, whatever their length.
    """
    few = min(m["ess/min"], m["ess/within"]) < COUNTED * m["chains"]
    if few and not falls(m) or alone(m) < COUNTED or stuck(m):
        return math.nan
    parts = [over(ESS, m["ess/min"]), over(TAIL, m["ess/tail_min"]), (m["mcse/most"] / tolerance(m)) ** 2]
    parts += [lengths_by_trend(m)] if falls(m) else []
    needed = m["samples"] * max((part for part in parts if not math.isnan(part)), default=math.nan)
    return round_up(needed) if m["samples"] < needed < math.inf else math.nan
