"""The verdict on simulated runs of known kinds: the bounds that docs/verdict.md states."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from composing import SCRIPTS
from repeats import slow_where
from verdict_runs import simulate
from verdict_table import SCENARIOS, by_scenario, judged, rates

PAGE = SCRIPTS.parent / "docs" / "verdict.md"
SEEN = {
    "8 chains of 100 independent draws": "trust",
    "4 chains of 10 independent draws": "more samples",
    "modes 1/2 std apart, 4 chains": "not mixing",
    "numbers, modes 1/2 std apart, 20 chains": "ensemble over modes",
    "importance weights that cannot be had": "not known",
    "SGHMC at a third of its largest step: 1.5 T": "another temperature",
}


@pytest.mark.parametrize("runs", slow_where(lambda runs: runs > 1, [1, 2]))
def test_a_run_of_each_kind_gets_its_verdict(runs):
    rows = judged([s for s in SCENARIOS if s.name in SEEN], runs)
    for i in range(runs):
        assert {row.scenario.name: row.verdicts[i].outcome for row in rows} == SEEN
    assert by_scenario(rows).count("\n") == len(SEEN) + 1


def test_a_run_is_the_same_again():
    (one,), (again,) = simulate(SCENARIOS[0], 1), simulate(SCENARIOS[0], 1)
    assert one.metrics == pytest.approx(again.metrics, nan_ok=True)


def test_the_page_shows_every_simulated_run_and_keeps_its_bounds():
    text = PAGE.read_text()
    assert Counter(s.name for s in SCENARIOS if f" {s.name} |" in text) == Counter(s.name for s in SCENARIOS)
    (wrong, of_wrong), (right, of_right) = (
        [int(number.replace(",", "")) for number in re.findall(rf"{words} (\d+) of ([\d,]+)\b", text)[0]]
        for words in ("verdict trusts", "it doubts")
    )
    assert wrong <= 0.02 * of_wrong and right <= 0.05 * of_right and of_wrong + of_right >= 200


@pytest.mark.slow
def test_trust_is_rarely_wrong_and_rarely_withheld():
    """462 runs. The page has 5 of 1,000 and 15 of 540."""
    rows = judged([s for s in SCENARIOS if s.right is not None], 6)
    (wrong, of_wrong), (right, of_right) = rates(rows, False), rates(rows, True)
    assert of_wrong + of_right >= 200
    assert wrong <= 0.02 * of_wrong
    assert of_right - right <= 0.05 * of_right
