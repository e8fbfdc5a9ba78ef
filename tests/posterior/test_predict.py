"""Posterior against averages made by hand."""

from __future__ import annotations

import math
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import toys
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.data import TensorSlices
from bdl.errors import ConfigError, StoreError
from bdl.posterior.predict import Batches
from bdl.posterior.store import SampleStore
from bdl.schedules import Constant, Cosine, EveryStep

X, Y = toys.tensors(seed=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """8 samples of two chains whose lr falls."""
    folder = tmp_path_factory.mktemp("run")
    toys.sample(folder, 16, callbacks=[bdl.Schedule(lr=Cosine(0.3, 20))])
    return folder


@pytest.fixture
def posterior(run) -> bdl.Posterior:
    return bdl.Posterior.load(run, toys.plain())


def probabilities(folder, net=None) -> torch.Tensor:
    """(files, chains, n, K) of every sample."""
    store, net = SampleStore(folder), toys.plain(net)
    return torch.stack([of_file(store.read(r), net) for r in store.records()])


def of_file(tensors, net) -> torch.Tensor:
    chains = len(next(iter(tensors.values())))
    each = [functional_call(net.eval(), {k: v[c] for k, v in tensors.items()}, (X,)) for c in range(chains)]
    return torch.stack(each).softmax(-1).detach()


# ---- averages --------------------------------------------------------------------------------------------------------


def test_probabilities_are_averaged_and_not_logits(run, posterior):
    p = probabilities(run).flatten(0, 1)
    found = posterior.predict(X)
    torch.testing.assert_close(found.probs, p.mean(0))
    assert (found.probs - p.log().mean(0).softmax(-1)).abs().max() > 1e-3
    torch.testing.assert_close(found.probs.sum(-1), torch.ones(len(X)))


def test_entropy_has_its_parts_and_std_its_formula(run, posterior):
    p = probabilities(run).flatten(0, 1).double()
    found = posterior.predict(X)
    entropy = -(p.mean(0) * p.mean(0).log()).sum(-1)
    aleatoric = -(p * p.log()).sum(-1).mean(0)
    torch.testing.assert_close(found.entropy.double(), entropy, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.aleatoric.double(), aleatoric, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.epistemic.double(), entropy - aleatoric, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.std.double(), p.std(0, unbiased=False), atol=1e-4, rtol=1e-4)


def test_samples_and_chains_are_counted(posterior):
    assert (posterior.samples, posterior.chains, len(posterior.records)) == (16, 2, 8)


def test_evaluation_sets_one_sample_beside_the_averages(run, posterior):
    p = probabilities(run)
    found = posterior.evaluate(TensorSlices(X, Y))
    torch.testing.assert_close(found.one_sample, p[-1])
    torch.testing.assert_close(found.chain_bma, p.mean(0))
    torch.testing.assert_close(found.bma, p.mean((0, 1)))
    metrics = found.metrics()
    assert metrics["bma/nll"] == pytest.approx(F.nll_loss(p.mean((0, 1)).log(), Y).item(), rel=1e-5)
    each = [F.nll_loss(p[-1, c].log(), Y).item() for c in range(2)]
    assert metrics["one_sample/nll"] == pytest.approx(sum(each) / 2, rel=1e-5)
    assert found.curve.samples == list(range(2, 17, 2))
    assert found.curve.nll[-1] == pytest.approx(metrics["bma/nll"], rel=1e-5)
    assert found.log_probs.shape == (2, 8, len(X))
    np.testing.assert_allclose(found.log_probs[1, 3, 5], p[3, 1, 5, Y[5]].log(), rtol=1e-5)


def test_as_module_is_the_average(run, posterior):
    module = posterior.as_module()
    torch.testing.assert_close(module(X), probabilities(run).mean((0, 1)))
    weighted = posterior.as_module("step_size")(X)
    assert not torch.allclose(weighted, module(X)) and torch.equal(weighted, posterior.predict(X, "step_size").probs)


def test_arviz_gets_the_recorded_energies(run, posterior):
    data = posterior.to_arviz()["posterior"].dataset
    full = np.array([r.energy_full for r in posterior.records]).T
    assert data["energy_full"].shape == (2, 8)
    np.testing.assert_array_equal(data["energy_full"], full)
    assert np.isnan(data["energy_batch"][:, -1]).all() and np.isfinite(data["energy_batch"][:, :-1]).all()


# ---- weights ---------------------------------------------------------------------------------------------------------


def test_uniform_weights_are_equal(posterior):
    weights = posterior.weights()
    assert set(weights.by_key.values()) == {1 / 8} and weights.ess == pytest.approx(16)


def test_step_size_weights_are_proportional_to_lr(run, posterior):
    lr = torch.tensor([r.lr for r in posterior.records], dtype=torch.float64)
    assert len(lr.unique()) == 8
    w = lr / lr.sum()
    found = posterior.weights("step_size")
    assert [found.by_key[1, r.step] for r in posterior.records] == pytest.approx(w.tolist())
    assert found.ess == pytest.approx(2 / w.square().sum().item())
    expected = (w.float().view(-1, 1, 1) * probabilities(run).mean(1)).sum(0)
    torch.testing.assert_close(posterior.predict(X, "step_size").probs, expected)


def test_an_unknown_kind_of_weight_is_refused(posterior):
    with pytest.raises(ConfigError, match="unknown weights 'best'"):
        posterior.predict(X, "best")


def settled(**arguments) -> bdl.AdaptiveWeight:
    return bdl.AdaptiveWeight(**(dict(zeta=2.0, low=0.0, high=120.0, bins=20, rate=Constant(0.125)) | arguments))


@pytest.fixture(scope="module")
def weighted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weighted")
    toys.sample(folder, 120, EveryStep(60, 10), weighting=settled())
    return folder


def test_importance_weights_are_psi_to_the_zeta(weighted):
    posterior = bdl.Posterior.load(weighted, toys.plain())
    records, saved = posterior.records, SampleStore(weighted).weighting(0)
    centres = (saved["edges"][:, 1:] + saved["edges"][:, :-1]) / 2
    found = posterior.weights("importance")
    for c in range(2):
        u = np.array([r.energy_batch[c] for r in records[:-1]])
        raw = np.exp(2.0 * np.interp(u, centres[c], saved["log_psi"][c]))
        assert raw.std() > 0.01
        got = [found.by_key[c, r.step] for r in records[:-1]]
        assert got == pytest.approx(raw / raw.sum(), rel=1e-6)
    w = np.array(list(found.by_key.values()))
    assert found.ess == pytest.approx(w.sum() ** 2 / (w**2).sum())
    assert (0, records[-1].step) not in found.by_key  # no batch energy, and so no weight


def test_the_importance_weighted_average(weighted):
    posterior = bdl.Posterior.load(weighted, toys.plain())
    w, p = posterior.weights("importance").by_key, probabilities(weighted)
    each = [sum(w.get((c, r.step), 0.0) * p[i, c] for i, r in enumerate(posterior.records)) for c in range(2)]
    torch.testing.assert_close(posterior.predict(X, "importance").probs, (each[0] + each[1]) / 2)
    torch.testing.assert_close(posterior.evaluate(TensorSlices(X, Y)).bma_weighted, (each[0] + each[1]) / 2)


def test_importance_weights_are_biased_where_batches_say_less_than_the_energy_spreads(weighted):
    posterior = bdl.Posterior.load(weighted, toys.plain())
    full = np.array([r.energy_full for r in posterior.records])
    batch = np.array([r.energy_batch for r in posterior.records[:-1]])
    spread = math.sqrt(full.var(0, ddof=1).mean())
    error = (batch - full[:-1]).std(ddof=1)
    found = posterior.weights("importance")
    assert found.biased == (error > spread)
    assert ("biased" in found.note) == found.biased
    assert f"{spread:.3g} nats" in found.note and f"{error:.3g} nats" in found.note


def test_importance_is_refused_without_a_weighting(posterior):
    with pytest.raises(ConfigError, match="need a weighting"):
        posterior.predict(X, "importance")


def refused(folder, **arguments) -> pytest.RaisesExc:
    toys.sample(folder, 120, EveryStep(60, 10), **arguments)
    return pytest.raises(ConfigError, match="no importance weights")


def test_importance_is_refused_when_psi_never_settled(tmp_path):
    with refused(tmp_path, weighting=settled(rate=Constant(1e-4))) as error:
        bdl.Posterior.load(tmp_path, toys.plain()).weights("importance")
    assert "never settled" in str(error.value)


def test_importance_is_refused_when_temperature_changed(tmp_path):
    change = bdl.Schedule(temperature=lambda step: 1.0 if step < 90 else 0.5)
    with refused(tmp_path, weighting=settled(), callbacks=[change]) as error:
        bdl.Posterior.load(tmp_path, toys.plain()).weights("importance")
    assert "temperature changed" in str(error.value)


def test_importance_is_refused_when_zeta_changed(tmp_path):
    change = bdl.Schedule(zeta=lambda step: 1.0 if step < 90 else 2.0)
    with refused(tmp_path, weighting=settled(), callbacks=[change]) as error:
        bdl.Posterior.load(tmp_path, toys.plain()).weights("importance")
    assert "zeta changed" in str(error.value)


# ---- loaders ---------------------------------------------------------------------------------------------------------


def test_a_loader_gives_what_a_tensor_gives(posterior):
    expected = posterior.predict(X).probs
    data = TensorDataset(X, Y)
    for loader in (TensorSlices(X, Y, 16), DataLoader(data, batch_size=16), [(X[:9], Y[:9]), (X[9:], Y[9:])]):
        torch.testing.assert_close(posterior.predict(loader).probs, expected)


def test_a_loader_may_give_inputs_alone(posterior):
    expected = posterior.predict(X).probs
    for loader in ([X[:9], X[9:]], DataLoader(TensorDataset(X), batch_size=16)):
        torch.testing.assert_close(posterior.predict(loader).probs, expected)


def test_a_shuffling_loader_pairs_inputs_with_their_own_labels(posterior):
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
    expected = posterior.evaluate(TensorSlices(X, Y)).metrics()
    found = posterior.evaluate(loader).metrics()
    assert {k: v for k, v in found.items() if "ece" not in k} == pytest.approx(
        {k: v for k, v in expected.items() if "ece" not in k}
    )


def test_every_sample_sees_a_shuffling_loader_in_the_same_order(posterior):
    loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
    batches = Batches(loader, torch.device("cpu"))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(batches, batches, strict=True))
    order = {tuple(x.tolist()): i for i, x in enumerate(torch.cat([x for x, _ in batches]))}
    assert sorted(order.values()) == list(range(len(X)))


