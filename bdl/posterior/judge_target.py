"""Is this the target distribution that was asked for? What scores, temperatures, weights and chains say of it."""

from __future__ import annotations

import math

from bdl.posterior.heads import is_worse_than_start
from bdl.posterior.judge_law import judge_law
from bdl.posterior.judge_modes import MODES_APART, apart, falls, lengths_by_trend, samples_needed, stuck
from bdl.posterior.judge_rest import is_at_rest, is_on_its_way, judge_rest, take_longer
from bdl.posterior.judge_weights import judge_change, judge_weights
from bdl.posterior.judgements import (
    ESS,
    FEW_ITEMS,
    PARAMETERS,
    RHAT,
    SURE,
    TAIL,
    Judgement,
    Numbers,
    compared,
    energy_drifts,
    has_learnt,
    margin,
    nats,
    over,
    scale,
)

EXCESS = 2.0  # nats an item above a constant: equipartition gives T/2 for each output that the data determine
CLAIM = 0.03  # nats an item, times `scale`, that the inputs say of y by the average's own account
TOO_WIDE = 3.0  # predicted standard deviations over residuals
OF_CHAINS = "Chains"  # name of the judgement on their number, which longer chains do not change
CHAINS = 4  # at least 4 (Vehtari et al. 2021): they miss one of two equal modes in 1 of 8 runs, 2 chains in 1 of 2
ENERGY_ESS = 50.0  # 720 where converged; one number for the whole posterior, so fewer draws will do
DRIFT = 0.05  # standard deviations over the run, as a root mean square over the items: less than that does no harm
DRIFT_P = 0.01  # noise alone is below it in 1 of 100 runs, for each of two tests
DRIFT_UNSEEN = 0.4  # standard deviations that too few draws cannot exclude; 1,000 independent draws exclude 0.2
# The share of the variance that lies in the slowest waves: 0.3 at most where each chain has 25 independent draws, 0.75
# at least where it moves like a random walk
SLOW = 0.5


def judge_target(m: Numbers) -> list[Judgement]:
    """Judgements on the kind of samples, their scores, temperatures and weights, then on chains, draws and drifts."""
    of_scores = (_level(m), _constant(m), _width(m))
    of_law = (_kind(m), judge_change(m), *of_scores, *judge_law(m), judge_weights(m))
    of_chains = (judge_rest(m), _apart(m), _chains(m), _rhat(m), _ess(m), _tail(m), _drift(m), _slowest(m), _energy(m))
    return [judgement for judgement in (*of_law, *of_chains) if judgement]


def _kind(m: Numbers) -> Judgement | None:
    if m["temperature"] == 0:
        words = "at T = 0 this is optimisation: an ensemble of solutions, not a posterior"
        return Judgement("no posterior", "Temperature", "T = 0", words)
    far = "to the posterior, and nothing here measures how far from it they are"
    if m["approximation"] == 1:
        words = f"the networks are draws of an approximation {far}"
        return Judgement("no posterior", "Approximation", "draws made after training", words)
    if not math.isnan(m["elbo"]):
        words = f"the networks are draws of a variational approximation {far}"
        return Judgement("no posterior", "Approximation", f"ELBO {m['elbo']:.4g}", words)
    return None


def _level(m: Numbers) -> Judgement | None:
    """Single networks far above a constant predictor: the chains have left the posterior, and may agree out there.

    Of test data this is also seen where single networks are sure of themselves and right on average.
    """
    split = "train" if not math.isnan(m["train/draw/nll"]) else "test"
    draw, constant, name = m[f"{split}/draw/nll"], m[f"{split}/constant/nll"], "Level of single samples"
    if math.isnan(draw + constant):
        return None
    value = f"NLL {draw:.3g}, constant {constant:.3g}"
    temperature = m["temperature"] if m["temperature"] > 1 else 1.0  # NaN reads as 1
    if draw <= constant + EXCESS * temperature:
        return Judgement("trust", name, value, "single samples are not far from what the data allow")
    if m["approximation"] == 1 and has_learnt(m) and not is_worse_than_start(m):  # it has no chain that could diverge
        words = "single draws are wide, and their average predicts no worse than its start"
        return Judgement("trust", name, value, words)
    if split == "test" and (has_learnt(m) or m["test/items"] < FEW_ITEMS):
        return Judgement("trust", name, value, "single samples are sure of themselves, and their average is not")
    far = f"single samples predict {split} data far worse than a constant prediction does"
    words = f"diverged: {far}; lower lr"
    if is_on_its_way(m):
        words = f"{far}: the run is too short, or it diverged; {take_longer(m)}, and lower lr if that does not help"
    return Judgement("broken", name, value, words)


