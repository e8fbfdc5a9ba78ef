"""Stacks with several inputs, items with several elements, shared batches, and losses that are sums."""

import functools

import pytest
import torch
import torch.nn.functional as F
import toys
from closures import closure_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.data import TensorSlices
from bdl.errors import BdlWarning, ConfigError, StoreError
from bdl.likelihoods import mean_loss
from bdl.posterior.tensors import sampled_part
from bdl.schedules import EveryStep

N, C, K = 12, 3, 4


class Adds(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, K), nn.Linear(2, K)

    def forward(self, a, b):
        return self.left(a) * self.right(b)


class Pixels(nn.Module):
    """Logits (B, K, H, W), as torch's losses read them."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, K, 1)

    def forward(self, x):
        return self.conv(x)


@pytest.mark.parametrize("method", ["loop", "vmap"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("by_name", [False, True])
def test_a_stack_feeds_each_chain_all_inputs(method, shared, by_name):
    stack = bdl.ChainStack(Adds, C, shared=shared, method=method)
    lead = () if shared else (C,)
    inputs = {"a": torch.randn(*lead, N, 3), "b": torch.randn(*lead, N, 2)}
    outputs = stack(**inputs) if by_name else stack(*inputs.values())
    for c in range(C):
        one = {k: v if shared else v[c] for k, v in inputs.items()}
        net = sampled_part(stack, {"shapes": {k: v.shape for k, v in Adds().state_dict().items()}})
        net.load_state_dict({k: v[c] for k, v in stack.net.state_dict().items()})
        torch.testing.assert_close(outputs[c], net(**one))
    with pytest.raises(ConfigError, match="by name, or all in order"):
        stack(inputs["a"], b=inputs["b"])


@pytest.mark.parametrize("chains", [None, C])
def test_elements_are_averaged_as_torch_averages_them(chains):
    lead = () if chains is None else (chains,)
    logits, labels = torch.randn(*lead, N, 5, K), torch.randint(K, (*lead, N, 5))
    labels[..., 0, :2] = -100
    losses = mean_loss(bdl.CategoricalNLL(), logits, labels, chains)
    per_chain = [(logits, labels)] if chains is None else list(zip(logits, labels, strict=True))
    expected = torch.stack([F.cross_entropy(o.mT, y) for o, y in per_chain])
    torch.testing.assert_close(losses, expected[0] if chains is None else expected)
    images, classes = torch.randn(*lead, N, K, 2, 2), torch.randint(K, (*lead, N, 2, 2))
    losses = mean_loss(bdl.CategoricalNLL(class_axis=-3), images, classes, chains)
    per_chain = [(images, classes)] if chains is None else list(zip(images, classes, strict=True))
    expected = torch.stack([F.cross_entropy(o, y) for o, y in per_chain])
    torch.testing.assert_close(losses, expected[0] if chains is None else expected)


@pytest.fixture(scope="module")
def pixels(tmp_path_factory):
    """(folder, x, y, ModelAverage) of two chains of a network that classifies pixels, with torch's own loss."""
    folder, x = tmp_path_factory.mktemp("pixels"), torch.randn(toys.N, 1, 2, 3)
    y = (x[:, 0] > 0).long()
    y[0, 0, 0] = -100
    average = bdl.ModelAverage(EveryStep(0, 2), TensorSlices(x, y))
    module = toys.module(Pixels(), 2, nn.CrossEntropyLoss(), lr=0.01)
    loader = bdl.data.TensorBatches(x, y, 10, chains=2)
    toys.trainer(folder, 6, [bdl.CollectSamples(EveryStep(0, 2), folder), average]).fit(module, loader)
    return folder, x, y, average