def test_a_generator_is_read_once(posterior):
    found = posterior.predict((x, y) for x, y in TensorSlices(X, Y, 16))
    torch.testing.assert_close(found.probs, posterior.predict(X).probs)


def test_evaluation_needs_labels(posterior):
    with pytest.raises(ConfigError, match=r"needs a loader of \(x, y\) batches"):
        posterior.evaluate([X])


# ---- what is left alone ----------------------------------------------------------------------------------------------


def test_the_net_is_left_as_it_was(run):
    net = toys.plain()
    values = [p.detach().clone() for p in net.parameters()]
    bdl.Posterior.load(run, net).predict(X)
    assert net.training and all(torch.equal(p, v) for p, v in zip(net.parameters(), values, strict=True))
    net.eval()
    bdl.Posterior.load(run, net).predict(X)
    assert not net.training


def test_submodules_keep_their_own_mode(run):
    net = toys.plain()
    net[1].eval()
    bdl.Posterior.load(run, net).predict(X)
    assert [m.training for m in net] == [True, False, True]


def test_dropout_is_off_and_buffers_are_those_of_the_sample(tmp_path):
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))

    toys.sample(tmp_path, 8, net=build())
    net = build()
    found = bdl.Posterior.load(tmp_path, net).predict(X).probs
    torch.testing.assert_close(found, probabilities(tmp_path, build()).mean((0, 1)))
    assert not net[1].running_mean.any()  # never trained itself


