"""Tests of `bdl.samplers.backpropagated`, `.closures` and `.given_gradients`: gradients that are not the loss's."""

import gc
import sys
import warnings

import lightning as L
import pytest
import torch
import torch.utils.checkpoint
from closures import closure_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.errors import BdlWarning
from bdl.samplers.backpropagated import leaves_among, nodes_of


@pytest.fixture(autouse=True)
def nothing_was_compiled(monkeypatch):
    if "torch._dynamo.eval_frame" in sys.modules:  # which is slow to import
        monkeypatch.setattr("torch._dynamo.eval_frame.cached_backends", {})


def scaled(loss):
    (1000 * loss).backward()


def by_a_scaler(loss):
    torch.amp.GradScaler("cpu").scale(loss).backward()


def thrice(loss):
    for _ in range(3):
        loss.backward(retain_graph=True)


def thrice_by_hand(loss):
    torch.autograd.backward(3 * loss)


def put(loss, factor=1):
    leaves = leaves_among(nodes_of(loss))
    for leaf, gradient in zip(leaves, torch.autograd.grad(factor * loss, leaves), strict=True):
        leaf.grad = gradient


def put_thrice(loss):
    put(loss, 3)


def in_parts(loss):
    for _ in range(2):
        (loss / 2).backward(retain_graph=True)


def by_hand(loss):
    torch.autograd.backward(loss)


def steps(back, chains=None):
    net = nn.Linear(3, 1) if chains is None else bdl.ChainStack(nn.Linear(3, 1), chains, shared=True)
    plain = net if chains is None else net.net
    sampler = bdl.Sampler(plain.named_parameters(), bdl.SGHMC(), num_data=40, lr=0.01, chains=chains)
    x = torch.randn(40, 3)
    for _ in range(3):

        def closure():
            sampler.zero_grad()
            loss = net(x).square().mean(-1).mean(-1)
            back(loss if chains is None else loss.sum())
            return loss

        sampler.step(closure)
    return sampler.steps


@pytest.mark.parametrize("chains", [None, 2])
@pytest.mark.parametrize("back", [scaled, by_a_scaler, thrice, thrice_by_hand, put_thrice])
def test_a_gradient_that_is_not_the_loss_s_is_told_once(back, chains):
    with pytest.warns(BdlWarning, match="back-propagate the loss that you return, once and unscaled") as said:
        steps(back, chains)
    assert len(said) == 1 and said[0].filename == __file__


@pytest.mark.parametrize("chains", [None, 2])
@pytest.mark.parametrize("back", [torch.Tensor.backward, in_parts, by_hand, put])
def test_other_ways_to_the_same_gradient_pass(back, chains):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert steps(back, chains) == 3


def clipped(loss):
    loss.backward()
    torch.nn.utils.clip_grad_value_(leaves_among(nodes_of(loss)), 1e-9)


def replaced(loss):
    loss.backward()
    for leaf in leaves_among(nodes_of(loss)):
        leaf.grad = leaf.grad / 2


@pytest.mark.parametrize("back", [clipped, replaced])
@pytest.mark.parametrize("chains", [None, 2])
def test_gradients_that_are_changed_afterwards_are_told_once(back, chains):
    with pytest.warns(BdlWarning, match="changes the gradients after they are back-propagated") as told:
        steps(back, chains)
    assert len(told) == 1


@pytest.mark.parametrize("zeroes", [False, True])
def test_gradients_that_nobody_zeroes_are_told_once(zeroes):
    """Those of a batch in two parts are none of them: zeroed before the first part, that is."""
    net, x = nn.Linear(3, 1), torch.randn(40, 3)
    sampler = bdl.Sampler(net.named_parameters(), bdl.SGHMC(), num_data=40, lr=0.01)

    def closure():
        loss = net(x).square().mean()
        (loss / 2 if zeroes else loss).backward()
        return loss.detach() / 2 if zeroes else loss

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            if zeroes:
                sampler.zero_grad()
                (net(x).square().mean() / 2).backward()
            sampler.step(closure)
    told = [str(w.message) for w in said if issubclass(w.category, BdlWarning)]
    assert len(told) == (not zeroes) and all("adds to the gradients of the step before" in line for line in told)


