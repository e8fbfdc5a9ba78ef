"""Tests of `bdl.posterior.verdict`, `.judgements`, `.judge_modes`, `.judge_weights`, `.judge_rest` and `.judge_target`.

The verdict: what it says of good runs, and of each fault that a run can have.
"""

import math

import numpy as np
import pytest

from bdl.posterior.diagnostics import mixing, repeat_error
from bdl.posterior.judgements import OUTCOMES
from bdl.posterior.verdict import Verdict, verdict

GOOD = {
    "chains": 4, "samples": 2000, "temperature": 1.0, "t_eff": 1.05, "kinetic_temperature": 1.05,
    "configurational_temperature": 1.0, "configurational_temperature_se": 0.02,
    "rhat/max": 1.01, "ess/min": 900.0, "ess/tail_min": 800.0, "ess/within": 950.0,
    "rhat/energy": 1.0, "ess/energy": 900.0, "energy/drift": 0.02, "energy/drift_t": 0.3,
    "mcse/most": 0.01, "mcse/worst": 0.03, "test/bma/nll": 0.2, "test/constant/nll": 1.6, "test/draw/nll": 0.3,
}  # fmt: skip

UNKNOWN = {"t_eff": None, "kinetic_temperature": None, "configurational_temperature": None}


def of(**changes: float | None) -> Verdict:
    """The verdict on a good run with these changes; `__` stands for `/`."""
    return verdict(GOOD | {k.replace("__", "/"): v for k, v in changes.items()})


def weighted_by(multiplier: float) -> dict[str, float]:
    quantiles = {"": multiplier, "_5": multiplier**0.5, "_95": multiplier**1.5}
    numbers = {f"weighting/multiplier{name}": value for name, value in quantiles.items()}
    return numbers | {"weighting/plain_temperature": 1 / multiplier}


def test_a_weighted_distribution_without_weights_is_named():
    judged = verdict(GOOD | {"weight_ess": None} | weighted_by(3.5))
    assert "samples follow the weighted distribution" in judged.line and "exp(-U/T) at T = 0.29" in judged.line


def measured(draws: np.ndarray) -> dict[str, float]:
    """The metrics of draws (chains, draws, items) of probabilities."""
    found = mixing(draws) | repeat_error(draws.mean(1)[..., None], 1.0, draws[:1])
    return GOOD | found | {"chains": len(draws), "samples": draws[..., 0].size}


