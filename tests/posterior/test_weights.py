"""Weights of samples against their formulas, and refusals of importance weights that are not valid."""

import math

import numpy as np
import pytest
import torch
import toys
from by_hand import X, probabilities, record, settled, settled_run

import bdl
from bdl.errors import ConfigError
from bdl.posterior.store import SampleStore
from bdl.posterior.weights import sample_weights
from bdl.schedules import Constant, EveryStep


def test_uniform_weights_are_equal(posterior):
    weights = posterior.weights()
    assert set(weights.by_key.values()) == {1 / 8} and weights.ess == pytest.approx(16)


def test_step_size_weights_are_proportional_to_lr(run, posterior):
    lr = torch.tensor([r.lr for r in posterior.records], dtype=torch.float64)
    assert len(lr.unique()) == 8
    w = lr / lr.sum()
    weights = posterior.weights("step_size")
    assert [weights.by_key[1, r.step] for r in posterior.records] == pytest.approx(w.tolist())
    assert weights.ess == pytest.approx(2 / w.square().sum().item())
    expected = (w.float().view(-1, 1, 1) * probabilities(run).mean(1)).sum(0)
    torch.testing.assert_close(posterior.predict(X, "step_size").probs, expected)


def test_an_unknown_kind_of_weight_is_refused(posterior):
    with pytest.raises(ConfigError, match="unknown weights 'best'"):
        posterior.predict(X, "best")


def test_importance_weights_are_psi_to_the_zeta(weighted):
    posterior = bdl.Posterior.load(weighted, toys.plain())
    records, (saved, _) = posterior.records, SampleStore(weighted).weighting(0)
    centres = (saved["edges"][:, 1:] + saved["edges"][:, :-1]) / 2
    weights = posterior.weights("importance")
    for c in range(2):
        u = np.array([r.energy_batch[c] for r in records[:-1]])
        expected = np.exp(2.0 * np.interp(u, centres[c], saved["log_psi"][c]))
        assert expected.std() > 0.01
        normalised = [weights.by_key[c, r.step] for r in records[:-1]]
        assert normalised == pytest.approx(expected / expected.sum(), rel=1e-6)
    w = np.array(list(weights.by_key.values()))
    assert weights.ess == pytest.approx(w.sum() ** 2 / (w**2).sum())
    assert (0, records[-1].step) not in weights.by_key  # it has no batch energy


def test_importance_weights_are_biased_if_batch_noise_is_large(weighted):
    posterior = bdl.Posterior.load(weighted, toys.plain())
    full = np.array([r.energy_full for r in posterior.records])
    batch = np.array([r.energy_batch for r in posterior.records[:-1]])
    spread = math.sqrt(full.var(0, ddof=1).mean())
    error = (batch - full[:-1]).std(ddof=1)
    weights = posterior.weights("importance")
    assert weights.biased == (error > spread)
    assert ("biased" in weights.note) == weights.biased
    assert f"{spread:.3g} nats" in weights.note and f"{error:.3g} nats" in weights.note


def test_importance_is_refused_without_a_weighting(posterior):
    with pytest.raises(ConfigError, match="need a weighting"):
        posterior.predict(X, "importance")


def refused(folder, **arguments) -> pytest.RaisesExc:
    """Expect a refusal of importance weights of the run that this samples."""
    toys.sample(folder, 120, EveryStep(60, 10), **arguments)
    return pytest.raises(ConfigError, match="no importance weights")


def test_importance_is_refused_when_psi_never_settled(tmp_path):
    with refused(tmp_path, weighting=settled(rate=Constant(1e-4))) as error:
        bdl.Posterior.load(tmp_path, toys.plain()).weights("importance")
    assert "never settled" in str(error.value)


def test_no_distance_is_told_where_psi_is_above_1_at_all_samples():
    keyed = [(0, record(k, [500.0 * k]), 0) for k in range(1, 200)]
    with pytest.raises(ConfigError, match=r"lies far away from exp\(-U/T\), so that the weights rest on 1.0 effective"):
        sample_weights(keyed, 1, "importance")


@pytest.mark.parametrize(("effective", "count"), [(26, 12800), (90, 2000), (1, 16)])
def test_importance_is_refused_below_an_ess_that_means_something(effective: int, count: int):
    """`effective` samples share nearly all weight. The distance to exp(-U/T) comes first, then the noise of batches."""
    logs = [0.0] * effective + [-300.0] * (count - effective)
    noisy = [dict(energy_full=[float(k % 3)], energy_batch=[20.0 * (k % 2)]) for k in range(count)]
    keyed = [(0, record(k, [log], **noisy[k]), 0) for k, log in enumerate(logs)]
    with pytest.raises(ConfigError) as error:
        sample_weights(keyed, 1, "importance")
    assert "lies about 300 nats of log weight away from exp(-U/T)" in str(error.value)
    assert f"{effective:,}.0 effective of {count:,} samples" in str(error.value)
    assert str(error.value).index("nats of log weight") < str(error.value).index(
        "besides, importance weights are biased"
    )