def test_every_file_is_read_once_per_pass(posterior, monkeypatch):
    read, names = SampleStore.read, []
    monkeypatch.setattr(SampleStore, "read", lambda self, r: (names.append(r.file), read(self, r))[1])
    posterior.predict(TensorSlices(X, Y, 7))
    assert len(names) == len(set(names)) == 8
    names.clear()
    posterior.evaluate_all({"test": TensorSlices(X, Y, 7), "train": TensorSlices(X, Y, 9)})
    assert len(names) == len(set(names)) == 8


@pytest.mark.parametrize("use", ["predict", "evaluate"])
def test_files_are_dropped_once_used(posterior, monkeypatch, use):
    """Memory does not grow with samples: never more than two files' tensors are alive."""
    read, alive, most = SampleStore.read, weakref.WeakSet(), 0

    class Held(dict):
        __hash__ = object.__hash__

    def counted(self, record):
        nonlocal most
        held = Held(read(self, record))
        alive.add(held)
        most = max(most, len(alive))
        return held

    monkeypatch.setattr(SampleStore, "read", counted)
    getattr(posterior, use)(TensorSlices(X, Y))
    assert most <= 2


# ---- several runs ----------------------------------------------------------------------------------------------------


def test_two_runs_are_all_their_chains_together(run, tmp_path):
    toys.sample(tmp_path, 16, seed=1)
    both = bdl.Posterior.load([run, tmp_path], toys.plain())
    p = torch.cat([probabilities(run).flatten(0, 1), probabilities(tmp_path).flatten(0, 1)])
    assert (both.chains, both.samples) == (4, 32)
    torch.testing.assert_close(both.predict(X).probs, p.mean(0))
    assert both.evaluate(TensorSlices(X, Y)).chain_bma.shape[0] == 4