def probabilities(chains: int, draws: int, apart: float = 0.0) -> np.ndarray:
    """(chains, draws, 5) independent draws; `apart` standard deviations lie between the modes of two halves of them."""
    x = np.random.default_rng(1).normal(size=(chains, draws, 5))
    x[chains // 2 :] += apart
    return 1 / (1 + np.exp(-x))


def test_a_good_run_is_trusted():
    judged = of()
    assert (judged.outcome, judged.level) == ("trust", "ok") and all(c.level == "ok" for c in judged.checks)
    assert [answer[:4] for _, answer in judged.answers] == ["yes:", "yes:"]
    differ = "predicted probabilities differ between runs by ± 0.01 or less at 9 of 10 items, ± 0.03 at the worst"
    assert judged.line == f"verdict: trust. {differ}"
    assert judged.numbers["verdict/outcome"] == 0 and math.isnan(judged.numbers["verdict/samples_needed"])


def test_draws_of_one_law_are_trusted():
    assert verdict(measured(probabilities(4, 500))).outcome == "trust"


def test_two_modes_half_a_standard_deviation_apart():
    judged = verdict(measured(probabilities(4, 500, apart=0.5)))
    assert judged.outcome == "ensemble over modes" and "predicted probabilities differ between runs by" in judged.line
    assert "all chains count alike; R-hat hardly falls with the steps" in judged.line


def test_modes_that_all_runs_average_pass_first_question_only():
    judged = verdict(measured(probabilities(40, 100, apart=0.5)))
    assert judged.outcome == "ensemble over modes"
    assert "another run predicts the same, but the weights of the modes are not known" in judged.line
    assert (judged.numbers["verdict/repeats"], judged.numbers["verdict/law"]) == (1, 0)
    assert [answer[:3] for _, answer in judged.answers] == ["yes", "no:"]
    assert (judged.level, judged.lights) == ("look", ("ok", "look"))


def test_few_draws_need_more_samples_and_it_says_how_many():
    judged = verdict(measured(probabilities(4, 10)))
    assert judged.outcome == "more samples"
    assert 100 < judged.numbers["verdict/samples_needed"] < 1000  # 200 independent draws at least


def test_few_chains_differ_by_chance_and_are_not_called_modes():
    """Of a converged network, 4 chains of 100 draws had 347 draws alone and 100 together."""
    short = of(ess__min=210.0, ess__within=730.0)
    assert short.outcome == "more samples" and "by chance" in short.line
    assert of(ess__min=210.0, ess__within=730.0, chains=20).outcome == "ensemble over modes"


def test_rhat_of_1_45_is_no_small_matter():
    stuck = {"rhat__max": 1.45, "ess__min": 8.0, "ess__within": 40.0}
    assert of(**stuck, mcse__most=0.05).outcome == "ensemble over modes"
    assert of(**stuck).outcome == "ensemble over modes"
    assert of(rhat__max=1.45).outcome != "trust"


def test_accuracy_at_chance():
    judged = of(test__bma__nll=1.61, test__draw__nll=1.62)
    assert judged.outcome == "not known" and "no better than a constant" in judged.line


def test_few_items_neither_condemn_nor_hide_a_worse_average():
    worse = {"test__bma__nll": 1.9, "test__constant__gain_se": 0.2, "test__constant__claim": 0.15}
    assert of(**worse, test__items=5).outcome == "trust"
    assert of(**worse, test__items=40).outcome == "trust"  # 1.5 standard errors
    judged = of(**worse | {"test__constant__gain_se": 0.02}, test__items=4000)
    assert judged.outcome == "broken" and "worse than a constant" in judged.line
    assert of(**worse | {"test__constant__claim": 0.001}, test__items=40).outcome == "not known"  # it claims nothing


def test_an_average_that_knows_its_training_rows_is_told_of_other_test_rows():
    worse = {"test__bma__nll": 1.9, "test__constant__gain_se": 0.02, "test__constant__claim": 0.15, "test__items": 4000}
    learnt = {"train__bma__nll": 1.0, "train__constant__nll": 1.4, "train__constant__gain_se": 0.05}
    assert "the inputs say nothing" in of(**worse).line and "test rows are unlike" not in of(**worse).line
    assert "test rows are unlike" in of(**worse, **learnt).line
    assert "the inputs say nothing" in of(**worse, **learnt | {"train__bma__nll": 1.35}).line


def test_an_average_meets_the_constant_that_has_seen_test_data():
    assert of(test__bma__nll=1.58, test__constant__least=1.57).outcome == "not known"
    assert of(test__bma__nll=1.55, test__constant__least=1.57).outcome == "trust"


def test_sure_networks_have_not_diverged_where_average_is_right():
    assert of(test__draw__nll=9.0).outcome == "trust"
    assert of(test__draw__nll=9.0, test__bma__nll=1.7).outcome == "broken"
    assert of(test__draw__nll=9.0, test__bma__nll=1.7, test__items=3).outcome == "trust"


def test_wide_draws_of_an_approximation_have_not_diverged_where_average_is_right():
    wide = {"approximation": 1, "train__draw__nll": 9.0, "train__constant__nll": 1.6}
    assert of(**wide).outcome == "no posterior"
    assert of(**wide, test__start__nll=0.1).outcome == "broken"
    assert of(**wide | {"approximation": None}).outcome == "broken"


def test_predictions_that_are_far_wider_than_the_residuals():
    assert of(mcse__unit=0.5).outcome == "trust"
    judged = of(mcse__unit=0.2)
    assert judged.outcome == "not known" and "5 times as wide" in judged.line


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"weight_ess": 1.5}, "more samples"),
        ({"weight_ess": 400.0}, "trust"),
        ({"weight_ess": 400.0, "ess__min": 250.0, "ess__within": 250.0}, "more samples"),  # both together leave 50
        ({"weight_ess": 400.0, "weights_biased": 1.0}, "not known"),
        ({"weight_ess": None}, "not known"),
        ({"weight_ess": None, "weighting/acted": 0.0}, "trust"),
        ({"weight_ess": None, **weighted_by(3.5)}, "no posterior"),
        ({"weight_ess": None, **weighted_by(1.02)}, "trust"),
        ({"weight_ess": 400.0, "weights_biased": 0.0, **weighted_by(3.5)}, "trust"),
    ],
)
def test_importance_weights(changes, outcome):
    assert of(**changes).outcome == outcome


def test_drifts_and_slow_directions_ask_for_more_samples():
    still = {"drift__mean": 0.02, "drift__mean_most": 0.1, "drift__mean_p": 0.4, "drift__spread": 0.02,
             "drift__spread_p": 0.3, "slow__waves": 0.1, "slow__share": 0.1}  # fmt: skip
    assert of(**still).outcome == "trust"
    for changes, words in (
        ({"drift__mean": 0.2, "drift__mean_p": 1e-4}, "still move in one direction"),
        ({"drift__spread": 0.2, "drift__spread_p": 1e-4}, "the spread of the predictions still changes"),
        ({"drift__mean_most": 0.6}, "too few independent draws to exclude"),
        ({"slow__waves": 0.9}, "start them apart"),
    ):
        judged = of(**still | changes)
        assert judged.outcome == "more samples" and words in judged.line
    assert of(**still | {"drift__mean_p": 1e-4}).outcome == "trust"  # certain, and too small to matter
    assert "samples in all" not in of(**still | {"drift__spread": 0.2, "drift__spread_p": 1e-4}).line  # ESS is enough


