"""What bdl reads of torch's private names agrees with torch's public behaviour, and a torch without them is slower."""

import pytest
import torch
from torch import nn

from bdl import torch_private
from bdl.torch_private import (
    copy_all,
    gather,
    has_hooks,
    has_step_hooks,
    has_tensor_hooks,
    is_compiled,
    replace_compiled,
)


@pytest.mark.parametrize("foreach", [True, False], ids=["", "a torch without it"])
def test_gradients_are_copied_and_missing_ones_are_zero(foreach: bool, monkeypatch):
    if not foreach:
        monkeypatch.setattr(torch_private, "_foreach_copy", None)
    params = [nn.Parameter(torch.zeros(n)) for n in (2, 3, 1)]
    params[0].grad, params[2].grad = torch.tensor([1.0, 2.0]), torch.tensor([3.0])
    out = [torch.full((n,), 9.0) for n in (2, 3, 1)]
    assert gather(params, out) == [1]
    assert torch.cat(out).tolist() == [1, 2, 0, 0, 0, 3]
    copy_all([], [])


@pytest.mark.parametrize(
    "register",
    [
        lambda module: module.register_forward_hook(print),
        lambda module: module.register_forward_pre_hook(print),
        lambda module: module.register_full_backward_hook(print),
        lambda module: module.register_full_backward_pre_hook(print),
        lambda module: nn.modules.module.register_module_forward_hook(print),
    ],
    ids=["forward", "before forward", "backward", "before backward", "of all modules"],
)
def test_hooks_of_a_module_are_seen_while_they_are_there(register):
    module = nn.Linear(2, 1)
    assert not has_hooks(module)
    handle = register(module)
    assert has_hooks(module)
    handle.remove()
    assert not has_hooks(module)


def test_hooks_of_tensors_and_optimizers_are_seen():
    theta = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([theta], 0.1)
    assert not has_tensor_hooks(theta) and not has_step_hooks(optimizer)
    theta.register_hook(lambda grad: None)
    optimizer.register_step_post_hook(lambda *_: None)
    assert has_tensor_hooks(theta) and has_step_hooks(optimizer)


def test_a_compiled_module_is_seen():
    module = nn.Linear(2, 1)
    assert not is_compiled(module)
    module.compile(backend="eager")
    assert is_compiled(module)


def test_a_torch_without_the_names_counts_as_watched():
    class Other:
        pass

    assert has_hooks(Other()) and has_tensor_hooks(Other()) and has_step_hooks(Other()) and is_compiled(Other())


def test_a_compiled_call_is_replaced_or_kept_without_its_name():
    module = nn.Linear(2, 1)
    module.compile(backend="eager")
    replace_compiled(module, lambda compiled, plain: lambda x: (compiled(x), plain(x)))
    first, second = module(torch.ones(1, 2))
    assert torch.equal(first, second)
    replace_compiled(module, None)
    assert not is_compiled(module) and torch.equal(module(torch.ones(1, 2)), first)

    class Other(nn.Module):
        __slots__ = ()
        _compiled_call_impl = property()  # hasattr says no

    other = Other()
    replace_compiled(other, None)
    assert "_compiled_call_impl" not in vars(other)