def test_runs_of_different_lengths_have_one_average(run, tmp_path):
    """The uniform average that `predict` returns is the one whose metrics `evaluate` reports."""
    toys.sample(tmp_path, 6, seed=1)
    both = bdl.Posterior.load([run, tmp_path], toys.plain())
    torch.testing.assert_close(both.evaluate(TensorSlices(X, Y)).bma, both.predict(X).probs)


def test_a_run_given_twice_is_refused(run):
    with pytest.raises((StoreError, ConfigError), match="twice"):
        bdl.Posterior.load([run, run], toys.plain())


OTHER = {
    "num_data": {"num_data": 40, "collect": {"target": {"num_data": 41}}},
    "temperature": {"temperature": 0.5},
    "prior": {"prior": bdl.Gaussian(2.0)},
    "data": {"collect": {"target": {"data": "others"}}},
    "model": {"collect": {"target": {"model": "other"}}},
    "shapes": {"net": nn.Sequential(nn.Linear(3, 3))},
}


@pytest.mark.parametrize("key", OTHER)
def test_runs_of_another_target_are_not_merged(run, tmp_path, key):
    toys.sample(tmp_path, 4, **OTHER[key])
    with pytest.raises(StoreError, match=f"runs of different targets are not merged: {key} is"):
        bdl.Posterior.load([run, tmp_path], toys.plain())


