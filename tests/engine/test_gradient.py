"""Autograd as one form of the gradient, and networks in turn: what they write, and parameters without a gradient."""

import pytest
import torch
import toys
from torch import Tensor, nn

import bdl
from bdl.engine.choose import choose_gradient, of_stack
from bdl.engine.gradient import Autograd, InTurn
from bdl.errors import ConfigError
from bdl.models import MLP

NLL = bdl.CategoricalNLL()


class Sometimes(nn.Module):
    """A network that leaves out its second layer where the first input is negative, and its third always."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return h if float(x[0, 0]) < 0 else self.second(h)


def test_every_form_writes_the_same_gradients():
    stack = bdl.ChainStack(MLP((3, 5, 3)), 2, seed=1, shared=True).double()
    x, y = toys.tensors(9)
    results = []
    for loss in (NLL, nn.CrossEntropyLoss()):
        for gradient in (choose_gradient(stack, loss, compiled=False), choose_gradient(stack, loss, False, None)):
            out = [torch.full_like(p, torch.nan) for p in gradient.params]
            results.append([gradient.write(x.double(), y, out), *out])
    by_autograd = Autograd(lambda x, y: NLL(stack(x), stack.per_chain(y)).mean(-1), list(stack.parameters()))
    out = [torch.full_like(p, torch.nan) for p in by_autograd.params]
    expected = [by_autograd.write(x.double(), y, out), *out]
    for result in results:
        torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)


class Passes(nn.Module):
    """A layer that notes the passes through it, forward and backward."""

    def __init__(self, seen: list[str]):
        super().__init__()
        self.layer, self.seen = nn.Linear(3, 3), seen

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append("forward")
        h = self.layer(x)
        if h.requires_grad:
            h.register_hook(lambda _: self.seen.append("backward"))
        return h


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.parametrize("loss", [NLL, nn.CrossEntropyLoss()], ids=repr)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("only", [None, "4.*", "[14].*"])
def test_networks_in_turn_have_autograds_results_and_random_bits(only, shared, loss):
    results = []
    for form in (choose_gradient, of_stack):
        torch.manual_seed(0)
        stack = bdl.ChainStack(normed(), 3, seed=1, shared=shared, only=only, method="loop")
        x, y = toys.tensors(9)
        gradient = form(stack, loss)
        assert type(gradient) is (InTurn if form is choose_gradient else Autograd)
        x, y = (x, y) if shared else (x.expand(3, 9, 3) * torch.arange(1, 4).view(3, 1, 1), y.expand(3, 9))
        out = [torch.full_like(p, torch.nan) for p in gradient.params]
        losses = gradient.write(x, y, out)
        assert not gradient.idle and all(p.grad is None for p in stack.parameters()) == (form is choose_gradient)
        results.append([losses, *out, *stack.buffers(), torch.rand(3)])
    torch.testing.assert_close(results[0], results[1])


def test_a_network_goes_back_before_the_next_one_runs():
    seen: list[str] = []
    stack = bdl.ChainStack(lambda: nn.Sequential(Passes(seen), nn.LayerNorm(3)), 2, shared=True)
    gradient = choose_gradient(stack, NLL)
    gradient.write(*toys.tensors(9), [torch.empty_like(p) for p in gradient.params])
    assert seen == ["forward", "backward"] * 2


def test_networks_in_turn_name_the_parameters_without_a_gradient():
    """A parameter that one chain uses is not idle: its gradient is 0 in the others."""
    stack, (x, y) = bdl.ChainStack(Sometimes, 2), toys.tensors(4)
    gradient, x = choose_gradient(stack, NLL), torch.stack([x, x])
    x[:, 0, 0] = torch.tensor([-1.0, 1.0])
    out = [torch.full_like(p, torch.nan) for p in gradient.params]
    gradient.write(x, y.expand(2, 4), out)
    assert list(gradient.idle) == [4, 5] and not out[2][0].any() and out[2][1].any() and not out[4].any()


def test_sparse_gradients_of_networks_in_turn_are_refused():
    stack = bdl.ChainStack(nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.LayerNorm(3)), 2, shared=True)
    gradient = choose_gradient(stack, NLL)
    with pytest.raises(ConfigError, match="sparse=False"):
        gradient.write(torch.arange(5), torch.zeros(5).long(), [torch.empty_like(p) for p in gradient.params])


def test_a_stack_whose_gradients_are_watched_is_left_to_autograd():
    stack = bdl.ChainStack(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), 2, shared=True)
    assert type(choose_gradient(stack, NLL)) is InTurn
    next(stack.parameters()).register_hook(lambda g: 2 * g)
    assert type(choose_gradient(stack, NLL)) is Autograd


@pytest.mark.parametrize("first", [-1.0, 1.0])
def test_autograd_names_the_parameters_without_a_gradient(first):
    net, (x, y) = Sometimes(), toys.tensors(4)
    x[0, 0] = first
    gradient = Autograd(lambda x, y: nn.functional.cross_entropy(net(x), y), list(net.parameters()))
    out = [torch.full_like(p, torch.nan) for p in gradient.params]
    gradient.write(x, y, out)
    assert list(gradient.idle) == ([2, 3, 4, 5] if first < 0 else [4, 5])
    assert [bool(g.any()) for g in out] == [i not in gradient.idle for i in range(6)]


@pytest.mark.filterwarnings("ignore:.*have no gradient at step")
def test_parameters_that_rest_in_some_steps_do_so_inside_a_block(tmp_path):
    ends = []
    for callbacks in ([], [toys.EveryBatch()]):
        module = toys.module(Sometimes(), chains=None, dynamics=bdl.SGHMC(0.5))
        torch.manual_seed(0)
        for layer in (module.net.first, module.net.second, module.net.third):
            layer.reset_parameters()
        start = module.net.third.weight.clone()
        toys.trainer(tmp_path, 30, callbacks).fit(module, toys.batches(None))
        assert torch.equal(module.net.third.weight, start)
        ends.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert torch.equal(*ends)
