"""Tests of `bdl.posterior.judge_rest` on short first runs: one advice, which is to take a longer run."""

import pytest
from test_verdict import GOOD

from bdl.posterior.judgements import or_nan
from bdl.posterior.report.next_steps import next_steps
from bdl.posterior.verdict import verdict

# As 200 steps of `bdl.sample` from fresh starts leave them
FEW = {
    "chains": 2, "samples": 200, "rhat/max": 3.0, "ess/min": 2.4, "ess/within": 2.8, "ess/tail_min": 2.0,
    "mcse/most": 0.5, "mcse/worst": 0.5,
}  # fmt: skip
# Enough own draws, R-hat that does not fall, and an energy that has not arrived
DRIFTS = {"energy/drift": 1.5, "energy/drift_t": 9.0}
APART = {"rhat/max": 1.6, "rhat/trend": 0.1, "ess/min": 12.0, "ess/within": 60.0, "mcse/most": 0.2, "mcse/worst": 0.3}
FAR = {"train/draw/nll": 40.0, "train/constant/nll": 0.7}
OTHER_ADVICE = ("as many chains", "times as many", "over modes", "raise lr", "start them apart", "samples as far apart")

CASES = {
    "few draws": FEW,
    "few draws, falling R-hat": FEW | {"rhat/trend": 1.0},
    "few draws, most steps accepted": FEW | {"acceptance": 0.99},
    "one chain": FEW | {"chains": 1, "samples": 100, "rhat/max": None, "ess/within": 1.4, "mcse/most": 0.01},
    "momenta that still fall down a slope": FEW | {"kinetic_temperature": 1.9},
    "far from the data": FEW | FAR,
    "energy rises, most steps accepted": DRIFTS | {"acceptance": 0.99},
    "energy falls, chains apart": APART | DRIFTS | {"energy/drift": -1.5},
    "energy rises, all predict the same": DRIFTS | {"rhat/max": None, "mcse/worst": 0.0, "mcse/most": 0.0},
}


@pytest.mark.parametrize("name", CASES)
def test_a_short_run_has_one_advice(name):
    judged = verdict(GOOD | CASES[name])
    said = [check.words for check in judged.checks] + [judged.line]
    assert judged.outcome in ("not at rest", "broken") and "times the length" in judged.line
    assert not [(other, words) for words in said for other in OTHER_ADVICE if other in words]
    steps = next_steps(judged, or_nan(GOOD | CASES[name]), "bdl train length=100", 100)
    assert [line.partition("=")[0] for _, line in steps] == ["bdl train length"]


def test_the_error_of_a_short_run_is_told_without_a_number_of_chains():
    (_, first), _ = verdict(GOOD | FEW).answers
    assert first.endswith("; the run is too short to say how many samples would do: take at least 8 times the length")
    (_, first), _ = verdict(GOOD | CASES["one chain"]).answers
    assert first.startswith("not known: one chain does not know its error yet: take at least")


def test_a_long_run_has_the_advice_of_before():
    """The control: the same faults of chains that are at rest."""
    stays = verdict(GOOD | APART)
    assert stays.outcome == "ensemble over modes" and "times as many chains" in stays.answers[0][1]
    hot = verdict(GOOD | {"kinetic_temperature": 1.9})
    assert hot.outcome == "another temperature"
    assert "diverged" in verdict(GOOD | FAR).line and "diverged: " in verdict(GOOD | FEW | FAR | DRIFTS).line
    assert any("raise lr" in check.words for check in verdict(GOOD | {"acceptance": 0.99, "t_eff": 1.0}).checks)