def test_pixels_are_predicted_and_scored_each_by_itself(pixels):
    folder, x, y, average = pixels
    posterior = bdl.Posterior.load(folder, Pixels())
    probs = posterior.predict(x).probs
    each = torch.stack([Pixels().eval().requires_grad_(False)(x) * 0] * posterior.samples)
    for i, sample in enumerate(posterior.stream()):
        each[i] = torch.func.functional_call(Pixels(), sample.tensors, (x,)).detach()
    expected = each.softmax(2).mean(0).movedim(1, -1)
    torch.testing.assert_close(probs, expected)
    counted = y != -100
    nll = -probs[counted].gather(1, y[counted].unsqueeze(1)).log().mean().item()
    metrics = posterior.evaluate(TensorSlices(x, y)).metrics()
    assert metrics["bma/nll"] == pytest.approx(nll, rel=1e-5) == average.metrics["nll"]
    torch.testing.assert_close(posterior.as_module()(x), expected)
    log_p = posterior.to_arviz(TensorSlices(x, y))["log_likelihood"].dataset["y"]
    assert log_p.shape[2] == int(counted.sum())


def test_chains_on_dataloader_share_its_batches_with_one_warning(tmp_path):
    loader = DataLoader(TensorDataset(*toys.tensors()), toys.BATCH)
    build = functools.partial(bdl.Sampler, dynamics=bdl.SGHMC(0.5), num_data=toys.N, lr=0.1)
    module = bdl.BayesianModule(bdl.ChainStack(toys.MLP((3, 3)), 2), build)
    with pytest.warns(BdlWarning, match="share the DataLoader's batches.*TensorBatches") as caught:
        toys.trainer(tmp_path, 2).fit(module, loader)
    assert sum(issubclass(w.category, BdlWarning) for w in caught) == 1
    assert module.net.shared and "share the DataLoader's batches" in module.sampler.explain()
    strict = bdl.BayesianModule(bdl.ChainStack(toys.MLP((3, 3)), 2, shared=False), build)
    with pytest.raises(ConfigError, match="shared=True, .* sends one batch to all"):
        toys.trainer(tmp_path, 2).fit(strict, loader)


@pytest.mark.parametrize("chains", [None, 2])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_sum_is_refused_and_a_mean_is_not(tmp_path, chains, reduction):
    module = toys.module(chains=chains, loss=lambda outputs, y: F.cross_entropy(outputs, y, reduction=reduction))
    fit = functools.partial(toys.trainer(tmp_path, 1).fit, module, toys.batches(chains))
    if reduction == "mean":
        fit()
        return
    with pytest.raises(ConfigError, match=r"adds up the items of a batch: it is .* for 10 items.*reduction=\"mean\""):
        fit()
    assert module.sampler.steps == 0


def test_a_loop_of_ones_own_keeps_samples(tmp_path):
    """The third and fifth states of a plain loop come back as they were; a second loop is refused, or goes on."""
    net, (x, y) = toys.plain(), toys.tensors()
    sampler = bdl.Sampler(net.named_parameters(), bdl.SGHMC(0.5), num_data=toys.N, lr=0.1)
    sampler.full_loss = lambda: F.cross_entropy(net(x), y)
    store, states = bdl.SampleStore(tmp_path), []
    closure = closure_of(sampler, lambda: F.cross_entropy(net(x), y))
    for step in range(1, 6):
        sampler.step(closure)
        if step in (3, 5):
            record = store.append(sampler, net, bdl.CategoricalNLL())
            states.append({k: v.clone() for k, v in net.state_dict().items()})
            energy = toys.N * F.cross_entropy(net(x), y) + sum(p.square().sum() for p in net.parameters()) / 2
            assert record.energy_full == pytest.approx([energy.item()], rel=1e-4) and record.step == step
    posterior = bdl.Posterior.load(tmp_path, toys.plain())
    for state, sample in zip(states, posterior.stream(), strict=True):
        assert all(torch.equal(sample.tensors[k], v) for k, v in state.items())
    probs = posterior.predict(x).probs
    torch.testing.assert_close(
        probs, sum(torch.func.functional_call(net, s, (x,)).softmax(-1) for s in states).detach() / 2
    )
    with pytest.raises(StoreError, match=r"up to step 5, and this sampler is at step 5.*store.truncate\(0, 4\)"):
        store.append(sampler, net, bdl.CategoricalNLL())
    store.truncate(0, 4)
    assert store.append(sampler, net, bdl.CategoricalNLL()).step == 5
