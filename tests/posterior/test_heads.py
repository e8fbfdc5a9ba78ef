"""What a run is worth: the four heads, and what a report then advises."""

import pytest
from test_verdict import GOOD

from bdl.posterior.judgements import or_nan
from bdl.posterior.report.next_steps import next_steps
from bdl.posterior.report.page import page
from bdl.posterior.report.pictures import ReportData
from bdl.posterior.verdict import Verdict, verdict

PREDICTS = {"test/items": 2000.0, "test/one_sample/nll": 0.3, "test/start/nll": 0.22, "test/bma/nll": 0.2}
HOT = {"kinetic_temperature": 3.0, "t_eff": 3.1}
COMMAND = "bdl train data=cifar10 sampler=sghmc sampler.lr=0.1"
CIFAR = {  # 500 epochs of cyclical SGHMC on CIFAR-10, one chain: 94.2 % right, at 380 times its T
    "chains": 1, "samples": 100, "temperature": 2.63e-05, "temperature/change": 1.0, "kinetic_temperature": 0.01006,
    "kinetic_temperature_se": 0.0011, "t_eff": 0.00997, "noise_ratio": 378.0, "configurational_temperature": 0.0305,
    "configurational_temperature_se": 0.00063, "lr": 0.00079, "ess/min": 1.67, "ess/within": 1.67,
    "ess/tail_min": 12.1, "ess/energy": 3.6, "energy/drift": -1.02, "mcse/most": 0.036, "mcse/worst": 0.125,
    "test/bma/nll": 0.1774, "test/bma/accuracy": 0.9415, "test/one_sample/nll": 0.2079, "test/last_ten/nll": 0.2094,
    "test/constant/nll": 2.3035, "test/constant/least": 2.3026, "test/items": 10000, "test/draw/nll": 0.1275,
    "train/draw/nll": 0.009, "train/constant/nll": 2.3025,
}  # fmt: skip


def of(**changes: float | None) -> Verdict:
    return verdict(GOOD | PREDICTS | {k.replace("__", "/"): v for k, v in changes.items()})


def test_the_target_that_repeats_is_green():
    assert (of().head.kind, of().level, of().head.title) == ("posterior", "ok", "You can trust these samples")
    assert of().numbers["verdict/head"] == 0


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        (HOT, "another temperature"),
        ({"kinetic_temperature": 0.5, "t_eff": 0.5}, "another temperature"),
        ({"temperature": 0.0}, "no posterior"),
        ({"rhat/max": 1.6, "ess/min": 7.0}, "ensemble over modes"),
    ],
)
def test_another_law_that_predicts_well_is_a_good_ensemble(changes, outcome):
    judged = of(**changes)
    assert (judged.outcome, judged.head.kind, judged.level) == (outcome, "good ensemble", "look")
    assert judged.numbers["verdict/head"] == 1 and "good ensemble" in judged.line
    assert "better than those of one network (NLL 0.300 → 0.200), no worse than its start, and than" in judged.line


@pytest.mark.parametrize(
    "worse",
    [
        {"test/one_sample/nll": 0.205}, {"test/start/nll": 0.18}, {"test/constant/nll": 0.205}, {"mcse/most": 0.06},
        {"test/items": 5}, {"test/bma/nll": None},
    ],
)  # fmt: skip
def test_each_condition_of_a_good_ensemble_counts(worse):
    """Heat alone is amber, not red."""
    judged = of(**HOT, **worse)
    assert (judged.outcome, judged.head.kind, judged.level) == ("another temperature", "open", "look")
    assert judged.head.title == "Not the posterior: another temperature"