def _constant(m: Numbers) -> Judgement | None:
    average, constant, name = m["test/bma/nll"], m["test/constant/nll"], "Average against a constant"
    if math.isnan(average + constant) or m["test/items"] < FEW_ITEMS:
        return None
    value = "NLL {}, constant {}".format(*nats(average, constant))
    if has_learnt(m):
        return Judgement("trust", name, value, "the average has learnt from the inputs")
    why = "the chains diverged, the prior is too tight, or the inputs say nothing"
    if m["train/constant/nll"] - m["train/bma/nll"] > SURE * m["train/constant/gain_se"]:
        why = (
            "training rows are predicted better than that: test rows are unlike them, as those of new groups or of a "
            "later time are, or what the networks have learnt is noise"
        )
    error, claim = m["test/constant/gain_se"], m["test/constant/claim"]
    if average - constant > margin(m) and average - constant > SURE * error:
        return Judgement("broken", name, value, f"the average predicts worse than a constant does: {why}")
    if claim > CLAIM * scale(m) and constant - average + 2 * error > claim / 2:
        return Judgement("trust", name, value, "there are too few test items to tell the average from a constant")
    return Judgement("not known", name, value, f"the average predicts no better than a constant does: {why}")


def _width(m: Numbers) -> Judgement | None:
    """Predictions of numbers that are far wider than the data lie around them."""
    ratio, name = over(1, m["mcse/unit"]), "Width against residuals"
    if math.isnan(ratio):
        return None
    if ratio <= TOO_WIDE:
        return Judgement("trust", name, f"{ratio:.2g}", "predictions are hardly wider than the data lie around them")
    words = (
        f"predictions are at least {ratio:.2g} times as wide as the data lie around them: the chains are heated, or "
        "the prior or the noise is too wide"
    )
    return Judgement("not known", name, f"{ratio:.2g}", words)


def _chains(m: Numbers) -> Judgement | None:
    chains = m["chains"]
    if math.isnan(chains):
        return None
    if chains >= CHAINS:
        return Judgement("trust", OF_CHAINS, f"{chains:.0f}", "there are enough chains to compare them with each other")
    few = "one chain cannot show which modes it missed"
    words = f"{few if chains == 1 else f'{chains:.0f} chains may miss the same modes'}: run at least {CHAINS}"
    return Judgement("more samples", OF_CHAINS, f"{chains:.0f}", words)


def _apart(m: Numbers) -> Judgement | None:
    """Chains that move well by themselves, each in its own mode: each alone seems to have many independent draws."""
    alone, together, name = m["ess/within"], m["ess/min"], "Chains against each other"
    if math.isnan(alone + together) or m["chains"] == 1:
        return None
    value = f"ESS {alone:,.0f} alone, {together:,.0f} together"
    if alone <= MODES_APART * together:
        return Judgement("trust", name, value, "the chains disagree no more than each one's own samples suggest")
    if stuck(m):
        return apart(m, name, value)
    words = _falling(m) or (
        "the chains disagree more than each one's own samples suggest; with few chains this can happen by chance: "
        "sample longer"
    )
    return Judgement("more samples", name, value, words)


def _rhat(m: Numbers) -> Judgement | None:
    value, name = m["rhat/max"], "R-hat (largest)"
    if math.isnan(value):
        if m["chains"] == 1:
            return None
        if m["mcse/worst"] == 0:
            faster = "raise lr, and " if math.isnan(m["energy_error"]) else ""  # see `apart`
            why = take_longer(m) if not is_at_rest(m) else f"{faster}see that steps are accepted"
            words = f"the chains have not moved: all predict exactly the same; {why}"
            return Judgement("not at rest", name, "–", words)
        return Judgement("more samples", name, "–", "R-hat was not measured: it needs 2 chains and 4 samples of each")
    if value <= RHAT:
        where = "parameter" if PARAMETERS in m else "test item that was checked"
        return Judgement("trust", name, f"{value:.3f}", f"the chains agree on every {where}")
    if stuck(m):
        return apart(m, name, f"{value:.3f}")
    words = _falling(m) or "the chains do not agree yet: sample longer"
    return Judgement("more samples", name, f"{value:.3f}", words)