def test_a_report_does_not_say_both_raise_lr_and_lower_lr():
    stuck = {"rhat__max": 1.45, "ess__min": 8.0, "ess__within": 40.0, "mcse__most": 0.05}
    for heat, advised in ((1.0, True), (1.09, False), (1.5, False), (None, False)):
        words = " ".join(c.words for c in of(**stuck, t_eff=heat, kinetic_temperature=heat, acceptance=0.99).checks)
        assert advised == ("raise lr" in words and "lower lr" not in words) or heat is None
    unmoved = {"rhat__max": None, "ess__min": None, "mcse__most": 0.0, "mcse__worst": 0.0}
    for error, advised in ((None, True), (2.0, False)):
        words = " ".join(c.words for c in of(**unmoved, t_eff=1.0, energy_error=error).checks)
        assert "have not moved" in words and ("raise lr" in words) == advised
    rejected = " ".join(c.words for c in of(**stuck, t_eff=1.0, acceptance=0.05).checks)
    assert "lower lr" in rejected and "raise lr" not in rejected
    heated = " ".join(c.words for c in of(t_eff=2.0, kinetic_temperature=None, acceptance=0.99).checks)
    assert "lower lr" in heated and "raise lr" not in heated


def test_divergence_by_level_on_training_set_where_there_is_one():
    assert "diverged" in of(train__draw__nll=9.0, train__constant__nll=1.6).line
    assert of(test__draw__nll=9.0, train__draw__nll=0.3, train__constant__nll=1.6).outcome == "trust"  # overfitted
    assert of(temperature=10.0, t_eff=10, kinetic_temperature=10, configurational_temperature=10,
              train__draw__nll=9.0, train__constant__nll=1.6).outcome == "trust"  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "outcome", "words"),
    [
        ({"kinetic_temperature": 3.0}, "another temperature", "heat the chain to 3 T"),
        ({"kinetic_temperature": None, "t_eff": 1.5}, "another temperature", "heat the chain to 1.5 T"),
        ({"kinetic_temperature": None, "t_eff": 0.5}, "another temperature", "colder than intended, 0.5 T"),
        ({"t_eff": 1.5}, "trust", ""),  # the momenta show 1.05
        ({"configurational_temperature": 1.5, "kinetic_temperature": None}, "another temperature", "as at 1.5 T"),
        ({"configurational_temperature": 1.5}, "more samples", "which heat does not explain"),
        ({"configurational_temperature": 1.2}, "more samples", "which heat does not explain"),
        ({"configurational_temperature": 1.2, "kinetic_temperature": 1.2}, "trust", ""),
        ({"configurational_temperature": 0.85}, "more samples", "need more steps"),
        ({"configurational_temperature": 0.5}, "more samples", "spread no further than at 0.5 T"),
        ({"configurational_temperature": -1.0}, "more samples", "the parameters still grow"),
        ({"configurational_temperature": 1.5, "configurational_temperature_se": 0.2}, "trust", ""),
        ({"configurational_temperature": 1.5, "configurational_temperature_se": None}, "trust", ""),
        (UNKNOWN, "not known", "mini-batches may heat the chain by an unknown amount"),
        ({"temperature": 0.0}, "no posterior", "optimisation"),
        ({"temperature/change": 1.2}, "trust", ""),
        ({"temperature/change": 25.0}, "no posterior", "T changed by a factor of 25 while samples were kept"),
        ({"elbo": -3.0}, "no posterior", "variational"),
    ],
)  # fmt: skip
def test_temperatures(changes, outcome, words):
    judged = of(**changes)
    assert judged.outcome == outcome and words in judged.line


@pytest.mark.parametrize("chains", [1, 2, 3])
def test_few_chains_may_have_missed_a_mode(chains):
    judged = of(chains=chains, **({"rhat__max": None} if chains == 1 else {}))
    assert judged.outcome == "more samples" and "run at least 4" in judged.line
    assert [answer[:3] for _, answer in judged.answers] == ["yes", "no:"]


