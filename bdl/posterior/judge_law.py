"""Which temperature have the samples? What single directions, the energy, momenta and the parameters' spread say of it.

Batch noise heats a direction in proportion to its curvature, so T is a matter of direction. A thermostat, or noise that
is subtracted, sets the mean over directions: a kinetic temperature or T_eff of T then says nothing.
"""

from __future__ import annotations

import math
import statistics

from bdl.display import figures
from bdl.posterior.judge_rest import is_at_rest, take_longer
from bdl.posterior.judge_weights import TOLERATED_HEAT
from bdl.posterior.judgements import SURE, Check, Judgement, Numbers, energy_drifts, has_no_temperature, over
from bdl.posterior.student import student_factor

HOTTEST, COLDEST, MEDIAN = (f"temperature/directions/{name}" for name in ("hottest", "coldest", "median"))
NOISIEST = "temperature/direction/noise"  # the beginning of the names of directions in which batch noise is largest
HOTTEST_DIRECTION, COLDEST_DIRECTION = "Hottest direction", "Coldest direction"
KINETIC, T_EFF = "Kinetic temperature", "T_eff (mean over directions)"
# <θ, ∇U>/d over the temperature reached, or its inverse: equal where nothing moves, to 0.1 % on Landsat
SETTLED_WITHIN = 1.1
ERRORS = 2.0  # standard errors
UNCLEAR = 0.6  # of a direction's temperature: with a larger error (ERRORS standard errors) even 3 T would not be sure
TESTED = "a test of acceptance leaves no error of the step, so chains are still on their way there: sample longer"
FROM_BATCHES = "batches or the step heat it; a smaller lr, larger batches, or a sampler of all the data would less"
ENERGY_SPREAD = 2.0  # sd of the energy over the sd for a Gaussian distribution
CONTINUATION_LIMIT = (
    0.5  # sd of the energy of a Gaussian distribution, T √(d/2), by which an exact continuation changes it
)


def judge_law(m: Numbers) -> list[Judgement]:
    """The judgements on temperatures and on the energy. Single directions judge where they were measured."""
    if has_no_temperature(m):
        return []
    of_directions = by_direction(m)
    found = [_hottest(m), _coldest(m)] if of_directions else _means(m)
    found += [_settled(m), *(() if is_weighted(m) else (_along(m), _continuation(m)))]
    return [judgement for judgement in found if judgement]


def shown_temperatures(m: Numbers) -> list[Check]:
    """The means over directions, where they do not judge."""
    if has_no_temperature(m) or not (by_direction(m) or has_thermostat(m)):
        return []
    words = (
        "a mean over directions, which a thermostat or subtracted noise sets: shown, not judged"
        if has_thermostat(m)
        else "a mean over directions: shown, not judged, because single directions were measured"
    )
    names = {KINETIC: "kinetic_temperature", T_EFF: "t_eff"}
    return [Check("ok", k, _against_temperature(m, v)[2], words) for k, v in names.items() if not math.isnan(m[v])]


def by_direction(m: Numbers) -> bool:
    """Were single directions measured? Those of a weighted distribution say nothing of exp(-U/T)."""
    return not (math.isnan(m[HOTTEST] + m[f"{HOTTEST}_se"]) or is_weighted(m))


def is_weighted(m: Numbers) -> bool:
    """Do the samples follow a weighted distribution? Its momenta have T, its energies and gradients have not."""
    return "weight_ess" in m and m["weighting/acted"] != 0


def has_thermostat(m: Numbers) -> bool:
    """Does the sampler itself set the mean temperature, as a thermostat or subtracted noise do?"""
    return m["temperature/thermostat"] == 1


def is_tested(m: Numbers) -> bool:
    """Has every step a test of acceptance, which leaves no error of its size?"""
    return not math.isnan(m["acceptance"])


def sampled_temperature(m: Numbers) -> str:
    """What T was sampled, in words, by direction where that is known.

    >>> sampled_temperature(Numbers({"temperature": 1.0, HOTTEST: 625.0, f"{HOTTEST}_se": 131.0, MEDIAN: 1.4}))
    '625 ± 130 T in its hottest direction and 1.4 T in the median one'
    """
    t, middle = m["temperature"], m[MEDIAN] / m["temperature"]
    if not by_direction(m):
        known = [m[name] for name in ("kinetic_temperature", "t_eff") if not math.isnan(m[name] / t)]
        times = f"{known[0] / t:.3g} T on average over directions" if known else "an unknown temperature"
        return times if t == 1 or not known else f"T = {known[0]:.3g}, {times}"
    hottest = f"{figures(m[HOTTEST] / t)} ± {figures(m[f'{HOTTEST}_se'] / t, 2)} T in its hottest direction"
    return hottest + ("" if math.isnan(middle) else f" and {figures(middle)} T in the median one")


