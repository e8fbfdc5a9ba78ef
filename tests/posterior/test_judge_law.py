"""Which temperature judges: single directions and energies where they were measured, and no mean of a thermostat."""

import pytest
from test_verdict import GOOD

from bdl.posterior.verdict import Verdict, verdict

AT_T = {
    "temperature/directions/hottest": 1.15, "temperature/directions/hottest_se": 0.07,
    "temperature/directions/coldest": 0.93, "temperature/directions/coldest_se": 0.05,
    "temperature/directions/median": 1.0, "energy/along": 46.0, "energy/gaussian": 45.0,
    "energy/continuation": -8.0, "energy/continuation_se": 12.0, "chains": 8, "temperature/thermostat": 1.0,
    "kinetic_temperature": 0.9993, "t_eff": 1.42,
}  # fmt: skip


def of(**changes: float | None) -> Verdict:
    """The verdict on a run with a thermostat whose law was measured; `__` stands for `/`."""
    return verdict(GOOD | AT_T | {k.replace("__", "/"): v for k, v in changes.items()})


def hottest(t: float, error: float, **others: float) -> Verdict:
    return of(temperature__directions__hottest=t, temperature__directions__hottest_se=error, **others)


def coldest(t: float, error: float) -> Verdict:
    return of(temperature__directions__coldest=t, temperature__directions__coldest_se=error)


def test_a_law_at_t_in_every_direction_is_trusted():
    judged = of()
    assert judged.outcome == "trust"
    means = [c for c in judged.notes if c.name in ("Kinetic temperature", "T_eff (mean over directions)")]
    assert [c.level for c in means] == ["ok", "ok"] and all("not judged" in c.words for c in means)


def test_a_thermostat_that_lies_is_caught():
    """The default run on Landsat: kinetic temperature 0.9993, 125 T along the noisiest direction."""
    judged = hottest(125.0, 31.0)
    assert judged.outcome == "another temperature" and judged.level == "look"
    assert "125 ± 31 T in its hottest direction and 1 T in the median one" in judged.line


@pytest.mark.parametrize(
    ("t", "error", "outcome"),
    [
        (1.3, 0.07, "trust"),  # it may be 1.25
        (1.6, 0.07, "another temperature"),
        (2.0, 0.4, "trust"),  # it may be 1.1
        (2.0, 0.7, "not known"),  # nor would 3 be sure
    ],
)
def test_a_direction_is_hot_only_beyond_its_error(t, error, outcome):
    assert hottest(t, error).outcome == outcome


def test_the_noisiest_directions_must_be_known_where_measured():
    """The hottest of many directions may be a sum over all weights, whose error is small."""
    noisiest = {"temperature__direction__noise_1": 1.1, "temperature__direction__noise_1_se": 0.4}
    assert of(**noisiest).outcome == "not known"
    assert of(**noisiest | {"temperature__direction__noise_1_se": 0.2}).outcome == "trust"


@pytest.mark.parametrize(
    ("t", "error", "outcome"),
    [
        (0.75, 0.05, "trust"),
        (0.5, 0.05, "another temperature"),
        (-0.1, 0.3, "another temperature"),
        (-2.2, 2.0, "trust"),  # it may be 1.8
    ],
)
def test_a_direction_is_cold_only_beyond_its_error(t, error, outcome):
    assert coldest(t, error).outcome == outcome


def test_errors_from_few_chains_are_wider():
    assert hottest(1.6, 0.12).outcome == "another temperature" and hottest(1.6, 0.12, chains=4).outcome == "trust"


def test_temperatures_of_directions_count_over_t():
    cold = {k: 0.1 * v for k, v in AT_T.items() if k.startswith("temperature/directions")}
    cold |= {
        "temperature": 0.1,
        "t_eff": 0.1,
        "configurational_temperature": 0.1,
        "configurational_temperature_se": 0.002,
    }
    assert verdict(GOOD | AT_T | cold).outcome == "trust"
    assert verdict(GOOD | AT_T | cold | {"temperature/directions/hottest": 0.2}).outcome == "another temperature"