def test_the_run_on_cifar_is_a_good_ensemble_and_is_not_led_away():
    judged = verdict(CIFAR)
    assert judged.head.title == "A good ensemble, not the posterior at T = 2.63e-05"
    assert "batches heat the samples to T = 0.0101, 383 T on average over directions" in judged.head.sentence
    assert judged.level == "look"
    assert "another run would differ" in judged.head.sentence  # by 0.036, which it does not hide
    alone = verdict(CIFAR | {"mcse/most": 0.012, "mcse/worst": 0.097}).head.sentence
    assert "how far another run would differ is not known: one chain does not know its error yet" in alone
    steps = next_steps(judged, or_nan(CIFAR), COMMAND, 1000)
    assert steps[0] == ("Use these predictions, and see that another run repeats them", f"{COMMAND} seed=1")
    assert all(words.startswith("Only to sample the posterior itself: ") for words, _ in steps[1:])
    assert not any("sampler.lr=0.0002" in line for _, line in steps)
    text = page(ReportData("cifar", metrics=CIFAR, command=COMMAND, kept_steps=[1000]))
    assert "<h2>A good ensemble, not the posterior" in text and "Do not use" not in text


def test_a_posterior_that_is_worse_than_its_start_is_amber():
    """The digits of scikit-learn: NLL 0.176, start 0.114."""
    judged = of(test__start__nll=0.114, test__bma__nll=0.176)
    assert (judged.outcome, judged.head.kind, judged.level) == ("prior does not fit", "prior does not fit", "look")
    assert "take a lower T" in judged.line and judged.numbers["verdict/law"] == 1
    lines = [line for _, line in next_steps(judged, or_nan({}), COMMAND, 100)]
    assert lines == [f"{COMMAND} tune=auto tune.temperature=true", f"{COMMAND} sampler.prior.precision=learned"]


def test_worse_than_the_start_means_beyond_error_item_by_item():
    assert of(test__start__nll=0.185).outcome == "prior does not fit"
    assert of(test__start__nll=0.185, test__start__gain_se=0.01).outcome == "trust"
    assert of(test__start__nll=0.195, test__start__gain_se=0.001).outcome == "trust"  # 0.005 nats do no harm


def test_a_better_start_is_no_verdict_on_prior_of_another_law():
    judged = of(**HOT, test__start__nll=0.114)
    assert judged.outcome == "another temperature"
    assert next(c for c in judged.notes if c.name == "Average against its start").level == "look"


@pytest.mark.parametrize(
    ("gp", "error", "outcome"), [(0.1, 0.02, "prior does not fit"), (0.1, 0.06, "trust"), (0.195, 0.001, "trust")]
)
def test_a_better_simple_model_is_named(gp, error, outcome):
    """Better by two standard errors, and by more than a hundredth of a nat."""
    judged = of(test__simple__linear__nll=0.4, test__simple__gp__nll=gp, test__simple__gp__gain_se=error)
    assert judged.outcome == outcome
    if outcome != "trust":
        assert judged.head.title == "Worse than a Gaussian process: the prior does not fit"
        assert "a Gaussian process would be better here: NLL 0.100 on the test rows" in judged.line


def test_the_title_names_what_is_better():
    assert of(test__start__nll=0.1).head.title == "Worse than its start: the prior does not fit"


def test_another_temperature_is_said_beside_trust():
    at = {name: 0.1 for name in ("temperature",)}
    words = of(**at, t_eff=0.1, kinetic_temperature=0.1, configurational_temperature=0.1).head.sentence
    judged = of(**at, t_eff=0.1, kinetic_temperature=0.1, configurational_temperature=0.1)
    assert judged.answers[1][1].endswith("and the chains agree; at T = 0.1 each item counts 10 times")
    assert words.endswith("; at T = 0.1 each item counts 10 times") and "each item" not in of().head.sentence


def test_red_is_for_divergence_and_for_worse_than_a_constant():
    diverged = of(train__draw__nll=9.0, train__constant__nll=1.6)
    worse = of(test__bma__nll=1.9, test__constant__gain_se=0.02)
    for judged in (diverged, worse):
        assert (judged.head.kind, judged.level, judged.numbers["verdict/head"]) == ("broken", "bad", 4)


def test_a_heated_run_without_test_data_is_amber():
    assert verdict(GOOD | HOT | {"test/bma/nll": None}).level == "look"