def told_by(step, num_data=40):
    """The warnings of four steps of `step(net, sampler)`."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    sampler = bdl.Sampler(net.named_parameters(), bdl.SGHMC(), num_data=num_data, lr=1e-4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(4):
            step(net, sampler)
    assert all(w.filename == __file__ for w in said)
    return [str(w.message) for w in said]


def on_weights(net, factor):
    net[0].weight.register_hook(lambda g: None if factor is None else factor * g)


def on_a_module(net, factor):
    net[2].register_full_backward_hook(lambda m, sent, got: factor and tuple(factor * g for g in sent))


def scale(p, factor):
    if factor is not None:
        p.grad.mul_(factor)


def after_the_sum(net, factor):
    net[0].weight.register_post_accumulate_grad_hook(lambda p: scale(p, factor))


def before_a_module(net, factor):
    net[2].register_full_backward_pre_hook(lambda m, got: factor and tuple(factor * g for g in got))


def on_an_activation(net, factor):
    def hooked(m, x, out):
        out.register_hook(lambda g: None if factor is None else factor * g)

    net[1].register_forward_hook(hooked)


@pytest.mark.parametrize("factor", [None, 100])
@pytest.mark.parametrize("hook", [on_weights, after_the_sum, on_a_module, before_a_module, on_an_activation])
def test_hooks_that_change_gradients_are_told_and_those_that_read_them_pass(hook, factor):
    def step(net, sampler):
        if sampler.steps == 0:
            hook(net, factor)
        x = torch.randn(10, 3)
        sampler.step(closure_of(sampler, lambda: net(x).square().mean()))

    told = told_by(step)
    assert len(told) == (factor is not None) and all("a hook changes gradients while they are" in line for line in told)


def test_a_checkpoint_that_makes_a_pass_within_a_pass_is_no_second_one():
    def step(net, sampler):
        x = torch.randn(10, 3, requires_grad=True)
        checkpoint = torch.utils.checkpoint.checkpoint
        sampler.step(closure_of(sampler, lambda: checkpoint(net, x, use_reentrant=True).square().mean()))

    assert told_by(step) == []


def mse(outputs, y, reduction="sum"):
    return nn.functional.mse_loss(outputs, y, reduction=reduction)


SUMS = [
    mse,
    lambda outputs, y: (outputs - y).square().sum(),
    lambda outputs, y: 0.5 * (outputs - y).abs().sum(),
    lambda outputs, y: nn.functional.binary_cross_entropy_with_logits(outputs, y.sigmoid(), reduction="sum"),
    lambda outputs, y: bdl.GaussianNLL(0.3)(outputs, y).sum(),
    lambda outputs, y: bdl.PoissonNLL()(outputs, y.square().round()).sum(),
]
MEANS = [
    lambda outputs, y: mse(outputs, y) / len(y),
    lambda outputs, y: 0.1 * mse(outputs, y),
    lambda outputs, y: mse(outputs, y, "mean"),
    lambda outputs, y: ((outputs - y).square() * torch.full((10, 1), 0.1)).sum(),
    lambda outputs, y: (outputs - y).square().mean(0).sum(),
    lambda outputs, y: bdl.GaussianNLL(0.3)(outputs, y).mean(),
    lambda outputs, y: 0.1 * bdl.PoissonNLL()(outputs, y.square().round()).sum(),
    lambda outputs, y: (outputs - y).square().sum(-1).mean(),
]


@pytest.mark.parametrize("loss, told", [*((loss, True) for loss in SUMS), *((loss, False) for loss in MEANS)])
def test_a_sum_over_the_items_is_told(loss, told):
    def step(net, sampler):
        x = torch.randn(10, 3)
        sampler.step(closure_of(sampler, lambda: loss(net(x), x[:, :1])))

    lines = told_by(step)
    assert len(lines) == told and all(
        "a sum over (10," in line and "take the mean over the items" in line for line in lines
    )
    assert told_by(step, num_data=1) == []  # N = 1 is how one gives the energy itself


def test_a_closure_that_returns_a_multiple_of_a_likelihood_is_told():
    def step(net, sampler):
        sampler.step(closure_of(sampler, lambda: 1000 * normal(net(torch.randn(10, 3))).mean()))

    assert ["the closure back-propagates 1000 times" in line for line in told_by(step)] == [True]


@pytest.mark.parametrize("factor", [1, 30])
def test_a_multiple_is_told_of_chains_too(factor, recwarn):
    net, x = bdl.ChainStack(nn.Linear(3, 1), 2, shared=True), torch.randn(40, 3)
    sampler = bdl.Sampler(net.net.named_parameters(), bdl.SGHMC(), num_data=40, lr=1e-4, chains=2)
    for _ in range(3):
        sampler.zero_grad()
        (factor * bdl.GaussianNLL(0.3)(net(x), x[:, :1]).mean(-1)).sum().backward()
        sampler.step()
    assert ["30 times the mean loss" in str(w.message) for w in recwarn] == [True] * (factor > 1)


def by_itself(net, sampler):
    net(torch.randn(10, 3)).square().mean().backward()


def after_zeros(net, sampler):
    sampler.zero_grad(set_to_none=False)
    by_itself(net, sampler)


def by_the_network(net, sampler):
    net.zero_grad()
    by_itself(net, sampler)
    by_itself(net, sampler)


def and_clips(net, sampler):
    by_the_network(net, sampler)
    nn.utils.clip_grad_norm_(net.parameters(), 1e-3)


def and_unscales(net, sampler):
    scaler = torch.amp.GradScaler("cpu")
    sampler.zero_grad()
    scaler.scale(net(torch.randn(10, 3)).square().mean()).backward()
    scaler.unscale_(sampler)


def of(loss):
    def loop(net, sampler):
        sampler.zero_grad()
        loss(net(torch.randn(10, 3))).backward()

    return loop


def and_averages(net, sampler):
    by_the_network(net, sampler)
    for p in net.parameters():
        p.grad.div_(2)


def with_another(net, sampler):
    """A discriminator of one's own is no parameter of the chain."""
    other = nn.Linear(3, 1)
    by_the_network(net, sampler)
    (100 * cross_entropy(other(torch.randn(10, 3)))).backward()
    nn.utils.clip_grad_norm_(other.parameters(), 1e-3)