def _hottest(m: Numbers) -> Judgement:
    ratio, error, value = _along_direction(m, HOTTEST)
    if ratio - error > TOLERATED_HEAT:
        words = f"the chain has {sampled_temperature(m)}: {_heater(m)}"
        return _off(m, HOTTEST_DIRECTION, value, words)
    if _is_unclear(m, error / ratio):
        words = "too few independent gradients to see a direction of 3 T: sample longer, or with more chains"
        return Judgement("not known", HOTTEST_DIRECTION, value, words)
    return Judgement("trust", HOTTEST_DIRECTION, value, f"no direction is surely hotter than {TOLERATED_HEAT:g} T")


def _heater(m: Numbers) -> str:
    """What may heat a direction, and what helps."""
    if is_tested(m):
        return TESTED
    if not math.isnan(m["energy_error"]):
        return "rare steps with a large error heat it; steps that are tested would not (adjusted)"
    return "the step heats it; a smaller one would less" if m["noise_ratio"] == 0 else FROM_BATCHES


def _is_unclear(m: Numbers, relative: float) -> bool:
    """Are the errors of the noisiest directions, or without these of the hottest one, too large to see heat?"""
    names = [name for name in m if name.startswith(NOISIEST) and not name.endswith("_se")]
    of_noise = [ERRORS * error_factor(m) * m[f"{name}_se"] / m[name] for name in names if m[name] > 0]
    return (statistics.median(of_noise) if of_noise else relative) > UNCLEAR


def _coldest(m: Numbers) -> Judgement | None:
    """As `_hottest`. A noisy reading may be below 0, and then says no more than its error."""
    ratio, error, value = _along_direction(m, COLDEST)
    if math.isnan(ratio):
        return None
    if ratio + error < 1 / TOLERATED_HEAT:
        less = TESTED if is_tested(m) else "it has not spread there yet, or too much noise is subtracted"
        words = f"along its coldest direction the chain has {ratio:.3g} T: {less}"
        return _off(m, COLDEST_DIRECTION, value, words)
    return Judgement("trust", COLDEST_DIRECTION, value, f"no direction is surely colder than T / {TOLERATED_HEAT:g}")


def _off(m: Numbers, name: str, value: str, words: str) -> Judgement:
    """A direction that has another temperature, unless the chains still move: a slope reads as heat."""
    if is_tested(m):
        return Judgement("not at rest", name, value, words)
    if energy_drifts(m):
        return Judgement("not at rest", name, value, f"{words}. Or it is the slope of an energy that still moves")
    return Judgement("another temperature", name, value, words)


def _along_direction(m: Numbers, name: str) -> tuple[float, float, str]:
    """A temperature over T, ERRORS of its standard errors, and both as text.

    The error comes from the chains' spread, so it is widened by Student's t for few of them.
    """
    ratio, error = m[name] / m["temperature"], m[f"{name}_se"] / m["temperature"]
    return ratio, ERRORS * error_factor(m) * error, f"{figures(ratio)} ± {figures(error, 2)} T"


def error_factor(m: Numbers) -> float:
    """By how much an error from so many chains is too small, see `student_factor`."""
    return student_factor(int(m["chains"]) if m["chains"] > 1 else 8)  # a single chain is cut into 8 parts


def _means(m: Numbers) -> list[Judgement]:
    """Where no direction was measured, momenta and T_eff judge: means over directions, but no thermostat's."""
    kinetic, mean = _reached(m, KINETIC, "kinetic_temperature"), _reached(m, T_EFF, "t_eff")
    if has_thermostat(m):
        off = [judgement for judgement in (kinetic, mean) if judgement and judgement.outcome != "trust"]
        if kinetic and kinetic.outcome != "trust":
            return off
        words = (
            "a thermostat, or noise that is subtracted, sets the mean over directions, so it is T whatever single "
            "directions have; none of them was measured"
        )
        return [Judgement("not known", "Temperature", f"T = {m['temperature']:.3g}", words)]
    if kinetic and mean and mean.outcome != "trust" and kinetic.outcome == "trust":
        mean = Judgement("trust", mean.name, mean.value, "the momenta, which measure what is reached, show T")
    found = [judgement for judgement in (kinetic, mean) if judgement]
    if found or _settled(m):
        return found
    words = "no temperature was measured: mini-batches may heat the chain by an unknown amount"
    return [Judgement("not known", "Temperature", f"T = {m['temperature']:.3g}", words)]


