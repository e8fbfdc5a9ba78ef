"""Tests of `bdl.posterior.tensors`.

Samples of a part: they hold what is sampled, the frozen part lies beside them once, and a changed one is refused.
"""

import functools
import json

import lightning as L
import pytest
import torch
import torch.nn.functional as F
import toys
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.engine.functional import call

torch.manual_seed(0)
X, Y = torch.randn(60, 1, 6, 6), torch.randint(3, (60,))
LOADER = DataLoader(TensorDataset(X, Y), batch_size=20)
KEEP = bdl.schedules.EveryStep(burn_in=3, every=3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Flatten())
        self.block = nn.Sequential(nn.Linear(8 * 16, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.block(self.body(x)))


def network() -> Net:
    torch.manual_seed(1)
    net = Net()
    net(X)
    return net


class Own(L.LightningModule):
    """A LightningModule of one's own, whose network is the module itself."""

    def __init__(self, only, **settings):
        super().__init__()
        torch.manual_seed(1)
        self.backbone, self.head, self.only, self.settings = Net().body, nn.Linear(8 * 16, 3), only, settings

    def forward(self, x):
        return self.head(self.backbone(x))

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return bdl.Sampler(self.named_parameters(), bdl.SGHMC(), num_data=60, lr=0.1, only=self.only, **self.settings)


def fit(module, folder, steps=12, callbacks=(), loader=LOADER, **options):
    kept = [bdl.CollectSamples(KEEP), bdl.SaveLast(folder / "checkpoints", every=3), *callbacks]
    toys.trainer(folder, steps, kept, max_epochs=-1).fit(module, loader, **options)
    return module


def bayesian(net, **settings):
    build = functools.partial(bdl.Sampler, dynamics=bdl.SGHMC(), num_data=60, lr=0.1, **settings)
    return bdl.BayesianModule(net, build)


def probabilities(posterior, net):
    """By hand: every sample's tensors and the frozen file in a network of any values."""
    store = posterior.stores[0]
    frozen = store.frozen()
    each = []
    net.eval()
    for record in store.records():
        tensors = store.read(record)
        for c in range(len(record.chains)):
            each.append(call(net, {**frozen, **{k: v[c] for k, v in tensors.items()}}, X).softmax(-1))
    return torch.stack(each).mean(0)


def test_the_frozen_part_lies_in_the_networks_memory_unchanged(tmp_path):
    """A large body is there once. What is written to the network later reaches neither predictions nor modules."""
    net = network()
    fit(bayesian(bdl.ChainStack(net, 2, only="head.*", shared=True)), tmp_path)
    posterior = bdl.Posterior.load(tmp_path, net)
    places = {name: t.data_ptr() for name, t in {**dict(net.named_parameters()), **dict(net.named_buffers())}.items()}
    frozen = posterior.stored.frozen
    assert frozen and all(t.data_ptr() == places[name] for name, t in frozen.items())
    other = {name: t.data_ptr() for name, t in bdl.Posterior.load(tmp_path, Net()).stored.frozen.items()}
    assert other["body.0.weight"] != places["body.0.weight"]  # another network's values are not those of the run
    before, average = posterior.predict(X).probs, posterior.as_module()
    with torch.no_grad():
        net.body[0].weight.add_(1.0)
        net.body[1].running_mean.fill_(3.0)
    assert torch.equal(posterior.predict(X).probs, before)
    torch.testing.assert_close(average(X), before, rtol=1e-4, atol=1e-5)


def test_an_altered_frozen_part_is_refused_in_one_line(tmp_path):
    net = network()
    fit(bayesian(net, only="head.*"), tmp_path)
    path = tmp_path / "samples" / "frozen.safetensors"
    data = bytearray(path.read_bytes())
    for change, words in ((-1, "was altered"), (9, "frozen.safetensors is no whole safetensors file")):
        altered = data.copy()
        altered[change] ^= 1
        path.write_bytes(altered)
        with pytest.raises(bdl.StoreError, match=words):
            bdl.Posterior.load(tmp_path, net)
    path.unlink()
    with pytest.raises(bdl.StoreError, match="cannot be read"):
        bdl.Posterior.load(tmp_path, net)


def held(folder):
    store = bdl.SampleStore(folder)
    return set(store.read(store.records()[0]))


HEAD = {"head.weight", "head.bias"}
BLOCK = {f"block.{i}.{k}" for i in (0, 1) for k in ("weight", "bias")} | {
    f"block.1.{k}" for k in ("running_mean", "running_var", "num_batches_tracked")
}


@pytest.mark.parametrize("chains", [None, 3])
@pytest.mark.parametrize(
    "only, names", [("head.*", HEAD), (["block.*", "head.*"], BLOCK | HEAD)], ids=["head", "block"]
)
def test_samples_hold_the_part_and_predict_with_the_frozen_rest(only, names, chains, tmp_path):
    net = network()
    if chains is None:
        module = bayesian(net, only=only)
    else:
        module = bayesian(bdl.ChainStack(net, chains, only=only, shared=True))
    fit(module, tmp_path)
    assert held(tmp_path) == names
    store = bdl.SampleStore(tmp_path)
    bytes_sampled = sum(t.numel() * t.element_size() for t in store.read(store.records()[0]).values())
    assert store.records()[0].bytes - bytes_sampled < 2000, "a header of names, shapes and energies"
    other = Net()  # random values: those of the frozen part come from the run
    before = {k: v.clone() for k, v in other.state_dict().items()}
    posterior = bdl.Posterior.load(tmp_path, other)
    torch.testing.assert_close(posterior.predict(X).probs, probabilities(posterior, network()), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(v, before[k]) for k, v in other.state_dict().items()), "the module keeps its values"
    for loaded in (module, module.net):  # the module itself
        again = bdl.Posterior.load(tmp_path, loaded).predict(X).probs
        torch.testing.assert_close(again, posterior.predict(X).probs, rtol=1e-4, atol=1e-5)
    average = posterior.as_module()
    torch.testing.assert_close(average(X), posterior.predict(X).probs, rtol=1e-4, atol=1e-5)
    assert sum(t.numel() for n, t in average.net.named_parameters() if n.startswith("body")) == 8 * 9 + 8 * 3
    assert posterior.evaluate(LOADER).metrics()["bma/nll"] > 0


def test_a_last_layer_takes_its_own_bytes(tmp_path):
    """Of 512 x 10 numbers: at most 1.1 times their bytes."""
    net = nn.Sequential(nn.Linear(36, 512), nn.ReLU(), nn.Linear(512, 10))
    sampler = bdl.Sampler(net.named_parameters(), bdl.SGLD(), num_data=60, lr=0.1, only="2.*")
    sampler.zero_grad()
    F.cross_entropy(net(X.flatten(1)), Y).backward()
    sampler.step()
    record = bdl.SampleStore(tmp_path).append(sampler, net, bdl.CategoricalNLL())
    assert record.bytes <= 1.1 * 4 * (512 * 10 + 10)
    assert (tmp_path / "samples" / "frozen.safetensors").stat().st_size > 4 * 36 * 512


def test_a_module_of_ones_own_keeps_its_frozen_part_in_eval_mode(tmp_path):
    module = fit(Own("head.*"), tmp_path)
    assert not module.backbone[1].training and held(tmp_path) == HEAD
    assert bdl.Posterior.load(tmp_path, module, likelihood=bdl.CategoricalNLL()).predict(X).probs.shape == (60, 3)


def test_a_frozen_part_that_trains_has_its_buffers_in_samples(tmp_path):
    module = fit(Own("head.*", frozen="train"), tmp_path)
    assert module.backbone[1].training
    assert held(tmp_path) == HEAD | {f"backbone.1.{k}" for k in ("running_mean", "running_var", "num_batches_tracked")}


def test_an_interrupted_run_goes_on_with_the_same_samples(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"

    def run(folder, steps, **options):
        loader = bdl.data.TensorBatches(X, Y, batch_size=20, seed=0)
        fit(bayesian(network(), only="head.*"), folder, steps, loader=loader, **options)

    run(whole, 12)
    run(parts, 7)
    run(parts, 12, ckpt_path=parts / "checkpoints" / "last.ckpt", weights_only=True)
    for file in ["index-0.jsonl", "target.json", "frozen.safetensors"]:
        assert (whole / "samples" / file).read_bytes() == (parts / "samples" / file).read_bytes()


class Meddle(L.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 4:
            with torch.no_grad():
                pl_module.net.body[0].weight.add_(1)


def test_a_frozen_part_that_changes_is_refused(tmp_path):
    with pytest.raises(bdl.StoreError, match=r"frozen part .* body\.0\.weight differs") as refused:
        fit(bayesian(network(), only="head.*"), tmp_path, callbacks=[Meddle()])
    assert "\n" not in str(refused.value)


def test_a_run_does_not_go_on_with_another_frozen_part(tmp_path):
    fit(bayesian(network(), only="head.*"), tmp_path, steps=7)
    path = tmp_path / "checkpoints" / "last.ckpt"
    saved = torch.load(path, weights_only=True)
    saved["state_dict"]["net.body.0.bias"] += 1
    torch.save(saved, path)
    with pytest.raises(bdl.StoreError, match=r"body\.0\.bias differs"):
        fit(bayesian(network(), only="head.*"), tmp_path, ckpt_path=path, weights_only=True)


def appended(folder, net):
    sampler = bdl.Sampler(net.named_parameters(), bdl.SGLD(), num_data=60, lr=0.1, only="head.*")
    store = bdl.SampleStore(folder)

    def step():
        sampler.zero_grad()
        F.cross_entropy(net(X), Y).backward()
        sampler.step()
        return store.append(sampler, net, bdl.CategoricalNLL())

    return step


def test_a_plain_loop_in_eval_mode_keeps_the_part_alone(tmp_path):
    step = appended(tmp_path, network().eval())
    step(), step()
    assert held(tmp_path) == HEAD


def test_a_plain_loop_in_train_mode_keeps_statistics_that_change(tmp_path):
    step = appended(tmp_path, network().train())
    step(), step()
    assert {"head.weight", "body.1.running_mean"} < held(tmp_path)


def test_a_plain_loop_whose_mode_changes_is_refused(tmp_path):
    net = network().eval()
    step = appended(tmp_path, net)
    step()
    net.train()
    with pytest.raises(bdl.StoreError, match=r"block\.1\.\w+ differs.*eval mode"):
        step()


def test_runs_with_other_frozen_parts_are_not_merged(tmp_path):
    appended(tmp_path / "a", network().eval())()
    other = network().eval()
    with torch.no_grad():
        other.body[0].bias.add_(1)
    appended(tmp_path / "b", other)()
    with pytest.raises(bdl.StoreError, match="not merged: frozen.sha256"):
        bdl.Posterior.load([tmp_path / "a", tmp_path / "b"], Net())


def test_network_of_another_part_is_refused_by_its_first_tensor(tmp_path):
    appended(tmp_path, network().eval())()
    other = Net()
    other.head = nn.Linear(6, 4)
    with pytest.raises(bdl.StoreError, match=r"head\.weight has the shape \(3, 6\) in them, and the shape \(4, 6\)"):
        bdl.Posterior.load(tmp_path, other)


def test_a_run_of_the_whole_network_is_stored_as_ever(tmp_path):
    fit(bayesian(network()), tmp_path)
    assert held(tmp_path) == set(network().state_dict())
    assert not (tmp_path / "samples" / "frozen.safetensors").exists()
    assert "frozen" not in json.loads((tmp_path / "samples" / "target.json").read_bytes())


def test_a_stack_that_shares_nothing_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(bdl.ConfigError, match=r"ChainStack\(net, C, only=\.\.\.\)"):
        fit(bayesian(bdl.ChainStack(network(), 2, shared=True), only="head.*"), tmp_path)


def test_refreshed_statistics_of_a_frozen_part_are_refused(tmp_path):
    trainer = toys.trainer(tmp_path, 6, [bdl.CollectSamples(KEEP, batchnorm="refresh")])
    with pytest.raises(bdl.ConfigError, match="part of it is frozen"):
        trainer.fit(bayesian(network(), only="head.*"), LOADER)
