"""Tests of `bdl.posterior.report.terminal`: the table on the terminal."""

import math

import pytest

from bdl.posterior.report.terminal import print_summary
from bdl.posterior.target_values import Units

SCORES = {"accuracy": 0.9, "nll": 0.25, "ece": 0.02, "brier": 0.13}
CHAIN = {
    "samples": 60, "chains": 3, "temperature": 1.0, "t_eff": 1.25, "noise_ratio": 0.25,
    "kinetic_temperature": math.nan, "rhat/max": 1.02, "ess/min": 140.0,
}  # fmt: skip


def test_scores_and_facts_are_printed(capsys):
    rows = {
        f"{split}/{row}/{k}": v
        for split in ("test", "train")
        for row in ("one_sample", "bma")
        for k, v in SCORES.items()
    }
    print_summary(rows | CHAIN)
    table, facts, again, law, last = capsys.readouterr().out.rsplit("\n", 5)[:5]
    assert "one sample" in table and "all chains' average" in table and "one chain's" not in table
    assert table.count("10.00") == 4 and table.count("0.2500") == 2
    assert facts == (
        "60 samples of 3 chains; T 1, T_eff 1.25, the mean over directions (noise_ratio 0.25); "
        "kinetic temperature unknown; R-hat max 1.02, ESS min 140"
    )
    assert again.startswith("Would another run of this budget predict the same? not known: ")
    assert law.startswith("Is this the target distribution that was asked for? no: 3 chains may miss the same modes")
    assert last.startswith("verdict: not known. Monte Carlo error: ")


def test_t_eff_is_a_mean_and_hottest_direction_stands_beside_it(capsys):
    hot = {"temperature/directions/hottest": 125.0, "temperature/directions/hottest_se": 31.0}
    print_summary(CHAIN | {"kinetic_temperature": 1.0} | hot)
    out = capsys.readouterr().out
    assert (
        "T_eff 1.25, the mean over directions (noise_ratio 0.25); T sampled 125 ± 31 T in its hottest direction" in out
    )


def test_optional_facts_are_printed_if_present(capsys):
    extra = {"acceptance": 0.7, "elbo": -12.5, "swap_rate/0": 0.3, "swap_rate/1": 0.2, "weight_ess": 31.0}
    print_summary(CHAIN | extra)
    out = capsys.readouterr().out
    assert out.splitlines()[-4].endswith("acceptance 0.7; ELBO -12.5; weight ESS 31; swap rates 0.3, 0.2")


@pytest.mark.parametrize(
    ("units", "words"),
    [
        ((), "RMSE 0.5 in units of y; "),
        ((Units("price", 7.0, 3000.0),), "RMSE 1,500 in units of price (1 in the table is 3000); "),
        ((Units("a", 0.0, 2.0), Units("b", 1.0, 3.0)), "RMSE 1.2 in units of a, 0.9 in units of b; "),
    ],
)
def test_an_rmse_says_its_units(units, words, capsys):
    """metrics.json has the RMSE of several targets in their own units, and of one in those that the network sees."""
    scores = {"rmse": 0.5, "nll": 1.0, "a/rmse": 1.2, "b/rmse": 0.9}
    print_summary(CHAIN | {f"test/bma/{name}": value for name, value in scores.items()}, units=units)
    assert f"\n{words}60 samples" in capsys.readouterr().out