def test_a_hot_direction_of_energy_that_still_falls_is_a_slope():
    judged = hottest(5.0, 0.5, energy__drift=-0.8, energy__drift_t=-9.0)
    assert judged.outcome == "not at rest"


@pytest.mark.parametrize("t", [5.0, 0.2])
def test_steps_that_were_tested_have_no_error(t):
    """So chains with another temperature are not at rest."""
    name = "temperature__directions__" + ("hottest" if t > 1 else "coldest")
    measured = {name: t, f"{name}_se": 0.02}
    assert of(**measured).outcome == "another temperature"
    judged = of(**measured, acceptance=0.9)
    assert judged.outcome == "not at rest" and "sample longer" in judged.line


def test_rare_steps_of_mclmc_heat():
    """A smaller step alone hardly cools it (scripts/results/tables/adjusted.md)."""
    assert "a smaller one would less" in hottest(5.0, 0.5, noise_ratio=0.0).line
    assert "steps that are tested would not" in hottest(5.0, 0.5, noise_ratio=0.0, energy_error=1.2).line


def test_a_thermostat_without_directions_passes_nothing():
    means = {**GOOD, "chains": 8, "kinetic_temperature": 1.0, "t_eff": 1.0}
    assert verdict(means).outcome == "trust"
    judged = verdict(means | {"temperature/thermostat": 1.0})
    assert judged.outcome == "not known" and "sets the mean over directions" in judged.line
    assert verdict(means | {"temperature/thermostat": 1.0, "kinetic_temperature": 2.0}).outcome == "another temperature"


@pytest.mark.parametrize(
    ("change", "error", "chains", "outcome", "words"),
    [
        (-446.0, 55.0, 8, "not at rest", "takes the energy down by 446 nats: the chain was hotter"),
        (300.0, 55.0, 8, "not at rest", "takes the energy up by 300 nats: the chain was colder"),
        (-60.0, 30.0, 8, "trust", ""),  # noise
        (-20.0, 2.0, 8, "trust", ""),  # less than half of the energy's own spread
        (-100.0, 25.0, 4, "trust", ""),  # four chains know an error badly
    ],
)
def test_the_energy_after_an_exact_continuation(change, error, chains, outcome, words):
    judged = of(energy__continuation=change, energy__continuation_se=error, chains=chains)
    assert judged.outcome == outcome and words in judged.line


def test_a_wide_energy_is_heat_where_no_direction_was_measured():
    unmeasured = {k: None for k in AT_T if "directions" in k} | {"temperature/thermostat": 0.0}
    wide = unmeasured | {"energy/along": 208.0, "energy/gaussian": 46.0}
    judged = verdict(GOOD | AT_T | wide)
    assert judged.outcome == "another temperature" and "4.52 times as far" in judged.line
    assert verdict(GOOD | AT_T | wide | {"energy/along": 90.0}).outcome == "trust"
    assert of(energy__along=208.0).outcome == "not at rest"  # all directions have T


def test_weighted_directions_and_energies_do_not_judge():
    weights = {"weight_ess": 400.0, "weights_biased": 0.0, "temperature/thermostat": 0.0, "ess/min": 1900.0}
    law = {"temperature/directions/hottest": 9.0, "energy/along": 300.0, "energy/continuation": -400.0}
    assert verdict(GOOD | AT_T | weights | law).outcome == "trust"
    assert verdict(GOOD | AT_T | weights | law | {"weighting/acted": 0.0}).outcome == "another temperature"


def test_the_answer_says_where_the_temperature_is_t():
    assert "T in every direction that was measured, and the chains agree" in of().answers[1][1]
    assert "T on average over directions, and the chains agree" in verdict(GOOD).answers[1][1]