def _falling(m: Numbers) -> str:
    """The advice where R-hat - 1 falls as 1/steps; empty elsewhere, and where `take_longer` says another length."""
    if not falls(m) or not is_at_rest(m):
        return ""
    times = max(2, math.ceil(lengths_by_trend(m)))
    return f"R-hat - 1 falls about as 1/steps: {times} times the length would bring it to {RHAT:g}"


def _ess(m: Numbers) -> Judgement:
    value, name, samples = m["ess/min"], "ESS (smallest)", m["samples"]
    if math.isnan(value):
        words = "the effective sample size was not measured: it needs 4 samples of each chain that do not all agree"
        return Judgement("more samples", name, "–", words)
    shown = f"{value:,.0f}" + ("" if math.isnan(samples) else f" of {samples:,.0f}")
    if value >= ESS:
        return Judgement("trust", name, shown, "there are enough independent draws to compare the chains")
    if stuck(m):
        return apart(m, name, shown)
    needed = samples_needed(m) if is_at_rest(m) else math.nan
    many = "longer" if math.isnan(needed) else f"until there are about {needed:,.0f} samples as far apart as these"
    return Judgement("more samples", name, shown, f"there are too few independent draws: sample {many}")


def _tail(m: Numbers) -> Judgement | None:
    value, name = m["ess/tail_min"], "ESS of the tails"
    if math.isnan(value):
        return None
    if value >= TAIL:
        return Judgement("trust", name, f"{value:,.0f}", "there are enough draws in the tails")
    if stuck(m):
        return apart(m, name, f"{value:,.0f}")
    words = "there are too few independent draws in the tails: sample longer"
    return Judgement("more samples", name, f"{value:,.0f}", words)


def _drift(m: Numbers) -> Judgement | None:
    """All chains together may move, which no comparison of chains shows."""
    what = compared(m)
    name, of_mean, of_spread, most = f"Drift of {what}", m["drift/mean"], m["drift/spread"], m["drift/mean_most"]
    if math.isnan(most):
        return None
    value = f"{of_mean:.2f} std, {most:.2f} at most"
    later = "keep later samples, and sample longer"
    if m["drift/mean_p"] < DRIFT_P and of_mean > DRIFT:
        words = f"all chains still move in one direction, by {of_mean:.2g} std of the {what} over the run: {later}"
        return Judgement("more samples", name, value, words)
    if m["drift/spread_p"] < DRIFT_P and of_spread > DRIFT:
        return Judgement("more samples", name, value, f"the spread of the {what} still changes: {later}")
    if most > DRIFT_UNSEEN:
        words = f"too few independent draws to exclude that {what} move by {most:.2g} std: sample longer"
        return Judgement("more samples", name, value, words)
    return Judgement("trust", name, value, "the chains do not move in one direction")


def _slowest(m: Numbers) -> Judgement | None:
    """Chains that start together and hardly move along a direction agree, and have not spread along it yet."""
    waves, share, name = m["slow/waves"], m["slow/share"], "Slowest direction"
    if math.isnan(waves):
        return None
    value, what = f"{waves:.0%} in slow waves", compared(m)
    if waves <= SLOW:
        return Judgement("trust", name, value, f"chains move back and forth in every direction of the {what}")
    words = (
        f"along one direction, with {share:.2%} of the {what}' spread, chains move too slowly to come back: those that "
        "start close together have not spread along it yet; start them apart, or sample longer"
    )
    return Judgement("more samples", name, value, words)


def _energy(m: Numbers) -> Judgement | None:
    """The energy is one number for all parameters; while it still falls, the chains have not arrived."""
    rhat, ess, drift = m["rhat/energy"], m["ess/energy"], m["energy/drift"]
    if math.isnan(ess):
        return None
    value = f"ESS {ess:,.0f}" if math.isnan(drift) else f"ESS {ess:,.0f}, drift {drift:+.2f} std"
    if energy_drifts(m):
        words = f"the energy still {'falls' if drift < 0 else 'rises'}: {take_longer(m)}"
        return Judgement("not at rest", "Energy", value, words)
    if rhat > RHAT and stuck(m):
        return apart(m, "Energy", value)
    if rhat > RHAT or ess < ENERGY_ESS:
        return Judgement("more samples", "Energy", value, "the energies do not agree between chains yet: sample longer")
    return Judgement("trust", "Energy", value, "the energy of all chains is the same, and no longer drifts")
