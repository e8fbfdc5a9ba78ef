"""ChainStack: its three methods agree, every chain has its own start, and a chain equals the plain network."""

import pytest
import torch
import toys
from repeats import slow_where
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import bdl
from bdl.models import MLP, ResNet

C, B = 3, 4
D64 = torch.float64


def outputs_and_gradients(net: nn.Module, x: torch.Tensor, method: str, **arguments):
    stack = bdl.ChainStack(net, C, seed=1, method=method, **arguments).to(x.dtype)
    out = stack(x)
    (out * torch.arange(out.numel(), dtype=x.dtype).view_as(out).cos()).sum().backward()
    return stack, out.detach(), [p.grad for p in stack.parameters()]


def alone(stack: bdl.ChainStack, net: nn.Module, c: int) -> nn.Module:
    """The plain network with the values of chain c."""
    net.load_state_dict({k: v[c] for k, v in stack.net.state_dict().items()})
    return net


def images(*lead: int) -> torch.Tensor:
    return torch.randn(*lead, 3, 32, 32, generator=torch.Generator().manual_seed(2), dtype=D64)


def features(*lead: int) -> torch.Tensor:
    return torch.randn(*lead, 6, generator=torch.Generator().manual_seed(2), dtype=D64)


TANH = nn.Tanh()
NETS = {
    "mlp": lambda: MLP((6, 5, 5, 2)),
    "no bias": lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 2)),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.ELU()), nn.Linear(5, 2)),
    "one activation used twice": lambda: nn.Sequential(nn.Linear(6, 5), TANH, nn.Linear(5, 5), TANH, nn.Linear(5, 2)),
    "flatten": lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Flatten(), nn.Linear(6, 2)),
    "tied layers": lambda: tied(),
}


def tied() -> nn.Module:
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("method", ["auto", "vmap", "loop"])
@pytest.mark.parametrize("name", NETS)
def test_every_method_gives_the_outputs_of_each_net_alone(name, method, shared):
    x = features(B) if shared else features(C, B)
    stack, out, grads = outputs_and_gradients(NETS[name](), x, method, shared=shared)
    net = NETS[name]().double()
    expected = [alone(stack, net, c)(x if shared else x[c]) for c in range(C)]
    torch.testing.assert_close(out, torch.stack(expected))
    assert all(g is not None and g.any() for g in grads)


@pytest.mark.parametrize("shared", [False, True])
def test_bmm_vmap_and_loop_have_the_same_gradients(shared):
    x = features(B) if shared else features(C, B)
    bmm, vmap, loop = (
        outputs_and_gradients(MLP((6, 5, 5, 2)), x, m, shared=shared)[2] for m in ("bmm", "vmap", "loop")
    )
    torch.testing.assert_close(bmm, vmap)
    torch.testing.assert_close(bmm, loop)


def test_a_layer_used_twice_gets_both_gradients():
    linear = nn.Linear(6, 6)
    x = features(C, B)
    net = nn.Sequential(linear, nn.Tanh(), linear)
    auto, vmap, loop = (outputs_and_gradients(net, x, m) for m in ("auto", "vmap", "loop"))
    torch.testing.assert_close(vmap[1:], loop[1:])
    torch.testing.assert_close(auto[1:], vmap[1:])


def test_tied_weights_stay_tied_and_count_once():
    stack = bdl.ChainStack(tied(), C)
    assert stack.net[0].weight is stack.net[2].weight
    assert len(list(stack.parameters())) == 3


@pytest.mark.parametrize("norm", ["batch", "filter_response"])
def test_vmap_and_loop_agree_on_a_resnet(norm):
    vmap, loop = (outputs_and_gradients(ResNet(8, norm=norm), images(C, 2), m) for m in ("vmap", "loop"))
    torch.testing.assert_close(vmap[1], loop[1])
    torch.testing.assert_close(vmap[2], loop[2])
    for a, b in zip(vmap[0].buffers(), loop[0].buffers(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "chains,shared", slow_where(lambda chains, shared: chains == 1, [(1, False), (C, True), (C, False)])
)
def test_vmap_runs_images_in_channels_last_on_a_gpu(chains, shared):
    """On a fake GPU, whose BatchNorm asks for the memory layout as cuDNN's does. vmap could not answer that."""
    with FakeTensorMode(), torch.device("cuda:0"):
        stack = bdl.ChainStack(lambda: ResNet(8), chains, start="given", method="vmap", shared=shared)
        x = torch.randn(B if shared else chains * B, 3, 32, 32).contiguous(memory_format=torch.channels_last)
        assert stack(x if shared else x.unflatten(0, (chains, B))).shape == (chains, B, 10)


@pytest.mark.parametrize("method", ["vmap", "loop"])
def test_every_chain_has_its_own_batch_norm_statistics(method):
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)).double()

    stack = bdl.ChainStack(build(), C, method=method)
    nets = [alone(stack, build(), c) for c in range(C)]
    stack(features(C, B))
    for c, net in enumerate(nets):
        net(features(C, B)[c])
        torch.testing.assert_close(dict(net[1].named_buffers()), {k: v[c] for k, v in stack.net[1].named_buffers()})