@pytest.mark.parametrize(("effective", "count"), [(120, 12800), (14, 16)])
def test_importance_is_given_where_enough_samples_share_weight(effective: int, count: int):
    logs = [0.0] * effective + [-300.0] * (count - effective)
    keyed = [(0, record(k, [log]), 0) for k, log in enumerate(logs)]
    assert sample_weights(keyed, 1, "importance", full_data=True).ess == pytest.approx(effective)


def test_chains_may_have_each_its_own_zeta():
    """Chains are normalised each by itself; within a chain zeta must not change."""
    keyed = [(c, record(k, [0.0], zeta=2.0 + c), 0) for c in range(2) for k in range(4)]
    assert sample_weights(keyed, 2, "importance", full_data=True).ess == pytest.approx(8)
    with pytest.raises(ConfigError, match="zeta changed"):
        sample_weights([*keyed, (0, record(9, [0.0], zeta=3.0), 0)], 2, "importance", full_data=True)


@pytest.mark.parametrize("name", ["temperature", "zeta"])
def test_importance_is_refused_when_a_setting_changed(tmp_path, name):
    change = bdl.Schedule(**{name: lambda step: 1.0 if step < 90 else 0.5})
    with refused(tmp_path, weighting=settled(), callbacks=[change]) as error:
        bdl.Posterior.load(tmp_path, toys.plain()).weights("importance")
    assert f"{name} changed" in str(error.value)


def test_a_weight_uses_the_full_energy_of_its_own_sample(tmp_path):
    """With refresh=7 the last full energy of the sampler is up to 6 steps old; the weight must not use it."""
    weighting = settled(energy="full", refresh=7)
    toys.sample(tmp_path, 80, EveryStep(50, 3), weighting=weighting, lr=0.3)
    store = SampleStore(tmp_path)
    saved, _ = store.weighting(0)
    centres = ((saved["edges"][:, 1:] + saved["edges"][:, :-1]) / 2).numpy()
    frozen = [r for r in store.records() if r.psi_frozen]
    assert len(frozen) > 3
    for r in frozen:
        expected = [2.0 * np.interp(u, centres[c], saved["log_psi"][c].numpy()) for c, u in enumerate(r.energy_full)]
        assert r.log_weight == pytest.approx(expected, abs=1e-9)
    assert bdl.Posterior.load(tmp_path, toys.plain()).weights("importance").biased is False


def test_without_full_energies_the_bias_of_weights_is_unknown(tmp_path):
    run = settled_run(tmp_path, 80, EveryStep(50, 3), collect={"full_energy": False})
    weights = bdl.Posterior.load(run, toys.plain()).weights("importance")
    assert weights.biased is None and "full_energy=true" in weights.note


@pytest.fixture(scope="module")
def cooled(tmp_path_factory):
    """A run at T = 1 whose weights lead to T0 = 0.95."""
    return settled_run(tmp_path_factory.mktemp("cooled"), 120, EveryStep(60, 10), target=0.95)


def test_weights_to_a_target_hold_what_its_temperature_asks(cooled):
    """zeta log psi(U) - U (1/T0 - 1/T), in one normalisation, as the chains share psi; noise of U costs samples."""
    posterior = bdl.Posterior.load(cooled, toys.plain())
    saved, records = SampleStore(cooled).weighting(0)[0], posterior.records[:-1]
    assert saved["target"].unique().tolist() == [0.95] and len(saved["edges"]) == 1
    centres, tilt = (saved["edges"][0, 1:] + saved["edges"][0, :-1]) / 2, 1 / 0.95 - 1
    u = np.array([r.energy_batch for r in records])
    logs = 2.0 * np.interp(u, centres, saved["log_psi"][0]) - u * tilt
    expected = np.exp(logs - logs.max())
    weights = posterior.weights("importance")
    of_samples = np.array([[weights.by_key[c, r.step] for c in range(2)] for r in records])
    assert of_samples == pytest.approx(2 * expected / expected.sum(), rel=1e-6)
    error = (u - np.array([r.energy_full for r in records])).std(ddof=1)
    kish = of_samples.sum() ** 2 / (of_samples**2).sum()
    assert weights.ess == pytest.approx(kish * math.exp(-((error * tilt) ** 2)))


def test_predictions_are_those_of_the_target(cooled):
    posterior = bdl.Posterior.load(cooled, toys.plain())
    assert posterior.kind == "importance" and posterior.target_temperature == 0.95
    torch.testing.assert_close(posterior.predict(X).probs, posterior.predict(X, "importance").probs)
    assert not torch.equal(posterior.predict(X).probs, posterior.predict(X, "uniform").probs)
    assert "T = 0.95" in str(posterior)