def cross_entropy(out, reduction="mean"):
    return nn.functional.cross_entropy(torch.cat([out, -out], 1), torch.ones(len(out)).long(), reduction=reduction)


def hooked_after(factor):
    def loop(net, sampler):
        if sampler.steps == 0:
            net[0].weight.register_post_accumulate_grad_hook(lambda p: scale(p, factor))
        of(lambda out: out.square().mean())(net, sampler)

    return loop


def normal(out):
    return bdl.GaussianNLL(0.3)(out, torch.zeros(len(out), 1))


LOOPS = [
    (of(lambda out: normal(out).sum()), "the loop back-propagates a sum over (10,"),
    (of(lambda out: 40 * normal(out).mean()), "the loop back-propagates 40 times the mean loss"),
    (of(lambda out: normal(out).sum() / 10), None),
    (of(lambda out: out.square().sum()), "the loop back-propagates a sum over (10, 1): take the mean"),
    (of(lambda out: cross_entropy(out, "sum")), "the loop back-propagates a sum over (10,"),
    (of(lambda out: 1000 * cross_entropy(out)), "the loop back-propagates 1000 times the mean loss"),
    (of(lambda out: cross_entropy(out, "none").mean() * 3 * 2), "the loop back-propagates 6 times the mean loss"),
    (of(lambda out: 40 * out.square().mean()), "the loop back-propagates 40 times the mean loss"),
    (of(lambda out: cross_entropy(out) / 4), None),
    (of(lambda out: 12.5 * out.square().mean()), None),  # a normal law of std 0.2
    (of(lambda out: cross_entropy(out) + 0.1 * out.square().mean()), None),
    (hooked_after(10), "a hook changes gradients"),
    (hooked_after(None), None),
    (and_averages, None),
    (with_another, None),
    (by_itself, "loss.backward() adds to the gradients of the step before"),
    (and_clips, "the loop changes the gradients after they are back-propagated"),
    (after_zeros, None),
    (by_the_network, None),
    (and_unscales, None),
]


@pytest.mark.parametrize("loop, words", LOOPS)
def test_what_a_loop_without_a_closure_does_to_the_gradients_is_told_once(loop, words):
    def step(net, sampler):
        loop(net, sampler)
        sampler.step()

    told = told_by(step)
    assert len(told) == (words is not None) and all(words in line for line in told)


@pytest.mark.parametrize("hook", [on_weights, after_the_sum, on_a_module, before_a_module, on_an_activation])
def test_hooks_are_told_in_a_loop_without_a_closure(hook):
    def step(net, sampler):
        if sampler.steps == 0:
            hook(net, 100)
        by_the_network(net, sampler)
        sampler.step()

    assert [line[:22] for line in told_by(step)] == ["a hook changes gradien"]


