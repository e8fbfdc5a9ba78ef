"""The verdict on simulated runs of known kinds: the bounds that docs/verdict.md states."""

import re
from collections import Counter

import numpy as np
import pytest
from composing import SCRIPTS
from experiments.verdict import by_scenario, judged, rates
from experiments.verdict.kinds import SCENARIOS
from experiments.verdict.laws import Law, means_of, measured_of
from experiments.verdict.runs import Sampled, Scenario, simulate
from repeats import slow_where

import bdl

PAGE = SCRIPTS.parent / "docs" / "verdict.md"
SEEN = {
    "8 chains of 100 independent draws": "trust",
    "a linear model of 12 weights, 8 chains": "trust",
    "the draws are worth 20": "not at rest",
    "100 weights, noise ratio 1": "another temperature",
    "30 weights, noise ratio 1, no direction measured": "not known",
    "the law, and its start predicts better": "prior does not fit",
    "4 chains of 10 independent draws": "more samples",
    "modes 1/2 std apart, 4 chains": "ensemble over modes",
    "numbers, modes 1/2 std apart, 20 chains": "ensemble over modes",
    "importance weights that cannot be had": "not known",
    "SGHMC at a third of its largest step: 1.5 T": "another temperature",
}


@pytest.mark.parametrize("runs", slow_where(lambda runs: runs > 1, [1, 2]))
def test_a_run_of_each_kind_gets_its_verdict(runs):
    rows = judged([s for s in SCENARIOS if s.name in SEEN], runs)
    for i in range(runs):
        assert {row.scenario.name: row.verdicts[i].outcome for row in rows} == SEEN
    assert by_scenario(rows).count("\n") == len(SEEN) + 2


def test_a_hot_classifier_that_predicts_well_is_a_good_ensemble():
    (row,) = judged([s for s in SCENARIOS if s.name.startswith("a hot classifier")], 2)
    assert [v.head.kind for v in row.verdicts] == ["good ensemble"] * 2


def test_a_convex_problem_after_300_steps_is_not_at_rest():
    """Four chains begin in one place. The control: 100 times the steps are not told so."""
    sampler = Sampled(bdl.SGHMC(0.1), 0.001, burn_in=0)
    short, long = (
        judged([Scenario("short", "convex", draws=draws, sampler=sampler, start=1)], 2)[0] for draws in (30, 3000)
    )
    assert [v.outcome for v in short.verdicts] == ["not at rest"] * 2
    assert "not at rest" not in [v.outcome for v in long.verdicts]


def test_a_thermostat_sets_the_mean_and_gradients_see_directions():
    """Their mean is T. In 40 runs T of the noisiest direction scatters by its error, and is 1 under the right law."""
    law, rng, name = Law(30, "thermostat", 1.0), np.random.default_rng(0), "temperature/direction/noise_1"
    assert means_of(law)["kinetic_temperature"] == pytest.approx(1) and law.temperature.max() > 1.9
    assert law.temperature.min() == pytest.approx(0.53, abs=0.03)
    for each, low, high in ((law, 1.8, law.temperature.max()), (Law(30), 0.95, 1.05)):
        theta = np.sqrt(each.temperature) * rng.normal(size=(40, 8, 100, 30))
        found = [measured_of(each, one, rng) for one in theta]
        ratios, errors = (np.array([f[key] for f in found]) for key in (name, f"{name}_se"))
        assert low < ratios.mean() < high
        assert np.sqrt(np.square(errors).mean()) == pytest.approx(ratios.std(), rel=0.35)
        changes = np.array([f["energy/continuation"] for f in found])
        assert abs(changes.mean()) < 3 * changes.std() / np.sqrt(40)  # a thermostat has the right mean energy


def test_a_run_is_the_same_again():
    (one,), (again,) = simulate(SCENARIOS[0], 1), simulate(SCENARIOS[0], 1)
    assert one.metrics == pytest.approx(again.metrics, nan_ok=True)


def test_the_result_has_every_simulated_run_and_the_page_keeps_its_bounds():
    text, table = PAGE.read_text(), (SCRIPTS / "results" / "verdict.md").read_text()
    assert Counter(s.name for s in SCENARIOS if f" {s.name} |" in table) == Counter(s.name for s in SCENARIOS)
    assert f"All {len(SCENARIOS)} kinds" in text
    (wrong, of_wrong), (right, of_right) = (
        [int(number.replace(",", "")) for number in re.findall(rf"{words} (\d+) of ([\d,]+)\b", text)[0]]
        for words in ("verdict trusts", "it doubts")
    )
    assert wrong <= 0.02 * of_wrong and right <= 0.05 * of_right and of_wrong + of_right >= 200


@pytest.mark.slow
def test_trust_is_rarely_wrong_and_rarely_withheld():
    """648 runs. The page has 5 of 1,320 and 26 of 840."""
    rows = judged([s for s in SCENARIOS if s.right is not None], 6)
    (wrong, of_wrong), (right, of_right) = rates(rows, False), rates(rows, True)
    assert of_wrong + of_right >= 200
    assert wrong <= 0.02 * of_wrong
    assert of_right - right <= 0.05 * of_right