def _reached(m: Numbers, title: str, name: str) -> Judgement | None:
    """Heat that the steps bring, against T."""
    ratio, error, value = _against_temperature(m, name)
    if math.isnan(ratio):
        return None
    by_batches = over(m["t_eff"], m["temperature"]) > TOLERATED_HEAT  # a slope does not enter T_eff
    if ratio - 2 * error > TOLERATED_HEAT and not by_batches and not is_at_rest(m):
        slope = "heat of mini-batches and the step, or the slope down which the chains still move"
        return Judgement("not at rest", title, value, f"{ratio:.3g} T is {slope}: {take_longer(m)}")
    if ratio - 2 * error > TOLERATED_HEAT:
        words = f"mini-batches and the step heat the chain to {ratio:.3g} T: lower lr, raise friction or the batch size"
        return Judgement("another temperature", title, value, words)
    if ratio + 2 * error < 1 / TOLERATED_HEAT:
        words = f"the chain is colder than intended, {ratio:.3g} T: check lr, friction and clipping"
        return Judgement("another temperature", title, value, words)
    words = "mini-batches and the step hardly heat the chain on average; single directions were not measured"
    return Judgement("trust", title, value, words)


def _settled(m: Numbers) -> Judgement | None:
    """<θ, ∇U>/d, the configurational temperature, is the temperature reached once |θ|² has stopped to change.

    For SGHMC this holds at any step size and batch noise. Batch noise makes it useless without its standard error.
    """
    title, name = "Configurational temperature", "configurational_temperature"
    if math.isnan(m[name] + m[f"{name}_se"]):
        return None
    ratio, error, value = _against_temperature(m, name)
    kinetic, *others = (m[k] / m["temperature"] for k in ("kinetic_temperature", "t_eff", MEDIAN))
    reached = [1.0, *(known for known in (kinetic, *others) if not math.isnan(known))]
    if ratio - 2 * error > SETTLED_WITHIN * max(reached):
        if math.isnan(kinetic) and ratio - 2 * error > TOLERATED_HEAT and not by_direction(m):
            words = f"the parameters spread as widely as at {ratio:.3g} T: lower lr, or keep later samples"
            return Judgement("another temperature", title, value, words)
        words = f"the parameters spread as widely as at {ratio:.3g} T, which heat does not explain: keep later samples"
        return Judgement("more samples", title, value, words)
    if ratio + 2 * error < min(reached) / SETTLED_WITHIN:
        spread = f"spread no further than at {ratio:.3g} T" if ratio > 0 else "still grow"
        words = f"the parameters {spread}: their slow directions need more steps"
        return Judgement("more samples", title, value, words)
    return Judgement("trust", title, value, "the parameters spread as widely as they should, and no further")


def _along(m: Numbers) -> Judgement | None:
    """The standard deviation of U along a chain is T √(d/2) for a Gaussian distribution."""
    ratio, title = m["energy/along"] / (m["energy/gaussian"] or math.nan), "Spread of the energy"
    if math.isnan(ratio):
        return None
    value = f"{m['energy/along']:.3g} nats, Gaussian {m['energy/gaussian']:.3g}"
    if ratio <= ENERGY_SPREAD:
        return Judgement("trust", title, value, "the energy spreads about as far as that of a Gaussian distribution")
    words = f"along a chain the energy spreads {ratio:.3g} times as far as that of a Gaussian distribution at T"
    return _unexplained(m, title, value, words)


def _continuation(m: Numbers) -> Judgement | None:
    """Chains of the right temperature that are at rest have the same energy after a short exact continuation."""
    change, error, title = m["energy/continuation"], m["energy/continuation_se"], "Exact continuation"
    if math.isnan(change + error):
        return None
    value = f"{change:+.3g} ± {error:.2g} nats"
    least = CONTINUATION_LIMIT * (0.0 if math.isnan(m["energy/gaussian"]) else m["energy/gaussian"])
    if abs(change) <= max(SURE * error_factor(m) * error, least):
        return Judgement("trust", title, value, "a short exact continuation leaves the energy where it is")
    way, law = ("down", "hotter") if change < 0 else ("up", "colder")
    words = f"a short exact continuation takes the energy {way} by {abs(change):.3g} nats: the chain was {law} than T"
    return _unexplained(m, title, value, words)


def _unexplained(m: Numbers, title: str, value: str, words: str) -> Judgement:
    """Energies that T does not explain: another temperature, unless the chains move or all directions have T."""
    rest = f"{words}, or the chains are not at rest"
    if not is_at_rest(m):
        return Judgement("not at rest", title, value, f"{rest}: {take_longer(m)}")
    if by_direction(m) and all(j is None or j.outcome == "trust" for j in (_hottest(m), _coldest(m))):
        return Judgement("not at rest", title, value, f"{rest}: every direction that was measured has T")
    return Judgement("another temperature", title, value, rest)


def _against_temperature(m: Numbers, name: str) -> tuple[float, float, str]:
    """A measured temperature over T, the standard error of this ratio (0 if unknown), and both numbers as text."""
    intended, error = m["temperature"], m[f"{name}_se"]
    return m[name] / intended, 0.0 if math.isnan(error) else error / intended, f"{m[name]:.3g}, T {intended:.3g}"
