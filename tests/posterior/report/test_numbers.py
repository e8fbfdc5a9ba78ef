"""The numbers of a report, each against its definition."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from by_hand import X, Y, settled

import bdl
from bdl.data import TensorSlices
from bdl.posterior.diagnostics import ess, rhat
from bdl.posterior.ood import ood
from bdl.posterior.report.numbers import summarise
from bdl.posterior.traces import side_by_side
from bdl.posterior.verdict import verdict
from bdl.schedules import Constant, EveryStep

MEASURED = ("noise_ratio", "t_eff", "kinetic_temperature", "configurational_temperature")
LOADERS = {"test": TensorSlices(X, Y)}


@pytest.fixture
def summary(posterior):
    return summarise(posterior, LOADERS)


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """40 samples of each chain: with few draws the ESS of every item is the same upper bound."""
    folder = tmp_path_factory.mktemp("long")
    toys.sample(folder, 40, EveryStep(0, 1))
    return summarise(bdl.Posterior.load(folder, toys.plain()), LOADERS)


def late(folder):
    """A posterior whose first sample was kept at step 8."""
    toys.sample(folder, 16, EveryStep(6, 2))
    posterior = bdl.Posterior.load(folder, toys.plain())
    assert posterior.records[0].step == 8
    return posterior


def trace(**columns: torch.Tensor) -> dict[str, torch.Tensor]:
    """A trace of 16 steps and two chains, all of whose unnamed columns are constant."""
    n, ones = torch.arange(1, 17, dtype=torch.float64), torch.ones(16, dtype=torch.float64)
    constant = dict.fromkeys(("energy", "multiplier", *MEASURED), ones[:, None])
    return {"step": n, "lr": 0.1 * ones, "temperature": ones, "zeta": 0 * ones, **constant, **columns}


def test_rhat_and_ess_are_those_of_the_worst_item(long):
    log_probs = long.evaluations["test"].log_probs
    each, sizes = rhat(log_probs), ess(log_probs)
    assert each.max() - each.mean() > 0.1 and sizes.max() - sizes.min() > 1  # the worst is not the usual
    assert long.metrics["rhat/max"] == each.max() and long.metrics["ess/min"] == sizes.min()


def test_items_without_a_value_are_ignored(posterior, monkeypatch):
    monkeypatch.setattr("bdl.posterior.diagnostics.rhat", lambda draws: np.array([1.2, np.nan, 1.7]))
    monkeypatch.setattr("bdl.posterior.diagnostics.ess", lambda draws: np.array([12.0, np.nan, 7.0]))
    metrics = summarise(posterior, LOADERS).metrics
    assert (metrics["rhat/max"], metrics["ess/min"]) == (1.7, 7.0)


def test_too_few_samples_have_neither(tmp_path):
    toys.sample(tmp_path, 6, EveryStep(0, 2))
    metrics = summarise(bdl.Posterior.load(tmp_path, toys.plain()), LOADERS).metrics
    assert math.isnan(metrics["rhat/max"]) and math.isnan(metrics["ess/min"])


@pytest.mark.parametrize("name", [*MEASURED, "elbo"])
def test_chain_metrics_are_means_over_the_kept_part_of_the_run(tmp_path, name):
    values = torch.where(torch.arange(1, 17) < 8, 1000.0, torch.arange(1, 17)).double()[:, None] * torch.tensor([1, 3])
    metrics = summarise(late(tmp_path), LOADERS, trace(**{name: values})).metrics
    assert metrics[name] == pytest.approx(2 * np.arange(8, 17).mean())


@pytest.mark.parametrize("name", MEASURED)
def test_chain_metrics_weigh_by_lr_and_ignore_unknown_values(tmp_path, name):
    steps = torch.arange(1, 17).double()
    values, temperature = steps[:, None].clone(), torch.ones(16).double()
    values[10] = math.nan  # step 11
    temperature[12] = 0.0  # step 13
    columns = trace(**{name: values}, lr=1 / steps, temperature=temperature)
    used = [k for k in range(8, 17) if k not in (11, 13)]
    expected = len(used) / sum(1 / k for k in used)
    assert summarise(late(tmp_path), LOADERS, columns).metrics[name] == pytest.approx(expected)


def test_measured_temperature_is_compared_with_t_of_its_own_step(tmp_path):
    """Under a falling T its mean would lie far above the last T, however well the chain follows."""
    falling = 0.5 ** torch.arange(16).double()
    heated = {"noise_ratio": 0.25 + 0 * falling[:, None], "configurational_temperature": 0.75 * falling[:, None]}
    heated |= dict.fromkeys(("t_eff", "kinetic_temperature"), 1.25 * falling[:, None])
    metrics = summarise(late(tmp_path), LOADERS, trace(temperature=falling, **heated)).metrics
    t = metrics["temperature"]
    assert [metrics[name] for name in MEASURED] == pytest.approx([0.25, 1.25 * t, 1.25 * t, 0.75 * t])


def test_the_change_of_t_is_that_among_the_samples(posterior, monkeypatch):
    assert summarise(posterior, LOADERS).metrics["temperature/change"] == 1
    first, *rest = posterior.records
    records = [replace(first, temperature=3 * first.temperature), *rest]
    monkeypatch.setattr(type(posterior), "records", property(lambda _: records))
    assert summarise(posterior, LOADERS).metrics["temperature/change"] == pytest.approx(3)


def test_acceptance_is_the_last_running_mean(posterior):
    acceptance = torch.linspace(0, 0.75, 16)[:, None] * torch.tensor([1.0, 0.5])
    assert summarise(posterior, LOADERS, trace(acceptance=acceptance)).metrics["acceptance"] == pytest.approx(0.5625)


def test_metrics_that_a_sampler_does_not_have_are_absent(posterior):
    unknown = torch.full((16, 2), math.nan)
    metrics = summarise(posterior, LOADERS, trace(acceptance=unknown, elbo=unknown)).metrics
    assert not {"acceptance", "elbo"} & metrics.keys()


@pytest.mark.parametrize("name", ["kinetic_temperature", "configurational_temperature"])
def test_measured_temperatures_have_standard_errors(tmp_path, name):
    toys.sample(tmp_path, 2, EveryStep(0, 1))
    posterior = bdl.Posterior.load(tmp_path, toys.plain())
    values = torch.randn(400, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ones = torch.ones(400, dtype=torch.float64)
    columns = trace(**{name: values}) | {"step": ones.cumsum(0), "lr": ones, "temperature": ones}
    columns |= {other: ones[:, None] for other in MEASURED if other != name}
    error = summarise(posterior, LOADERS, columns).metrics[f"{name}_se"]
    assert error == pytest.approx(1 / 800**0.5, rel=0.65)  # 19 degrees of freedom: 4 x .16


def test_single_networks_and_a_constant_are_scored(summary):
    y, log_probs = np.asarray(Y), summary.evaluations["test"].log_probs
    counts = np.bincount(y)
    without_its_own, with_one_more = counts / (len(y) - 1 + len(counts)), (counts + 1) / (len(y) + len(counts))
    assert summary.metrics["test/constant/nll"] == pytest.approx(-np.log(without_its_own[y]).mean(), rel=1e-5)
    assert summary.metrics["test/constant/least"] == pytest.approx(-np.log(with_one_more[y]).mean(), rel=1e-5)
    assert summary.metrics["test/items"] == len(y)
    assert summary.metrics["test/draw/nll"] == pytest.approx(-log_probs.mean())


def test_a_run_that_diverged_gets_no_trust(tmp_path):
    """At lr = 20 the chains of this network agree with each other, far from the posterior."""
    toys.sample(tmp_path, 200, EveryStep(100, 1), lr=20.0)
    loaders = {**LOADERS, "train": TensorSlices(X, Y)}
    metrics = summarise(bdl.Posterior.load(tmp_path, toys.plain()), loaders).metrics
    assert metrics["test/draw/nll"] > metrics["test/constant/nll"] + 10
    judged = verdict(metrics)
    assert judged.outcome == "broken" and "diverged" in judged.line


def test_without_a_trace_chain_metrics_are_unknown(summary, posterior):
    assert all(math.isnan(summary.metrics[name]) for name in MEASURED)
    assert summary.metrics["temperature"] == 1.0 and summary.metrics["lr"] == posterior.records[-1].lr


def test_every_split_is_scored_and_the_first_gives_convergence(posterior):
    x, y = toys.tensors(seed=5)
    both = summarise(posterior, {**LOADERS, "train": TensorSlices(x, y)})
    for split, loader in (("test", TensorSlices(X, Y)), ("train", TensorSlices(x, y))):
        for name, value in posterior.evaluate(loader).metrics().items():
            assert both.metrics[f"{split}/{name}"] == pytest.approx(value)
    assert both.metrics["rhat/max"] == summarise(posterior, LOADERS).metrics["rhat/max"]
    assert (both.metrics["samples"], both.metrics["chains"]) == (16, 2)


def test_out_of_distribution_items_are_compared_with_first_split(posterior):
    outside = TensorSlices(5 * X, Y)
    metrics = summarise(posterior, LOADERS, ood=outside).metrics
    for name, value in ood(posterior, X, 5 * X).items():
        assert metrics[f"ood/{name.replace('entropy', 'bma')}"] == pytest.approx(value, abs=2e-3)  # a few pairs swap
    assert 0 <= metrics["ood/one_sample/auroc"] <= 1
    assert not any(name.startswith("ood/bma/nll") for name in metrics)


def test_convergence_names_the_items_with_the_largest_rhat(summary):
    log_p = summary.evaluations["test"].log_probs
    rows = {row.name: row for row in summary.convergence}
    ranked = np.sort(rhat(log_p))[::-1]
    for rank, expected in zip(("worst", "second worst", "third worst"), ranked, strict=False):
        assert rows[f"log-probability of a test item, {rank} mixed"].rhat == pytest.approx(expected)
    assert rows["mean test log-probability"].mean == pytest.approx(log_p.mean())
    assert {"energy, all data (nats)", "energy, batch estimate (nats)"} <= rows.keys()


def test_refused_importance_weights_are_a_warning(tmp_path):
    toys.sample(tmp_path, 40, EveryStep(20, 5), weighting=settled(rate=Constant(1e-4)))
    summary = summarise(bdl.Posterior.load(tmp_path, toys.plain()), LOADERS)
    assert math.isnan(summary.metrics["weight_ess"])
    assert len(summary.warnings) == 1 and "psi never settled" in summary.warnings[0]


def test_a_weighting_whose_pilot_did_not_end_never_acted(tmp_path):
    toys.sample(tmp_path, 40, EveryStep(20, 5), weighting=bdl.AdaptiveWeight(zeta=2.0, pilot=100))
    summary = summarise(bdl.Posterior.load(tmp_path, toys.plain()), LOADERS)
    assert summary.metrics["weighting/acted"] == 0 and "weighting/multiplier" not in summary.metrics
    assert len(summary.warnings) == 1 and "the weighting never acted" in summary.warnings[0]


def test_importance_weights_have_their_ess_and_their_bias(weighted):
    posterior = bdl.Posterior.load(weighted, toys.plain())
    weights, summary = posterior.weights("importance"), summarise(posterior, LOADERS)
    assert summary.metrics["weight_ess"] == weights.ess and summary.metrics["weights_biased"] == weights.biased
    assert summary.warnings == ([weights.note] if weights.biased else [])


def test_traces_of_stacks_are_joined_by_chain():
    a, b = (trace(energy=torch.full((16, 2), value)) for value in (1.0, 2.0))
    joined = side_by_side([a, b])
    assert joined["energy"][0].tolist() == [1, 1, 2, 2] and torch.equal(joined["step"], a["step"])
