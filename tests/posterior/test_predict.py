"""Tests of `bdl.posterior.predict`, `.networks`, `.prediction` and `.outputs`.

Posterior against averages computed by hand.
"""

import weakref

import numpy as np
import pytest
import torch
import toys
from by_hand import X, Y, probabilities
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.data import TensorSlices
from bdl.engine import forward
from bdl.errors import ConfigError, StoreError
from bdl.posterior.predict import Batches
from bdl.posterior.store import SampleStore


@pytest.mark.parametrize("limit", [1, 200, forward.LARGEST_CPU], ids=["one by one", "a few", "all at once"])
def test_every_number_is_that_of_double_precision(run, posterior, monkeypatch, limit):
    """Batched products sum in another order than one network alone, which moves the last bits of float32."""
    monkeypatch.setattr(forward, "LARGEST_CPU", limit)
    store, net = SampleStore(run), toys.plain().double()
    files = [{k: v.double() for k, v in store.read(r).items()} for r in store.records()]
    p = torch.stack(
        [functional_call(net, {k: v[c] for k, v in t.items()}, (X.double(),)) for t in files for c in (0, 1)]
    )
    p = p.softmax(-1).detach()
    prediction = posterior.predict(X)
    aleatoric = -(p * p.log()).sum(-1).mean(0)
    total = -(p.mean(0) * p.mean(0).log()).sum(-1)
    expected = {"probs": p.mean(0), "std": p.std(0, unbiased=False), "entropy": total, "aleatoric": aleatoric}
    for name, values in {**expected, "epistemic": total - aleatoric}.items():
        torch.testing.assert_close(getattr(prediction, name).double(), values, atol=1e-6, rtol=0, msg=name)
    torch.testing.assert_close(posterior.evaluate(TensorSlices(X, Y)).bma.double(), p.mean(0), atol=1e-6, rtol=0)
    assert (prediction.probs - p.log().mean(0).softmax(-1)).abs().max() > 1e-3  # logits are not averaged


def test_samples_and_chains_are_counted(posterior):
    assert (posterior.samples, posterior.chains, len(posterior.records)) == (16, 2, 8)


def test_energies_are_those_recorded(run, posterior):
    full, batch = posterior.recorded("energy_full"), posterior.recorded("energy_batch")
    np.testing.assert_array_equal(full, np.array([r.energy_full for r in posterior.records]).T)
    assert full.shape == (2, 8) and np.isnan(batch[:, -1]).all() and np.isfinite(batch[:, :-1]).all()


def test_a_loader_gives_what_a_tensor_gives(posterior):
    expected = posterior.predict(X).probs
    data = TensorDataset(X, Y)
    for loader in (TensorSlices(X, Y, 16), DataLoader(data, batch_size=16), [(X[:9], Y[:9]), (X[9:], Y[9:])]):
        torch.testing.assert_close(posterior.predict(loader).probs, expected)


def test_a_loader_may_give_inputs_alone(posterior):
    expected = posterior.predict(X).probs
    for loader in ([X[:9], X[9:]], DataLoader(TensorDataset(X), batch_size=16)):
        torch.testing.assert_close(posterior.predict(loader).probs, expected)


def test_every_sample_sees_a_shuffling_loader_in_the_same_order(posterior):
    loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
    batches = Batches(loader, torch.device("cpu"))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(batches, batches, strict=True))
    order = {tuple(x.tolist()): i for i, x in enumerate(torch.cat([x for x, _ in batches]))}
    assert sorted(order.values()) == list(range(len(X)))


def test_a_generator_is_read_once(posterior):
    prediction = posterior.predict((x, y) for x, y in TensorSlices(X, Y, 16))
    torch.testing.assert_close(prediction.probs, posterior.predict(X).probs)


def test_the_net_is_left_as_it_was(run):
    net = toys.plain()
    values = [p.detach().clone() for p in net.parameters()]
    bdl.Posterior.load(run, net).predict(X)
    assert net.training and all(torch.equal(p, v) for p, v in zip(net.parameters(), values, strict=True))
    net.eval()[1].train()
    bdl.Posterior.load(run, net).predict(X)
    assert [m.training for m in net] == [False, True, False] and not net.training


def test_dropout_is_off_and_buffers_are_those_of_the_sample(tmp_path):
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))

    toys.sample(tmp_path, 8, net=build())
    net = build()
    probs = bdl.Posterior.load(tmp_path, net).predict(X).probs
    torch.testing.assert_close(probs, probabilities(tmp_path, build()).mean((0, 1)))
    assert not net[1].running_mean.any()  # still zero, because this copy was never trained


def test_every_file_is_read_once_per_pass(posterior, monkeypatch):
    read, names = SampleStore.read, []
    monkeypatch.setattr(SampleStore, "read", lambda self, r: (names.append(r.file), read(self, r))[1])
    posterior.predict(TensorSlices(X, Y, 7))
    assert len(names) == len(set(names)) == 8
    names.clear()
    posterior.evaluate_all({"test": TensorSlices(X, Y, 7), "train": TensorSlices(X, Y, 9)})
    assert len(names) == len(set(names)) == 8


