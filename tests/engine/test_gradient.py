"""Autograd as one form of the gradient: what it writes, and parameters that have no gradient."""

from __future__ import annotations

import pytest
import torch
import toys
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

import bdl
from bdl.engine.choose import choose_gradient
from bdl.engine.gradient import Autograd
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


class EveryBatch(Callback):
    """A callback of somebody else: it must see every batch."""

    def on_train_batch_end(self, *_):
        pass


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
    for callbacks in ([], [EveryBatch()]):
        module = toys.module(Sometimes(), chains=None, dynamics=bdl.SGHMC(0.5))
        torch.manual_seed(0)
        for layer in (module.net.first, module.net.second, module.net.third):
            layer.reset_parameters()
        start = module.net.third.weight.clone()
        toys.trainer(tmp_path, 30, callbacks).fit(module, toys.batches(None))
        assert torch.equal(module.net.third.weight, start)
        ends.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert torch.equal(*ends)
