"""Tests of `bdl.engine.mlp_kernel` and `.mlp_library`.

The compiled MLP gradient: equal to autograd in float64, independent of the other chains and of memory, optional.
"""

import copy
import platform

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bdl
from bdl import native
from bdl.engine import mlp_library
from bdl.engine.choose import choose_gradient
from bdl.engine.mlp_gradient import MLPGradient
from bdl.engine.mlp_kernel import MLPKernel
from bdl.engine.mlp_library import MLP_SOURCE
from bdl.errors import ConfigError
from bdl.likelihoods import mean_loss
from bdl.samplers.buffer import ParameterBuffer

NLL = bdl.CategoricalNLL()
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "sigmoid": nn.Sigmoid, "silu": nn.SiLU, "none": nn.Identity}

pytestmark = pytest.mark.skipif(native.load(MLP_SOURCE) is None, reason="no C compiler")


def network(sizes, activation="tanh", bias=True, last=False) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(wide, narrow, bias=bias), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers) if last else nn.Sequential(*layers[:-1])


def in_buffer(net: nn.Module, chains: int, **arguments) -> tuple[bdl.ChainStack, torch.Tensor, list[torch.Tensor]]:
    """A stack whose parameters are views of one buffer (C, d), as a Sampler makes them; g (C, d), and g's views."""
    stack = bdl.ChainStack(net, chains, seed=3, **arguments)
    buffer = ParameterBuffer(list(stack.parameters()), [n for n, _ in stack.named_parameters()], chains)
    g = torch.full_like(buffer.theta, torch.nan)
    return stack, g, buffer.split(g)


