"""What importance weights, samples of a weighted distribution without them, and a T that changes say of the target."""

from __future__ import annotations

import math

from bdl.posterior.judgements import Judgement, Numbers

WEIGHTED = 100.0  # effective samples of a weighted average: its error is a tenth of the posterior's width
FOLLOWS = "samples follow the weighted distribution exp(-U/T) / psi(U)^zeta"
TOLERATED_HEAT = (
    1.25  # T_eff / T, or its inverse: widths change by 12 %. SGHMC is there at 1/5 of its largest stable step
)


def at_target(m: Numbers) -> Numbers:
    """The numbers with those of the weighted average in place of the uniform one, where weights lead to another T.

    The Monte Carlo error grows as the effective samples fall. Without usable weights the numbers stay as they are, and
    `judge_weights` says of what they are.
    """
    if math.isnan(m["temperature/moves"] + m["weight_ess"]):
        return m
    weighted = {name.replace("/bma_weighted/", "/bma/"): v for name, v in m.items() if "/bma_weighted/" in name}
    share = m["samples"] / m["weight_ess"]
    errors = {name: m[name] * math.sqrt(share) for name in ("mcse/most", "mcse/worst") if share > 1}
    return Numbers(m | weighted | errors)


def judge_change(m: Numbers) -> Judgement | None:
    """Samples of several temperatures."""
    if not (change := m["temperature/change"]) > TOLERATED_HEAT:  # NaN without samples at T > 0
        return None
    words = (
        f"T changed by a factor of {change:.3g} while samples were kept, so they follow no one distribution: keep them "
        "where T is constant"
    )
    return Judgement("no posterior", "Temperature", f"factor {change:.3g}", words)


def judge_weights(m: Numbers) -> Judgement | None:
    """Importance weights, which lead from the weighted distribution back to the target."""
    name, weights = "ESS of importance weights", m["weight_ess"]
    if "weight_ess" not in m:
        return None
    moves = m["temperature/moves"]
    if math.isnan(weights) and not math.isnan(moves):
        words = f"the chains move at T = {moves:.3g}, and no importance weights lead to T = {m['temperature']:.3g}"
        return Judgement("no posterior", name, "–", words)
    if m["weighting/acted"] == 0:
        words = "the weighting never acted: the samples are those of plain sampling"
        return Judgement("trust", "Weighted distribution", "none", words)
    if math.isnan(weights):
        return _weighted(m) or Judgement("not known", name, "–", f"{FOLLOWS}, and no importance weights lead back")
    value = f"{weights:,.1f}" + ("" if math.isnan(m["samples"]) else f" of {m['samples']:,.0f}")
    if m["weights_biased"] == 1:
        words = "importance weights are biased: the energies of batches, on which they rest, are too noisy"
        return Judgement("not known", name, value, words)
    share = m["ess/min"] / m["samples"]
    effective = weights if math.isnan(share) else weights * min(share, 1.0)
    if effective >= WEIGHTED:
        return Judgement("trust", name, value, "many samples share the weight")
    words = f"the weighted average rests on {effective:,.2g} independent samples: lower zeta, or sample longer"
    return Judgement("more samples", name, value, words)


def _weighted(m: Numbers) -> Judgement | None:
    """What samples of a weighted distribution without usable weights are samples of; None if it was not measured."""
    multiplier, plain, name = m["weighting/multiplier"], m["weighting/plain_temperature"], "Weighted distribution"
    if math.isnan(multiplier):
        return None
    if 1 / TOLERATED_HEAT <= m["weighting/multiplier_5"] and m["weighting/multiplier_95"] <= TOLERATED_HEAT:
        words = "the weighting changes the temperature by less than batches and steps may"
        return Judgement("trust", name, f"multiplier {multiplier:.3g}", words)
    like = "" if math.isnan(plain) else f", which is about exp(-U/T) at T = {plain:.2g}"
    words = f"{FOLLOWS}{like}; no importance weights lead back to T = {m['temperature']:.3g}"
    return Judgement("no posterior", name, f"multiplier {multiplier:.3g}", words)
