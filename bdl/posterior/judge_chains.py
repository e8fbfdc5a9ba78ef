"""Is this the target distribution that was asked for? What chains and the course of a run say of it."""

from __future__ import annotations

import math

from bdl.posterior.judgements import APART, ESS, TAIL, Judgement, Numbers, apart, samples_needed, stuck, surely_apart

CHAINS = 4  # at least four: Vehtari et al. 2021. Of two equal modes, 4 chains miss one in 1 of 8 runs, 2 in 1 of 2
RHAT = 1.05  # the largest of all items; 1.02 at most where chains have converged
ENERGY_ESS = 50.0  # 720 where converged; one number for the whole posterior, so fewer draws will do
ENERGY_DRIFT = 0.3  # standard deviations of the energy; .21 at most where converged
ENERGY_DRIFT_T = 4.0  # standard errors; noise exceeds them in 3 of 100 runs of 4 chains, and ENERGY_DRIFT hardly ever
DRIFT = 0.05  # standard deviations over the run, as a root mean square over the items: less than that does no harm
DRIFT_P = 0.01  # noise alone is below it in 1 of 100 runs, for each of two tests
DRIFT_UNSEEN = 0.4  # standard deviations that too few draws cannot exclude; 1,000 independent draws exclude .2
SLOW = 0.5  # of the variance lies in the slowest waves; .3 at most where each chain has 25 independent draws, .75 at
# least where it moves like a random walk


def judge_chains(m: Numbers) -> list[Judgement]:
    """Judgements on the agreement of chains, on their number of draws, and on drifts, in this order."""
    judgements = (_apart(m), _chains(m), _rhat(m), _ess(m), _tail(m), _drift(m), _slowest(m), _energy(m))
    return [judgement for judgement in judgements if judgement]


def _chains(m: Numbers) -> Judgement | None:
    chains = m["chains"]
    if math.isnan(chains):
        return None
    if chains >= CHAINS:
        return Judgement("trust", "Chains", f"{chains:.0f}", "there are enough chains to compare them with each other")
    who = (
        "one chain cannot show which modes it missed" if chains == 1 else f"{chains:.0f} chains may miss the same modes"
    )
    return Judgement("more samples", "Chains", f"{chains:.0f}", f"{who}: run at least {CHAINS}")


def _apart(m: Numbers) -> Judgement | None:
    """Chains that move well by themselves, each in its own mode: each alone seems to have many independent draws."""
    alone, together, name = m["ess/within"], m["ess/min"], "Chains against each other"
    if math.isnan(alone + together) or m["chains"] == 1:
        return None
    value = f"ESS {alone:,.0f} alone, {together:,.0f} together"
    if alone <= APART * together:
        return Judgement("trust", name, value, "the chains differ no more than their draws allow")
    if surely_apart(m):
        return apart(m, name, value)
    words = "the chains differ more than the draws of each allow, which few chains may do by chance: sample longer"
    return Judgement("more samples", name, value, words)


def _rhat(m: Numbers) -> Judgement | None:
    value, name = m["rhat/max"], "R-hat (largest)"
    if math.isnan(value):
        if m["chains"] == 1:
            return None
        return Judgement("more samples", name, "–", "R-hat was not measured: it needs 2 chains and 4 samples of each")
    if value <= RHAT:
        return Judgement("trust", name, f"{value:.3f}", "the chains agree on every test item that was checked")
    if stuck(m):
        return apart(m, name, f"{value:.3f}")
    return Judgement("more samples", name, f"{value:.3f}", "the chains do not agree yet: sample longer")


def _ess(m: Numbers) -> Judgement:
    value, name, samples = m["ess/min"], "ESS (smallest)", m["samples"]
    if math.isnan(value):
        words = "the effective sample size was not measured: it needs 4 samples of each chain"
        return Judgement("more samples", name, "–", words)
    shown = f"{value:,.0f}" + ("" if math.isnan(samples) else f" of {samples:,.0f}")
    if value >= ESS:
        return Judgement("trust", name, shown, "there are enough independent draws to compare the chains")
    if stuck(m):
        return apart(m, name, shown)
    needed = samples_needed(m)
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
    name, of_mean, of_spread, most = "Drift of predictions", m["drift/mean"], m["drift/spread"], m["drift/mean_most"]
    if math.isnan(most):
        return None
    value = f"{of_mean:.2f} std, {most:.2f} at most"
    later = "keep later samples, and sample longer"
    if m["drift/mean_p"] < DRIFT_P and of_mean > DRIFT:
        words = f"all chains still move in one direction, by {of_mean:.2g} std of the predictions over the run: {later}"
        return Judgement("more samples", name, value, words)
    if m["drift/spread_p"] < DRIFT_P and of_spread > DRIFT:
        return Judgement("more samples", name, value, f"the spread of the predictions still changes: {later}")
    if most > DRIFT_UNSEEN:
        words = f"too few independent draws to exclude that predictions move by {most:.2g} std: sample longer"
        return Judgement("more samples", name, value, words)
    return Judgement("trust", name, value, "the chains do not move in one direction")


def _slowest(m: Numbers) -> Judgement | None:
    """Chains that start together and hardly move along a direction agree, and have not spread along it yet."""
    waves, share, name = m["slow/waves"], m["slow/share"], "Slowest direction"
    if math.isnan(waves):
        return None
    value = f"{waves:.0%} in slow waves"
    if waves <= SLOW:
        return Judgement("trust", name, value, "chains move to and fro in every direction of the predictions")
    words = (
        f"along one direction, with {share:.2%} of the predictions' spread, a chain hardly turns round: chains that "
        "start close together have not spread along it yet; start them apart, or sample longer"
    )
    return Judgement("more samples", name, value, words)


def _energy(m: Numbers) -> Judgement | None:
    """The energy is one number for all parameters; while it still falls, the chains have not arrived."""
    rhat, ess, drift, errors = m["rhat/energy"], m["ess/energy"], m["energy/drift"], m["energy/drift_t"]
    if math.isnan(ess):
        return None
    value = f"ESS {ess:,.0f}" if math.isnan(drift) else f"ESS {ess:,.0f}, drift {drift:+.2f} std"
    if abs(drift) > ENERGY_DRIFT and abs(errors) > ENERGY_DRIFT_T:
        words = f"the energy still {'falls' if drift < 0 else 'rises'}: keep later samples, and sample longer"
        return Judgement("more samples", "Energy", value, words)
    if rhat > RHAT and stuck(m):
        return apart(m, "Energy", value)
    if rhat > RHAT or ess < ENERGY_ESS:
        return Judgement("more samples", "Energy", value, "the energies do not agree between chains yet: sample longer")
    return Judgement("trust", "Energy", value, "the energy of all chains is the same, and no longer drifts")