def batch(chains: int, items: int, features: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(chains + items)
    x = torch.randn(chains, items, features, generator=stream)
    return x, torch.randint(classes, (chains, items), generator=stream)


def exact(stack: bdl.ChainStack, x, y, loss) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The losses and gradients by autograd in float64."""
    twin = copy.deepcopy(stack).double()
    y = y.double() if y.is_floating_point() else y
    losses = mean_loss(loss, twin(x.double()), y, stack.chains)
    losses.sum().backward()
    return losses.detach(), [p.grad for p in twin.parameters() if p.grad is not None]


def kernel_of(stack: bdl.ChainStack, loss=NLL) -> MLPKernel:
    kernel = choose_gradient(stack, loss, compiled=True)
    assert isinstance(kernel, MLPKernel)
    return kernel


def assert_near(got, wanted, tolerance=2e-5) -> None:
    """Errors relative to the largest number of their tensor.

    A hidden value that is a small difference of large numbers keeps their rounding errors, some 1e-7 of them, which
    reach every tensor: hence the share of the largest number of all.
    """
    rest = 0.025 * tolerance * max(b.abs().max() for b in wanted)
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape and (a.double() - b).abs().max() <= tolerance * b.abs().max() + rest


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=5),
    chains=st.integers(1, 9),
    items=st.integers(1, 130),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    bias=st.booleans(),
    last=st.booleans(),
)
def test_losses_and_gradients_are_autograds(sizes, chains, items, activation, bias, last):
    stack, g, views = in_buffer(network(sizes, activation, bias, last), chains)
    x, y = batch(chains, items, sizes[0], sizes[-1])
    if activation == "relu":  # exact sums, because a rounding error that changes a sign changes the gradient
        x = (4 * x).round() / 4
        for p in stack.parameters():
            p.data.copy_(torch.randint(-1, 2, p.shape, generator=torch.Generator().manual_seed(items)) / 4)
    losses, gradients = exact(stack, x, y, NLL)
    kernel = kernel_of(stack)
    got = kernel.write(x, y, views)
    assert (got - losses).abs().max() <= 2e-5 * losses.abs().max().clamp_min(0.1)
    if sizes[-1] > 1:  # the gradient of one class is zero
        assert_near(views, gradients)
    assert g.isfinite().all()


LAWS = [  # computed in C
    bdl.CategoricalNLL(), bdl.GaussianNLL(std=0.5), bdl.HeteroscedasticNLL(), bdl.HeteroscedasticNLL(min_std=0.3),
    bdl.HeteroscedasticNLL(outliers=0.01), bdl.HeteroscedasticNLL(min_std=0.3, outliers=0.2),
]  # fmt: skip


def targets(loss, shape: tuple[int, int], outputs: int) -> torch.Tensor:
    stream = torch.Generator().manual_seed(sum(shape))
    if isinstance(loss, bdl.CategoricalNLL):
        return torch.randint(outputs, shape, generator=stream)
    y = torch.randn(*shape, outputs // getattr(loss, "per_target", 1), generator=stream)
    if isinstance(loss, bdl.HurdleNLL):
        return y.clamp_min(0)
    return y.exp() if isinstance(loss, bdl.LogNormalNLL | bdl.GammaNLL) else y


OTHERS = [
    bdl.HeteroscedasticNLL("softplus"), bdl.LogNormalNLL(), bdl.GammaNLL(),
    bdl.HurdleNLL((0.0, 9.0), (0.0, 0.0), low=0.0), nn.MSELoss(),
]  # fmt: skip


@pytest.mark.parametrize("loss", [*LAWS, *OTHERS], ids=repr)
@pytest.mark.parametrize("items", [1, 21, 256, 257, 700])
@pytest.mark.parametrize("activation", ["tanh", "silu"])
def test_every_loss_in_batches_of_one_block_and_of_several(loss, items, activation):
    """Other losses than the three go through torch, between forward and backward over the whole batch."""
    stack, g, views = in_buffer(network((7, 9, 4), activation), 3)
    x, _ = batch(3, items, 7, 4)
    y = targets(loss, (3, items), 4)
    losses, gradients = exact(stack, x, y, loss)
    kernel = kernel_of(stack, loss)
    assert (kernel._law(x, y) is not None) == (loss in LAWS)
    assert_near([kernel.write(x, y, views), *views], [losses, *gradients])


def test_targets_may_be_a_column_or_lie_in_another_order():
    stack, g, views = in_buffer(network((7, 9, 2)), 3)
    x, loss = batch(3, 300, 7, 2)[0], bdl.HeteroscedasticNLL()
    y = torch.randn(300, 3).mT
    losses, gradients = exact(stack, x, y, loss)
    kernel = kernel_of(stack, loss)
    for same in (y, y.contiguous(), y.unsqueeze(-1)):
        assert_near([kernel.write(x, same, views), *views], [losses, *gradients])
    with pytest.raises(ConfigError, match="do not fit"):
        kernel.write(x, torch.randn(3, 300, 2), views)
    with pytest.raises(ConfigError, match="do not fit"):
        kernel.write(x, y[:, :299], views)


@pytest.mark.parametrize("loss", LAWS, ids=repr)
def test_a_number_that_is_no_number_reaches_loss_and_gradient(loss):
    stack, g, views = in_buffer(network((7, 9, 4)), 3)
    x, _ = batch(3, 300, 7, 4)
    x[1, 290] = torch.nan
    losses = kernel_of(stack, loss).write(x, targets(loss, (3, 300), 4), views)
    assert losses.isfinite().tolist() == [True, False, True]
    assert g.isfinite().all(1).tolist() == [True, False, True]


@pytest.mark.parametrize("chains", [1, 4])
def test_one_batch_for_all_chains(chains):
    stack, g, views = in_buffer(network((6, 5, 3)), chains, shared=True)
    x, y = batch(1, 17, 6, 3)
    losses, gradients = exact(stack, x[0], y.expand(chains, 17), NLL)
    got = kernel_of(stack).write(x[0], y[0], views)
    assert_near([got, *views], [losses, *gradients])


def test_images_and_inputs_in_another_memory_order():
    stack, g, views = in_buffer(network((12, 5, 3)), 2)
    x, y = batch(2, 10, 12, 3)
    losses, gradients = exact(stack, x, y, NLL)
    kernel = kernel_of(stack)
    for same in (x.view(2, 10, 3, 2, 2), x.mT.contiguous().mT, x.transpose(0, 1).contiguous().transpose(0, 1)):
        labels = y.mT.contiguous().mT
        assert_near([kernel.write(same, labels, views), *views], [losses, *gradients])


@pytest.mark.parametrize("activation, function", [("tanh", torch.tanh), ("sigmoid", torch.sigmoid)])
def test_activations_are_accurate_to_the_last_digits_everywhere(activation, function):
    """Sizes from 1e-30 to 100, both signs: tanh(x) near zero is x, with the relative error of any other x."""
    size = torch.logspace(-30, 2, 20001)
    x = torch.cat([size, -size]).view(1, -1, 1)
    net = nn.Sequential(nn.Linear(1, 1, bias=False), ACTIVATIONS[activation]())
    stack, g, views = in_buffer(net, 1)
    with torch.no_grad():
        stack.net[0].weight.fill_(1.0)
    seen = []

    def loss(outputs, y):
        seen.append(outputs.detach().clone())
        return outputs.mean()

    kernel_of(stack, loss).write(x, torch.zeros(x.shape[:2]), views)
    wanted = function(x.double()).flatten()
    assert ((seen[0].flatten().double() - wanted).abs() <= 5e-7 * wanted.abs() + 1e-37).all()


def test_large_logits_have_finite_losses():
    stack, g, views = in_buffer(network((4, 3)), 2)
    x, y = batch(2, 9, 4, 3)
    x = 1e4 * x
    losses, gradients = exact(stack, x, y, NLL)
    assert_near([kernel_of(stack).write(x, y, views), *views], [losses, *gradients])


def test_a_network_that_is_sure_has_autograds_gradients():
    """Softmax probabilities down to 1e-44: products of subnormal numbers, which the kernel takes for zero."""
    stack, g, views = in_buffer(network((6, 16, 4), "relu"), 3)
    x, y = batch(3, 300, 6, 4)
    x = torch.linspace(1, 100, 300).view(1, -1, 1) * x
    losses, gradients = exact(stack, x, y, NLL)
    assert_near([kernel_of(stack).write(x, y, views), *views], [losses, *gradients])


@pytest.mark.skipif(platform.machine() not in {"x86_64", "aarch64"}, reason="another CPU keeps subnormal numbers")
@pytest.mark.parametrize("loss", [NLL, lambda outputs, _: outputs[:, 0].mean()], ids=["inside", "by autograd"])
def test_subnormal_numbers_are_zero_in_a_call_and_kept_outside(loss):
    stack, g, views = in_buffer(nn.Sequential(nn.Linear(1, 2, bias=False)), 1)
    small = torch.full((1, 8, 1), 1e-39)
    kernel_of(stack, loss).write(small, torch.zeros(1, 8, dtype=torch.int64), views)
    assert (g == 0).all()  # a share of the inputs' mean
    assert (small * 0.5).min() > 0


def test_a_chain_does_not_see_how_many_there_are():
    stack, g, views = in_buffer(network((13, 11, 7)), 5)
    x, y = batch(5, 37, 13, 7)
    losses = kernel_of(stack).write(x, y, views)
    for c in range(5):
        alone, own, own_views = in_buffer(network((13, 11, 7)), 1)
        alone.load_state_dict({k: v[c : c + 1] for k, v in stack.state_dict().items()})
        loss = kernel_of(alone).write(x[c : c + 1], y[c : c + 1], own_views)
        assert torch.equal(loss[0], losses[c]) and torch.equal(own[0], g[c])


@pytest.mark.parametrize("shift", [1, 3, 5])
def test_alignment_and_place_of_the_gradients_change_no_bit(shift):
    stack, g, views = in_buffer(network((13, 11, 7)), 3)
    x, y = batch(3, 37, 13, 7)
    kernel = kernel_of(stack)
    losses = kernel.write(x, y, views)
    moved = torch.empty(x.numel() + shift)[shift:].view_as(x).copy_(x)
    gradients = [torch.empty(p.shape) for p in kernel.params]
    again = kernel.write(moved, y, gradients)
    assert torch.equal(again, losses)
    assert all(torch.equal(a, b) for a, b in zip(gradients, views, strict=True))


def test_the_way_through_autograd_has_the_same_bits():
    stack, g, views = in_buffer(network((13, 11, 7)), 3)
    x, y = batch(3, 37, 13, 7)
    kernel = kernel_of(stack)
    losses = kernel.write(x, y, views)
    through = kernel.losses(x, y)
    through.sum().backward()
    assert torch.equal(through, losses)
    assert all(torch.equal(p.grad, view) for p, view in zip(kernel.params, views, strict=True))


def test_the_kernel_follows_parameters_and_batches_that_change():
    stack, g, views = in_buffer(network((6, 5, 3)), 2)
    kernel = kernel_of(stack)
    for items in (8, 100, 3):
        x, y = batch(2, items, 6, 3)
        for p in stack.parameters():
            p.data = 2 * p.data  # new memory, and no longer one buffer
        losses, gradients = exact(stack, x, y, NLL)
        assert_near([kernel.write(x, y, views), *views], [losses, *gradients])


def test_a_bad_batch_leaves_nothing_for_the_next():
    """The second batch is shorter, and a row of scratch still holds numbers of the first beyond its end."""
    stack, g, views = in_buffer(network((5, 4, 3), "none"), 2)
    kernel = kernel_of(stack)
    x, y = batch(2, 16, 5, 3)
    x[:, 11:] = torch.nan
    assert kernel.write(x, y, views).isnan().all()
    x, y = x[:, :11].contiguous(), y[:, :11]
    losses, gradients = exact(stack, x, y, NLL)
    assert_near([kernel.write(x, y, views), *views], [losses, *gradients])


def test_a_copy_has_its_own_parameters():
    stack, g, views = in_buffer(network((6, 5, 3)), 2)
    x, y = batch(2, 8, 6, 3)
    kernel = kernel_of(stack)
    before = kernel.write(x, y, views)
    twin = copy.deepcopy(kernel)
    with torch.no_grad():
        stack.net[1].weight.zero_()
    assert torch.equal(twin.losses(x, y), before)
    assert not torch.equal(kernel.losses(x, y), before)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("activation", ["relu", "silu", "none"])
def test_inputs_that_are_not_finite_show_in_loss_of_their_chain(activation, bad):
    stack, g, views = in_buffer(network((5, 4, 3), activation), 2)
    x, y = batch(2, 11, 5, 3)
    x[1, 10, 0] = bad
    losses = kernel_of(stack).write(x, y, views)
    eager = choose_gradient(stack, NLL, compiled=False).write(x, y, [v.clone() for v in views])
    assert losses.isfinite().tolist() == eager.isfinite().tolist() == [True, False]
    assert g[0].isfinite().all() and not g[1].isfinite().all()


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_parameters_that_are_nan_show_in_the_loss(activation):
    stack, g, views = in_buffer(network((5, 4, 3), activation), 2)
    x, y = batch(2, 11, 5, 3)
    with torch.no_grad():
        stack.net[1].weight[1, 2, 3] = torch.nan
    losses = kernel_of(stack).write(x, y, views)
    assert losses.isfinite().tolist() == [True, False] and g[1].isnan().any()


@pytest.mark.parametrize("label", [-1, 3, -100, 2**62, -(2**62)])
def test_a_label_that_is_no_class_is_refused(label):
    stack, g, views = in_buffer(network((5, 4, 3)), 2)
    x, y = batch(2, 11, 5, 3)
    y[1, 10] = label
    with pytest.raises(ConfigError, match=rf"label {label} is not one of the network's 3 classes"):
        kernel_of(stack).write(x, y, views)
    assert g.isnan().all()


@pytest.mark.parametrize("shape", [(2, 10), (1, 11), (11,)])
def test_labels_of_another_shape_are_refused(shape):
    stack, g, views = in_buffer(network((5, 4, 3)), 2)
    x, _ = batch(2, 11, 5, 3)
    with pytest.raises(ConfigError, match="do not match a batch of shape"):
        kernel_of(stack).write(x, torch.zeros(shape, dtype=torch.int64), views)


def frozen() -> nn.Module:
    net = network((5, 4, 3))
    net[1].bias.requires_grad_(False)
    return net


EAGER = {
    "float64": lambda: network((5, 4, 3)).double(),
    "frozen": frozen,
    "another activation": lambda: nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 3)),
    "two activations": lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.ReLU(), nn.Linear(4, 3)),
    "large": lambda: nn.Sequential(nn.Linear(5, 20000), nn.Tanh(), nn.Linear(20000, 3)),
    "activation first": lambda: nn.Sequential(nn.Tanh(), nn.Linear(5, 3)),
}


@pytest.mark.parametrize("name", EAGER)
def test_other_layers_and_types_run_eagerly(name):
    assert type(choose_gradient(bdl.ChainStack(EAGER[name](), 2), NLL, compiled=True)) is MLPGradient


def test_inputs_and_parameters_of_another_type_run_eagerly():
    stack, g, views = in_buffer(network((5, 4, 3)), 2)
    kernel = kernel_of(stack)
    x, y = batch(2, 11, 5, 3)
    stack.double()
    losses, gradients = exact(stack, x, y, NLL)
    views = [v.double() for v in views]
    assert_near([kernel.write(x.double(), y, views), *views], [losses, *gradients], 1e-12)


def test_a_library_that_reads_a_plan_otherwise_is_refused(monkeypatch):
    stack = bdl.ChainStack(network((6, 5, 3)), 2)
    assert isinstance(kernel_of(stack), MLPKernel)
    monkeypatch.setattr(native, "_outcome", {})  # as in a new process
    monkeypatch.setattr(mlp_library, "layout_of", lambda library: (2, 12, 3, 5, 7, 9))
    with pytest.raises(ConfigError, match="is of another bdl"):
        choose_gradient(stack, NLL)
