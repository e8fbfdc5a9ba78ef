"""Checks that do not decide the verdict: a converged run may predict badly, and the other way round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bdl.posterior.energy_histogram import EnergyHistogram
from bdl.posterior.judge_rest import is_at_rest
from bdl.posterior.judgements import LEVELS, Check, Level, Numbers, nats, over, scale

COOL = 1.05  # T_eff over T: half of the 10 % of heat up to which tuning raises lr


def notes(m: Numbers, histogram: EnergyHistogram | None, warnings: Sequence[str]) -> list[Check]:
    """The checks of a run by its metrics, its energies where they are weighted, and its warnings."""
    checks = (_average(m), _error(m), _calibration(m), _intervals(m), _acceptance(m), _swaps(m))
    warned = Check("look", "Warnings", str(len(warnings)), "\n".join(warnings))
    silent = Check("ok", "Warnings", "none", "the run gave no warnings")
    return [*(check for check in (*checks, _bins(histogram)) if check), warned if warnings else silent]


def _acceptance(m: Numbers) -> Check | None:
    value = m["acceptance"]
    if math.isnan(value):
        return None
    if value < 0.1:
        smaller = "lr" if math.isnan(m["energy_error"]) else "energy_var"  # from which MCLMC finds its lr
        words = f"most proposals are rejected: lower {smaller}, or adapt it for longer"
    elif value > 0.97 and not m["t_eff"] > COOL * m["temperature"] and math.isnan(m["energy_error"]):
        first = "nearly all are accepted: a larger lr may do, which a longer run can tell"
        words = "the steps are shorter than necessary: raise lr, or adapt it" if is_at_rest(m) else first
    else:
        words = "enough proposals are accepted, and rejecting the others leaves no error of the step size"
        return Check("ok", "Acceptance", f"{value:.2f}", words)
    return Check("look", "Acceptance", f"{value:.2f}", words)


def _swaps(m: Mapping[str, float]) -> Check | None:
    rates = [v for k, v in m.items() if k.startswith("swap_rate/") and not math.isnan(v)]
    if not rates:
        return None
    value = f"{min(rates):.3f} to {max(rates):.3f}"
    if min(rates) < 0.01:
        words = "some replicas hardly ever swap: choose temperatures that lie closer together"
        return Check("look", "Swap rates", value, words)
    return Check("ok", "Swap rates", value, "hot chains pass their states to cold ones")


def _average(m: Mapping[str, float]) -> Check | None:
    """By Jensen's inequality an average has a lower NLL than its samples have on average."""
    one, average = ({s: m[f"test/{row}/{s}"] for s in ("accuracy", "rmse", "nll")} for row in ("one_sample", "bma"))
    if math.isnan(one["nll"] + average["nll"]):
        return None
    worse_nll = average["nll"] > one["nll"] + 0.01 * abs(one["nll"]) + 1e-6  # the NLL of numbers may be negative
    wrong, chance = 1 - one["accuracy"], over((1 - one["accuracy"]) * one["accuracy"], m["test/items"])
    more = average["accuracy"] < one["accuracy"] - 0.01 * wrong - (0.0 if math.isnan(chance) else math.sqrt(chance))
    worse_error = more or average["rmse"] > 1.01 * one["rmse"]
    level = LEVELS[worse_nll + worse_error]
    words = {
        "ok": "averaging improves the predictions, or at least does no harm",
        "look": f"the average has a worse {'NLL' if worse_nll else 'error'}: were samples kept during burn-in?",
        "bad": "the average is worse than one sample: keep later samples, or sample longer",
    }
    value = "NLL {} → {}".format(*nats(one["nll"], average["nll"]))
    return Check(level, "Average against one sample", value, words[level])


def _error(m: Mapping[str, float]) -> Check | None:
    """The most frequent class may be right more often than an average that finds a few of the rare ones."""
    right, constant, name = m["test/bma/accuracy"], m["test/constant/accuracy"], "Error against a constant"
    if math.isnan(right + constant):
        return None
    value = f"{100 * (1 - right):.3g} %, constant {100 * (1 - constant):.3g} %"
    if right >= constant:
        return Check("ok", name, value, "the average errs no more often than the most frequent class alone")
    words = "the most frequent class alone errs less often: read recall and average precision by class"
    return Check("look", name, value, words)


def _calibration(m: Mapping[str, float]) -> Check | None:
    value = m["test/bma/ece"]
    if math.isnan(value):
        return None
    right, items = m["test/bma/accuracy"], m["test/items"]
    chance = 2 * math.sqrt(over(right * (1 - right), items)) if items > 0 else 0.0  # two standard errors
    ok = min(0.03, max(0.03 * scale(m), 0.0 if math.isnan(chance) else chance))
    level = _grade(value, ok, ok / 0.3)
    words = {
        "ok": "the confidence of the average matches its accuracy",
        "look": "the confidence of the average differs from its accuracy: see the reliability diagram",
        "bad": "the confidence of the average is misleading: see the reliability diagram",
    }
    return Check(level, "Calibration error (ECE)", f"{value:.3f}", words[level])


def _intervals(m: Mapping[str, float]) -> Check | None:
    value, inside = m["test/bma/quantile_error"], m["test/bma/coverage_90"]
    if math.isnan(value):
        return None
    few = 1.0 if math.isnan(m["test/items"]) else max(1.0, math.sqrt(over(100.0, m["test/items"])))
    level = _grade(value, 0.05 * few, 0.1 * few)  # 100 items that follow the predictions have 0.03 on average
    wide = "wide" if inside > 0.9 else "narrow"
    words = {
        "ok": "the predicted intervals hold as many test values as they should",
        "look": f"the predicted intervals are too {wide} in parts: see the calibration of quantiles",
        "bad": f"the predicted intervals are too {wide}: the likelihood may not suit the data, or the chain is heated",
    }
    return Check(level, "Calibration of intervals", f"90 % hold {100 * inside:.1f} %", words[level])


def _bins(h: EnergyHistogram | None) -> Check | None:
    if h is None:
        return None
    if h.share_outside > 0.05:
        level, words = "look", "psi is constant beyond the bins: widen low and high, or run the pilot again"
    elif not h.frozen:
        level, words = "look", "psi still changes, so importance weights are not meaningful yet"
    else:
        level, words = "ok", "the bins cover the energies, and psi has settled"
    return Check(level, "Energy bins", f"{100 * h.share_outside:.1f} % outside", words)


def _grade(value: float, ok: float, look: float) -> Level:
    return "ok" if value <= ok else "look" if value <= look else "bad"