def test_torch_s_functions_are_its_own_again():
    """After the first steps, after a sampler that makes no second one, and with watches that end in any order."""
    plain = torch.autograd.backward, torch.autograd.grad
    nets = [nn.Linear(3, 1) for _ in range(3)]
    samplers = [bdl.Sampler(net.named_parameters(), bdl.SGHMC(), num_data=40, lr=0.01) for net in nets]
    for k in (1, 3, 2):  # the first sampler makes one step, the others all three
        for net, sampler in list(zip(nets, samplers, strict=True))[3 - k :]:
            by_the_network(net, sampler)
            sampler.step()
    assert torch.autograd.backward is not plain[0]
    for _ in range(3):
        for net, sampler in zip(nets[1:], samplers[1:], strict=True):
            by_the_network(net, sampler)
            sampler.step()
    del samplers, sampler
    gc.collect()
    assert (torch.autograd.backward, torch.autograd.grad) == plain


class Trained(L.LightningModule):
    def __init__(self, factor):
        super().__init__()
        self.net, self.factor = nn.Linear(3, 1), factor

    def training_step(self, batch, batch_idx):
        return self.net(batch[0]).square().mean()

    def backward(self, loss, *args, **kwargs):
        (self.factor * loss).backward()

    def configure_optimizers(self):
        return bdl.Sampler(self.named_parameters(), bdl.SGHMC(), num_data=40, lr=0.01)


def fit(folder, module, **trainer):
    L.Trainer(
        max_steps=3, max_epochs=-1, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=folder,
        callbacks=[bdl.CollectSamples(bdl.schedules.EveryStep(1, 1))], **trainer,
    ).fit(module, DataLoader(TensorDataset(torch.randn(40, 3)), 10, shuffle=True))  # fmt: skip


@pytest.mark.parametrize("factor, parts, told", [(1, 1, 0), (3, 1, 1), (1, 2, 0)])
def test_a_module_that_scales_its_loss_is_told(tmp_path, factor, parts, told):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fit(tmp_path, Trained(factor), accumulate_grad_batches=parts, gradient_clip_val=1e-3)
    assert sum("once and unscaled" in str(w.message) for w in said) == told
    assert not any("changes the gradients" in str(w.message) for w in said)


class Hooked(Trained):
    """A module whose gradients change in one of Lightning's hooks, or in its graph."""

    def __init__(self, hook):
        super().__init__(1)
        self.hook = hook
        if hook == "register_hook":
            self.net.weight.register_hook(lambda g: 10 * g)

    def _scale(self, hook):
        for p in self.parameters():
            if self.hook == hook:
                p.grad.mul_(10)

    def on_after_backward(self):
        self._scale("on_after_backward")

    def on_before_optimizer_step(self, optimizer):
        self._scale("on_before_optimizer_step")

    def configure_gradient_clipping(self, *_, **__):
        self._scale("configure_gradient_clipping")


HOOKS = ["on_after_backward", "on_before_optimizer_step", "configure_gradient_clipping", "register_hook", "none"]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_module_that_changes_its_gradients_is_told(tmp_path, hook, parts):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fit(tmp_path, Hooked(hook), accumulate_grad_batches=parts)
    told = [str(w.message) for w in said if issubclass(w.category, BdlWarning)]
    words = ("the gradient is not the loss's", "a hook changes", "changes the gradients after")
    wanted = {"none": [False] * 3, "register_hook": [True, True, False]}.get(hook, [False, False, True])
    assert [any(each in line for line in told) for each in words] == wanted


def test_a_kernel_that_calls_the_closure_often_tells_it_once():
    net, x = nn.Linear(3, 1), torch.randn(40, 3)
    sampler = bdl.Sampler(net.named_parameters(), bdl.HMC(5), num_data=40, lr=0.01)

    def closure():
        sampler.zero_grad()
        loss = net(x).square().mean()
        scaled(loss)
        return loss

    with pytest.warns(BdlWarning, match="once and unscaled") as said:
        sampler.step(closure)
    assert len(said) == 1


def test_a_compiled_network_is_compiled_once():
    """What runs in another function mode than before is compiled again."""
    net, x, graphs = nn.Linear(3, 1), torch.randn(40, 3), []
    fast = torch.compile(net, backend=lambda graph, _: graphs.append(graph) or graph.forward)
    sampler = bdl.Sampler(net.named_parameters(), bdl.SGHMC(), num_data=40, lr=0.01)
    closure = closure_of(sampler, lambda: fast(x).square().mean())
    for _ in range(3):
        sampler.step(closure)
    assert len(graphs) == 1