@pytest.mark.parametrize("method", ["bmm", "vmap", "loop"])
@pytest.mark.parametrize("shared", [False, True])
def test_dropout_differs_between_chains(method, shared):
    stack = bdl.ChainStack(nn.Sequential(nn.Linear(1, 50), nn.Dropout(0.5)), C, shared=shared, method=method)
    with torch.no_grad():
        stack.net[0].weight.zero_()
        stack.net[0].bias.fill_(1.0)
    out = stack(torch.ones(1, 1) if shared else torch.ones(C, 1, 1))
    assert len({tuple(o) for o in out.flatten(1).tolist()}) == C
    assert set(out.unique().tolist()) == {0.0, 2.0}


def starts(**arguments) -> torch.Tensor:
    return bdl.ChainStack(MLP((6, 5, 2)), C, **arguments).net[0].weight.detach()


def test_chains_start_apart():
    assert len({tuple(w.flatten().tolist()) for w in starts()}) == C


def test_seed_and_stack_name_the_starts():
    torch.manual_seed(3)
    first = starts(seed=1, stack=2)
    torch.manual_seed(4)
    assert torch.equal(first, starts(seed=1, stack=2))
    assert not torch.equal(first, starts(seed=2, stack=2))
    assert not torch.equal(starts(seed=1, stack=0), starts(seed=0, stack=1))


def test_start_of_a_chain_does_not_depend_on_number_of_chains():
    two, four = (bdl.ChainStack(MLP((6, 2)), c).net[0].weight for c in (2, 4))
    assert torch.equal(two, four[:2])


def test_starts_have_the_scale_of_the_nets_own_initialisation():
    weights = bdl.ChainStack(nn.Linear(100, 100), C).net.weight
    assert weights.std((1, 2)).tolist() == pytest.approx([1 / 300**0.5] * C, rel=0.05)


def test_the_global_generator_and_the_given_net_are_left_alone():
    net = MLP((6, 2))
    values, before = net[0].weight.clone(), torch.get_rng_state()
    bdl.ChainStack(net, C)
    bdl.ChainStack(lambda: MLP((6, 2)), C)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(net[0].weight, values) and net[0].weight.shape == (2, 6)


def test_factory_is_called_once_per_chain_under_different_seeds():
    calls = []

    def build() -> nn.Module:
        calls.append(torch.initial_seed())
        return MLP((6, 2))

    stack = bdl.ChainStack(build, C, seed=1)
    assert len(set(calls)) == C
    assert torch.equal(stack.net[0].weight, bdl.ChainStack(MLP((6, 2)), C, seed=1).net[0].weight)


def test_frozen_parameters_stay_frozen():
    net = MLP((6, 5, 2))
    net[0].weight.requires_grad_(False)
    stack = bdl.ChainStack(net, C)
    assert [p.requires_grad for p in stack.parameters()] == [False, True, True, True]


@pytest.mark.parametrize("shared", [False, True])
def test_broadcast_sends_one_batch_to_all_chains(shared):
    stack = bdl.ChainStack(MLP((6, 2)), C, shared=shared).double()
    x = features(B)
    expected = bdl.ChainStack(MLP((6, 2)), C, shared=True).double()(x)
    assert torch.equal(stack.broadcast(x), expected) and expected.shape == (C, B, 2)


@pytest.mark.parametrize("method", ["bmm", "vmap", "loop"])
def test_a_chain_trained_at_temperature_0_is_net_trained_alone(tmp_path, method):
    stack = bdl.ChainStack(MLP((3, 5, 3)), 2, method=method).double()
    nets = [alone(stack, MLP((3, 5, 3)).double(), c) for c in range(2)]
    fit(tmp_path, stack, 2)
    for c, net in enumerate(nets):
        before = net[0].weight.clone()
        fit(tmp_path, net, None, of=c)
        assert not torch.equal(net[0].weight, before)
        torch.testing.assert_close(dict(net.state_dict()), {k: v[c] for k, v in stack.net.state_dict().items()})


def fit(folder, net: nn.Module, chains: int | None, of: int = 0) -> None:
    """Train at T = 0 for 8 steps, on the batches of both chains, or on those of chain `of` alone."""
    module = toys.module(net, chains=chains, temperature=0.0)
    x, y = toys.tensors()
    stacked = [(x.double(), y) for x, y in toys.TensorBatches(x, y, toys.BATCH, chains=2)]
    batches = stacked if chains else [(x[of], y[of]) for x, y in stacked]
    toys.trainer(folder, 8).fit(module, Repeated(batches))


class Repeated(list):
    """The same batches every epoch, as a loader."""