def test_energies_that_differ_or_drift():
    falls = of(energy__drift=-0.6, energy__drift_t=-8.0)
    assert falls.outcome == "not at rest" and "the energy still falls: take about 2 times the length" in falls.line
    assert of(energy__drift=-0.6, energy__drift_t=-2.0).outcome == "trust"  # noise
    assert of(rhat__energy=1.2, ess__energy=30.0).outcome == "more samples"


def test_an_error_that_is_too_large_asks_for_more_chains():
    judged = of(mcse__most=0.06)
    assert judged.outcome == "more samples" and "9.0 times as many chains" in judged.line
    assert "about 18,000 samples in all" in judged.line
    assert judged.numbers["verdict/samples_needed"] == 18000


def test_means_of_numbers_are_judged_in_standard_deviations():
    assert of(test__bma__rmse=1.0, mcse__most=0.09).outcome == "trust"
    assert of(test__bma__rmse=1.0, mcse__most=0.2).outcome == "more samples"
    only_training = of(train__bma__rmse=1.0, mcse__most=0.09)
    assert (
        only_training.outcome == "trust"
        and "predicted means differ between runs by ± 0.09 predictive std" in only_training.line
    )


def test_what_was_not_measured_is_not_trusted():
    for name in ("mcse/most", "rhat/max", "ess/min"):
        for missing in (None, math.nan):
            assert verdict(GOOD | {name: missing}).outcome != "trust"
    assert verdict({}).outcome in OUTCOMES[1:]


def test_the_worst_finding_decides():
    assert of(kinetic_temperature=3.0, ess__min=50.0, chains=2).outcome == "another temperature"
    assert of(kinetic_temperature=3.0, test__draw__nll=9.0, test__bma__nll=1.7).outcome == "broken"
    assert of(ess__min=50.0, ess__within=900.0, chains=2).outcome == "ensemble over modes"
    assert of(ess__min=50.0, ess__within=900.0, chains=2, mcse__most=0.05).outcome == "ensemble over modes"


@pytest.mark.parametrize(
    "changes, outcome",
    [
        (dict(ess__min=0.0, ess__within=0.0), "not at rest"),
        (dict(ess__min=0.0, ess__within=900.0), "ensemble over modes"),
        (dict(ess__min=0.0, ess__within=900.0, mcse__most=0.5), "ensemble over modes"),
        (dict(ess__tail_min=0.0), "more samples"),
    ],
)
def test_effective_sample_size_of_0_names_no_number_of_samples(changes, outcome):
    judged = of(**changes)
    assert judged.outcome == outcome and math.isnan(judged.needed) and "samples in all" not in judged.line


def test_predictions_that_are_infinitely_wider_than_residuals():
    judged = of(mcse__unit=0.0)
    assert judged.outcome == "not known" and judged.decisive.name == "Width against residuals"


def test_chains_that_never_moved():
    """All equal, or each at its own place, they are not called a few samples too short, and no modes."""
    judged = verdict(measured(np.full((4, 500, 5), 0.5)))
    assert judged.outcome == "not at rest" and "have not moved" in judged.line and math.isnan(judged.needed)
    assert verdict(measured(np.repeat(probabilities(4, 1), 500, 1))).outcome == "not at rest"


def test_a_count_of_samples_does_not_move_away_with_the_budget():
    """C chains that never meet have an ESS of about C, however long they are: then no number of samples is named."""
    for samples in (500, 2000, 8000):
        apart = of(samples=samples, chains=8, ess__min=9.0, ess__within=20.0, ess__tail_min=9.0, rhat__max=2.0)
        assert apart.outcome == "not at rest" and math.isnan(apart.needed)
        assert "take at least 4 times the length" in apart.line
    few = of(samples=800, chains=8, ess__min=60.0, ess__within=100.0, ess__tail_min=60.0)
    assert few.outcome == "more samples" and few.needed == 2700


@pytest.mark.parametrize(
    ("each", "draws", "outcome"),
    [
        (4.0, 250, "not at rest"),
        (9.0, 250, "not at rest"),
        (4.0, 10, "more samples"),
        (12.0, 250, "ensemble over modes"),
    ],
)
def test_modes_are_named_only_where_each_chain_has_moved_enough(each, draws, outcome):
    """The chains disagree in all four: by slow chains, by slow chains, by few draws, and by modes."""
    slow = dict(chains=8, samples=8 * draws, ess__within=8 * each, ess__min=8.5, ess__tail_min=9.0, rhat__max=1.9)
    assert of(**slow, mcse__most=0.06).outcome == outcome


def test_the_advice_to_take_longer_has_a_time_where_it_is_known():
    short = GOOD | {"ess/min": 20.0, "ess/within": 20.0}
    assert "take about 10 times the length" in verdict(short).line
    assert "take about 10 times the length (15 minutes)" in verdict({**short, "seconds": 90.0}).line
