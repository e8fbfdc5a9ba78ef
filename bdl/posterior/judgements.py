"""What the numbers of a run say of the verdict's two questions, and the limits from which they say it.

The limits were chosen on simulated runs with known laws: docs/verdict.md has the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from bdl.posterior.checks import Check, Level, Numbers

VerdictOutcome = Literal["trust", "more samples", "not measured", "not mixing", "wrong law"]
OUTCOMES: tuple[VerdictOutcome, ...] = (
    "trust",
    "more samples",
    "not measured",
    "not mixing",
    "wrong law",
)  # best to worst
LEVELS_OF: dict[VerdictOutcome, Level] = {
    "trust": "ok",
    "more samples": "look",
    "not measured": "look",
    "not mixing": "bad",
    "wrong law": "bad",
}

CHAINS = 4  # at least four: Vehtari et al. 2021. Of two equal modes, 4 chains miss one in 1 of 8 runs, 2 in 1 of 2
TOLERANCE_P = 0.02  # a shift of p = 1/2 by .02 costs .0008 nats
TOLERANCE_MEAN = 0.1  # predictive standard deviations; a shift by .1 costs .005 nats
RHAT = 1.05  # the largest of all items; 1.02 at most where chains have converged
ESS = 200.0  # the smallest of all items; 490 where converged, 145 at most with a burn-in that nothing else shows
TAIL = 100.0  # the smallest of all items; 580 where converged; quantiles of 5 % rest on a twentieth of the draws
ENERGY_ESS = 50.0  # 720 where converged; one number for the whole law, so fewer draws will do
DRIFT = 0.3  # standard deviations of the energy; .21 at most where converged
DRIFT_T = 4.0  # standard errors; noise exceeds them in 3 of 100 runs of 4 chains, and DRIFT hardly ever
STUCK = 20.0  # times the budget: few would run that long, and so few draws cannot tell slow chains from stuck ones
APART = 3.0  # ESS of chains alone over together; 1.3 where converged, 3.8 at least with modes 1/2 std apart
HEAT = 1.25  # of T, or its inverse: widths change by 12 %. SGHMC reaches it at 1/5 of its largest stable step
EXCESS = 2.0  # nats an item above a constant: equipartition gives T/2 for each output that the data determine
GAIN = 0.01  # nats an item below a constant: about the standard error of 1,000 items

STAY = "each chain stays in a part of the law: raise lr, start elsewhere, or average many more chains"


@dataclass(frozen=True)
class Judgement:
    """What one check says of a question."""

    outcome: VerdictOutcome
    name: str
    value: str
    words: str

    @property
    def check(self) -> Check:
        return Check(LEVELS_OF[self.outcome], self.name, self.value, self.words)


def repeats(m: Numbers) -> Judgement:
    """Would another run of this budget predict the same?"""
    most, worst, name = m["mcse/most"], m["mcse/worst"], "Monte Carlo error"
    if math.isnan(most):
        words = "the error of the averages was not measured: it needs 2 chains, or 4 samples of one"
        return Judgement("not measured", name, "–", words)
    limit = tolerance(m)
    what, unit = ("a mean", " predictive std") if predicts_numbers(m) else ("p", "")
    value = f"± {most:.2g}{unit}, at worst {worst:.2g}"
    words = f"{what} moves by ± {most:.2g}{unit} or less at 9 of 10 items, by ± {worst:.2g}{unit} at the worst"
    if most <= limit:
        return Judgement("trust", name, value, words)
    factor = _times((most / limit) ** 2)
    remedy = f"{factor} times the chains bring it to ± {limit:g}{unit}"
    return Judgement("more samples", name, value, f"{words}; {remedy}, and so do as many samples if the chains mix")


def tolerance(m: Numbers) -> float:
    """The Monte Carlo error that is small enough for most items."""
    return TOLERANCE_MEAN if predicts_numbers(m) else TOLERANCE_P


def predicts_numbers(m: Numbers) -> bool:
    return not all(math.isnan(m[f"{split}/bma/rmse"]) for split in ("test", "val", "train"))


def law(m: Numbers) -> list[Judgement]:
    """Is this the law that was asked for? Judgements about level, temperature and convergence, in this order."""
    targets = (_kind(m), _level(m), _constant(m), *_temperatures(m))
    convergence = (_apart(m), _chains(m), _rhat(m), _ess(m), _tail(m), _energy(m))
    return [judgement for judgement in (*targets, *convergence) if judgement]


def samples_needed(m: Numbers) -> float:
    """How many samples make the ESS of every item, and the Monte Carlo error, large and small enough; NaN: unknown."""
    parts = [ESS / m["ess/min"], TAIL / m["ess/tail_min"], (m["mcse/most"] / tolerance(m)) ** 2]
    known = [part for part in parts if math.isfinite(part)]
    return _round_up(m["samples"] * max(known)) if known and math.isfinite(m["samples"]) else math.nan


def _kind(m: Numbers) -> Judgement | None:
    if m["temperature"] == 0:
        words = "at T = 0 this is optimisation: an ensemble of solutions, not a posterior"
        return Judgement("wrong law", "Temperature", "T = 0", words)
    if m["approximation"] == 1:
        words = (
            "the networks are draws of an approximation to the posterior, and nothing here measures how far it lies off"
        )
        return Judgement("wrong law", "Approximation", "draws made after training", words)
    if not math.isnan(m["elbo"]):
        words = "the draws are those of a variational approximation, and nothing here measures how far it lies off"
        return Judgement("wrong law", "Approximation", f"ELBO {m['elbo']:.4g}", words)
    return None


def _level(m: Numbers) -> Judgement | None:
    """Single networks far above a constant predictor: the chains have left the posterior, and may agree out there."""
    split = "train" if not math.isnan(m["train/draw/nll"]) else "test"
    draw, constant = m[f"{split}/draw/nll"], m[f"{split}/constant/nll"]
    if math.isnan(draw + constant):
        return None
    value = f"NLL {draw:.3g}, constant {constant:.3g}"
    temperature = m["temperature"] if m["temperature"] > 1 else 1.0  # NaN reads as 1
    if draw <= constant + EXCESS * temperature:
        return Judgement(
            "trust", "Level of single samples", value, "single samples are not far from what the data allow"
        )
    words = f"diverged: single samples predict {split} data far worse than a constant does; lower lr"
    return Judgement("wrong law", "Level of single samples", value, words)


def _constant(m: Numbers) -> Judgement | None:
    average, constant = m["test/bma/nll"], m["test/constant/nll"]
    if math.isnan(average + constant):
        return None
    value = f"NLL {average:.3f}, constant {constant:.3f}"
    if average < constant - GAIN:
        return Judgement("trust", "Average against a constant", value, "the average has learnt from the inputs")
    words = (
        "the average predicts no better than a constant: the chains diverged, the prior is too tight, or x says nothing"
    )
    return Judgement("wrong law", "Average against a constant", value, words)


def _temperatures(m: Numbers) -> list[Judgement]:
    """The momenta show what is reached. T_eff bounds it from above, and counts where there are no momenta."""
    approximate = m["approximation"] == 1 or not math.isnan(m["elbo"])
    if m["temperature"] == 0 or math.isnan(m["temperature"]) or approximate:
        return []
    kinetic, bound = _reached(m, "Kinetic temperature", "kinetic_temperature"), _reached(m, "T_eff", "t_eff")
    if kinetic and bound and bound.outcome != "trust" and kinetic.outcome == "trust":
        bound = Judgement("trust", bound.name, bound.value, "it is an upper bound here: the momenta show T")
    found = [judgement for judgement in (kinetic, bound, _width(m)) if judgement]
    if found:
        return found
    words = "no temperature was measured: mini-batches may heat the chain by an unknown amount"
    return [Judgement("not measured", "Temperature", f"T = {m['temperature']:.3g}", words)]


def _reached(m: Numbers, title: str, name: str) -> Judgement | None:
    """Heat that the steps bring, against T."""
    ratio, error, value = _against_temperature(m, name)
    if math.isnan(ratio):
        return None
    if ratio - 2 * error > HEAT:
        words = f"mini-batches and the step heat the chain to {ratio:.3g} T: lower lr, raise friction or the batch size"
        return Judgement("wrong law", title, value, words)
    if ratio + 2 * error < 1 / HEAT:
        words = f"the chain is colder than intended, {ratio:.3g} T: check lr, friction and clipping"
        return Judgement("wrong law", title, value, words)
    return Judgement("trust", title, value, "mini-batches and the step hardly heat the chain")


def _width(m: Numbers) -> Judgement | None:
    """<θ, ∇U>/d, low until slow directions have spread. Batch noise makes it useless without its standard error."""
    title, name = "Configurational temperature", "configurational_temperature"
    ratio, error, value = _against_temperature(m, name)
    if math.isnan(ratio + m[f"{name}_se"]):
        return None
    if ratio - 2 * error > HEAT:
        words = f"the parameters lie as wide as at {ratio:.3g} T: lower lr, or keep later samples if they still shrink"
        return Judgement("wrong law", title, value, words)
    if ratio + 2 * error < 1 / HEAT:
        words = f"the parameters lie as close together as at {ratio:.3g} T: their slow directions have not spread yet"
        return Judgement("more samples", title, value, words)
    return Judgement("trust", title, value, "the parameters lie as wide as the law")


def _against_temperature(m: Numbers, name: str) -> tuple[float, float, str]:
    """A measured temperature over T, the standard error of this ratio (0 if unknown), and both numbers as text."""
    intended, error = m["temperature"], m[f"{name}_se"]
    value = f"{m[name]:.3g}, T {intended:.3g}"
    return m[name] / intended, 0.0 if math.isnan(error) else error / intended, value


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
    alone, together = m["ess/within"], m["ess/min"]
    if math.isnan(alone + together) or m["chains"] == 1:
        return None
    value = f"ESS {alone:,.0f} alone, {together:,.0f} together"
    if alone <= APART * together:
        return Judgement(
            "trust", "Chains against each other", value, "the chains differ no more than their draws allow"
        )
    return Judgement("not mixing", "Chains against each other", value, STAY)


def _rhat(m: Numbers) -> Judgement | None:
    value, name = m["rhat/max"], "R-hat (largest)"
    if math.isnan(value):
        if m["chains"] == 1:
            return None
        return Judgement("more samples", name, "–", "R-hat was not measured: it needs 2 chains and 4 samples of each")
    if value <= RHAT:
        return Judgement("trust", name, f"{value:.3f}", "the chains agree on every test item that was checked")
    if _stuck(m):
        return Judgement("not mixing", name, f"{value:.3f}", STAY)
    return Judgement("more samples", name, f"{value:.3f}", "the chains do not agree yet: sample longer")


def _ess(m: Numbers) -> Judgement:
    value, name, samples = m["ess/min"], "ESS (smallest)", m["samples"]
    if math.isnan(value):
        words = "the effective sample size was not measured: it needs 4 samples of each chain"
        return Judgement("more samples", name, "–", words)
    shown = f"{value:,.0f}" + ("" if math.isnan(samples) else f" of {samples:,.0f}")
    if value >= ESS:
        return Judgement("trust", name, shown, "there are enough independent draws to compare the chains")
    if _stuck(m):
        return Judgement("not mixing", name, shown, STAY)
    needed = samples_needed(m)
    many = "longer" if math.isnan(needed) else f"until there are about {needed:,.0f} samples as far apart as these"
    return Judgement("more samples", name, shown, f"there are too few independent draws: sample {many}")


def _tail(m: Numbers) -> Judgement | None:
    value, name = m["ess/tail_min"], "ESS of the tails"
    if math.isnan(value):
        return None
    if value >= TAIL:
        return Judgement("trust", name, f"{value:,.0f}", "there are enough draws in the tails")
    outcome: VerdictOutcome = "not mixing" if _stuck(m) else "more samples"
    return Judgement(outcome, name, f"{value:,.0f}", "there are too few independent draws in the tails: sample longer")


def _energy(m: Numbers) -> Judgement | None:
    """The energy is one number for the whole law; while it still falls, the law has not been reached."""
    rhat, ess, drift, errors = m["rhat/energy"], m["ess/energy"], m["energy/drift"], m["energy/drift_t"]
    if math.isnan(ess):
        return None
    value = f"ESS {ess:,.0f}" if math.isnan(drift) else f"ESS {ess:,.0f}, drift {drift:+.2f} std"
    if abs(drift) > DRIFT and abs(errors) > DRIFT_T:
        words = f"the energy still {'falls' if drift < 0 else 'rises'}: keep later samples, and sample longer"
        return Judgement("more samples", "Energy", value, words)
    if rhat > RHAT and _stuck(m):
        return Judgement(
            "not mixing", "Energy", value, "the chains have different energies: they lie in different modes"
        )
    if rhat > RHAT or ess < ENERGY_ESS:
        return Judgement("more samples", "Energy", value, "the energies do not agree between chains yet: sample longer")
    return Judgement("trust", "Energy", value, "the energy of all chains is the same, and no longer drifts")


def _stuck(m: Numbers) -> bool:
    """Would samples alone take too long, or do the chains disagree although each has moved far enough by itself?"""
    return m["ess/min"] * STUCK < ESS or m["ess/within"] > APART * m["ess/min"]


def _times(factor: float) -> str:
    return f"{factor:.1f}" if factor < 10 else f"{_round_up(factor):,.0f}"


def _round_up(value: float) -> float:
    """The value, rounded up to two digits."""
    unit = 10.0 ** max(math.floor(math.log10(value)) - 1, 0) if value > 0 else 1.0
    return math.ceil(value / unit) * unit