def test_priors_that_differ_tensor_by_tensor_are_not_merged(tmp_path):
    for name, precisions in (("a", [1.0, 2.0, 1.0, 2.0]), ("b", [2.0, 1.0, 2.0, 1.0])):
        toys.sample(tmp_path / name, 4, prior=bdl.Gaussian(precisions))
    with pytest.raises(StoreError, match="prior is"):
        bdl.Posterior.load([tmp_path / "a", tmp_path / "b"], toys.plain())


def test_the_same_target_under_another_sampler_is_merged(run, tmp_path):
    toys.sample(tmp_path, 4, dynamics=bdl.SGLD(), lr=0.05, seed=3)
    assert bdl.Posterior.load([run, tmp_path], toys.plain()).chains == 4


# ---- other laws, other energies --------------------------------------------------------------------------------------


def regression(folder, std: float = 0.5):
    """A one-output network sampled under Gaussian noise; returns the network and its inputs."""
    x = torch.linspace(-1, 1, toys.N).unsqueeze(1)
    net = bdl.models.MLP((1, 4, 1))
    module = toys.module(net, 2, bdl.GaussianNLL(std), lr=0.01)
    loader = bdl.data.TensorBatches(x, 2 * x, 10, chains=2)
    toys.trainer(folder, 8, [bdl.CollectSamples(EveryStep(0, 2), folder)]).fit(module, loader)
    return net, x


def test_regression_has_moments_and_no_class_probabilities(tmp_path):
    net, x = regression(tmp_path)
    posterior = bdl.Posterior.load(tmp_path, net)
    with pytest.raises(ConfigError, match="GaussianNLL.*moments"):
        posterior.predict(x)
    store = SampleStore(tmp_path)
    outputs = torch.stack(
        [
            functional_call(net, {k: v[c] for k, v in store.read(r).items()}, (x,))
            for r in store.records()
            for c in (0, 1)
        ]
    ).detach()
    mean, std = posterior.moments(x)
    torch.testing.assert_close(mean, outputs.mean(0))
    torch.testing.assert_close(std, outputs.std(0, correction=0), atol=1e-5, rtol=1e-3)


def test_runs_of_different_likelihoods_or_weightings_are_not_merged(tmp_path, run):
    net, _ = regression(tmp_path / "a", 0.5)
    regression(tmp_path / "b", 0.7)
    with pytest.raises(StoreError, match="loss is"):
        bdl.Posterior.load([tmp_path / "a", tmp_path / "b"], net)
    toys.sample(tmp_path / "c", 16, weighting=settled(), callbacks=[bdl.Schedule(lr=Cosine(0.3, 20))], seed=3)
    with pytest.raises(StoreError, match="weighting is"):
        bdl.Posterior.load([run, tmp_path / "c"], toys.plain())


def test_full_energies_weigh_the_sample_that_has_them(tmp_path):
    """refresh=7: the energy that the sampler saw last is some steps old; the sample's own must count."""
    weighting = settled(energy="full", refresh=7)
    toys.sample(tmp_path, 80, EveryStep(50, 3), weighting=weighting, lr=0.3)
    store = SampleStore(tmp_path)
    saved = store.weighting(0)
    centres = ((saved["edges"][:, 1:] + saved["edges"][:, :-1]) / 2).numpy()
    frozen = [r for r in store.records() if r.psi_frozen]
    assert len(frozen) > 3
    for r in frozen:
        expected = [2.0 * np.interp(u, centres[c], saved["log_psi"][c].numpy()) for c, u in enumerate(r.energy_full)]
        assert r.log_weight == pytest.approx(expected, abs=1e-9)
    assert bdl.Posterior.load(tmp_path, toys.plain()).weights("importance").biased is False


def test_without_full_energies_nobody_can_tell_whether_weights_are_biased(tmp_path):
    toys.sample(tmp_path, 80, EveryStep(50, 3), weighting=settled(), collect={"full_energy": False})
    found = bdl.Posterior.load(tmp_path, toys.plain()).weights("importance")
    assert found.biased is None and "full_energy=true" in found.note