@pytest.mark.parametrize("use", ["predict", "evaluate"])
@pytest.mark.parametrize("files", [1, 2])
def test_groups_of_files_are_dropped_once_used(posterior, monkeypatch, use, files):
    """Memory does not grow with the number of samples: at most two groups of files are in memory."""
    read, alive, most = SampleStore.read, weakref.WeakSet(), 0
    size = posterior.records[0].bytes
    monkeypatch.setattr("bdl.posterior.samples.GROUP_BYTES", files * size + size // 2)

    def counted(self, record):
        nonlocal most
        tensors = read(self, record)
        alive.add(tensors["0.weight"])
        most = max(most, len(alive))
        return tensors

    monkeypatch.setattr(SampleStore, "read", counted)
    getattr(posterior, use)(TensorSlices(X, Y))
    assert most == (2 if files == 1 else files)  # one file's tensors are used as they are, those of several are copied


@pytest.mark.parametrize("kind", ["uniform", "step_size"])
def test_a_cached_posterior_reads_no_file_and_gives_same_to_bit(run, monkeypatch, kind):
    streamed = bdl.Posterior.load(run, toys.plain())
    cached = bdl.Posterior.load(run, toys.plain()).cache()
    expected, metrics = streamed.predict(X, kind), streamed.evaluate(TensorSlices(X, Y)).metrics()
    monkeypatch.setattr(SampleStore, "read", None)
    for name, values in vars(cached.predict(X, kind)).items():
        assert torch.equal(values, getattr(expected, name))
    assert cached.evaluate(TensorSlices(X, Y)).metrics() == metrics
    assert len(list(cached.stream())) == 16
    with pytest.raises(TypeError):
        streamed.predict(X)


def test_the_weights_of_a_kind_are_worked_out_once(posterior, monkeypatch):
    first = posterior.predict(X, "step_size").probs
    monkeypatch.setattr("bdl.posterior.networks.sample_weights", None)
    assert torch.equal(posterior.predict(X, "step_size").probs, first)


def test_progress_goes_up_to_all_the_work(posterior):
    seen = []
    posterior.evaluate_all(
        {"test": TensorSlices(X, Y), "train": TensorSlices(X[:7], Y[:7])}, lambda *work: seen.append(work)
    )
    done, total = zip(*seen, strict=True)
    assert set(total) == {16 * (len(X) + 7)} and list(done) == sorted(set(done)) and done[-1] == total[0]


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


def test_the_same_target_under_another_sampler_is_merged(run, tmp_path):
    toys.sample(tmp_path, 4, dynamics=bdl.SGLD(), lr=0.05, seed=3)
    assert bdl.Posterior.load([run, tmp_path], toys.plain()).chains == 4


def test_moments_are_those_of_every_network(of_numbers, regression):
    outputs = torch.stack([functional_call(regression[1], s.tensors, (X,)) for s in of_numbers.stream()]).detach()
    mean, std = of_numbers.moments(X)
    torch.testing.assert_close(mean, outputs.mean(0))
    torch.testing.assert_close(std, outputs.std(0, correction=0), atol=1e-5, rtol=1e-3)


def write_regression(folder, mean: float, std: float) -> tuple[nn.Module, torch.Tensor]:
    """A store of networks 0 x + b with b ~ N(mean, std²), 4 files of 3 chains; returns the network and the b."""
    store, generator = SampleStore(folder), torch.Generator().manual_seed(0)
    biases = mean + std * torch.randn(4, 3, 1, generator=generator, dtype=torch.float64)
    for step, bias in enumerate(biases.float()):
        tensors = {"weight": torch.zeros(3, 1, 2), "bias": bias}
        store.write(tensors, step=step, stack=0, chains=[0, 1, 2], lr=0.1 * (step + 1), temperature=1.0)
    store.write_target({"num_data": 1, "outputs": "values"})
    return nn.Linear(2, 1), biases.float()


@pytest.mark.parametrize("kind", ["uniform", "step_size"])
def test_moments_of_large_outputs_with_a_small_spread(tmp_path, kind):
    """E x² - (E x)² in float32 would give a standard deviation of 0, or of several units."""
    net, biases = write_regression(tmp_path, mean=1e4, std=1e-3)
    w = np.ones(12) if kind == "uniform" else np.repeat([1.0, 2.0, 3.0, 4.0], 3)
    values = biases.double().flatten().numpy()
    mean = np.average(values, weights=w)
    expected = np.sqrt(np.average((values - mean) ** 2, weights=w))
    found_mean, found_std = bdl.Posterior.load(tmp_path, net).moments(torch.randn(5, 2), kind=kind)
    np.testing.assert_allclose(found_std, np.full((5, 1), expected), rtol=1e-6)
    np.testing.assert_allclose(found_mean, np.full((5, 1), mean), rtol=1e-7)
