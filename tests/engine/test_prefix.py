"""Tests of `bdl.engine.prefix`: what comes before the chains' own parameters runs once for all, and gives the same."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import bdl
from bdl.contrib.language.gpt import GPT
from bdl.engine.forward import Forward
from bdl.engine.functional import named_tensors

CHAINS = 3
TOKENS = torch.randint(10, (4, 8), generator=torch.Generator().manual_seed(0))
X = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


class Counted(nn.Module):
    """Counts the forward passes of a module. A hook would count too, but what has hooks runs for each chain."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module, self.calls = module, 0

    def forward(self, *args):
        self.calls += 1
        return self.module(*args)


class Noisy(nn.Linear):
    """Draws random numbers in eval mode too."""

    def forward(self, x):
        return super().forward(x) + torch.randn(x.shape[0], self.out_features)


class AddedInPlace(nn.Module):
    """Changes the output of a frozen module in place, by parameters of the chain's own."""

    def __init__(self):
        super().__init__()
        self.body, self.own, self.end = Counted(nn.Linear(6, 6)), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        h = self.body(x)
        h += self.own(x)
        return self.end(h)


class AddedLater(nn.Module):
    """Calls a frozen module on the inputs, after parameters of the chain's own."""

    def __init__(self):
        super().__init__()
        self.own, self.body = nn.Linear(6, 2), Counted(nn.Linear(6, 2))

    def forward(self, x):
        return self.own(x).tanh() + self.body(x)


def mlp(first: nn.Module, *between: nn.Module) -> nn.Module:
    """Its layers are no Linear and elementwise ones alone, so that a CPU runs the chains one after the other."""
    return nn.Sequential(first, *between, nn.LayerNorm(6), nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 2))


def gpt() -> GPT:
    torch.manual_seed(0)
    net = GPT(10, 8, 16, layers=3, heads=2)
    net.blocks = nn.Sequential(*map(Counted, net.blocks))
    return net


def moved(stack: bdl.ChainStack) -> bdl.ChainStack:
    """The stack with chains that differ: all start at the given values."""
    with torch.no_grad():
        for p in stack.parameters():
            if p.requires_grad:
                p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2)))
    return stack


def gradients(stack: bdl.ChainStack, outputs: torch.Tensor) -> dict[str, torch.Tensor]:
    stack.zero_grad()
    outputs.square().sum().backward()
    return {name: p.grad.clone() for name, p in stack.named_parameters() if p.grad is not None}


def assert_shared(stack: bdl.ChainStack, x: torch.Tensor) -> None:
    """Outputs and gradients are, to the bit, those of chains that run by themselves, each on a batch of its own."""
    together = stack(x)
    of_together = gradients(stack, together)
    stack.shared = False
    apart = stack(x.expand(stack.chains, *x.shape))
    assert torch.equal(together, apart) and not torch.equal(together[0], together[1])
    of_apart = gradients(stack, apart)
    assert of_together.keys() == of_apart.keys() and all(torch.equal(of_together[k], of_apart[k]) for k in of_apart)
    stack.shared = True
    assert not any("forward" in vars(module) for module in stack.modules()), "the network is as it was"


@pytest.mark.parametrize("only, calls", [("blocks.2.*", [1, 1, 3]), ("blocks.0.*", [3, 3, 3]), ("head.*", [1, 1, 1])])
def test_blocks_of_a_transformer_before_sampled_ones_run_once(only, calls):
    stack = moved(bdl.ChainStack(gpt(), CHAINS, only=only, shared=True))
    stack(TOKENS)
    assert [block.calls for block in stack.net.blocks] == calls
    if only != "head.*":  # these run by vmap, whose batched products sum in another order
        assert_shared(stack, TOKENS)


class Products(TorchDispatchMode):
    """Adds up the sizes of all matrix products, in multiplications."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        outputs = func(*args, **(kwargs or {}))
        if "mm" in str(func):
            self.total += outputs.numel() * args[-1].shape[-2]
        return outputs


def test_vmap_runs_the_prefix_once_as_an_accelerator_does():
    """One more chain costs the products of the upper block and of the head, and none of those below."""

    def products(chains):
        stack = bdl.ChainStack(gpt(), chains, only="blocks.2.*", shared=True, method="vmap")
        with Products() as counted, torch.no_grad():
            stack(TOKENS)
        return counted.total

    tokens, width, vocabulary = TOKENS.numel(), 16, 10
    upper = tokens * width * (12 * width + vocabulary)
    assert products(2) - products(1) == products(3) - products(2) == upper


def test_layers_that_work_in_place_share_what_they_read():
    net = nn.Sequential(
        Counted(nn.Linear(6, 6)), nn.BatchNorm1d(6), nn.ReLU(inplace=True), Counted(nn.Linear(6, 6)), nn.LayerNorm(6),
        nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 2),
    )  # fmt: skip
    stack = moved(bdl.ChainStack(net, CHAINS, only=["5.*", "7.*"], shared=True))
    stack(X)
    assert [stack.net[0].calls, stack.net[3].calls] == [1, 1]
    assert_shared(stack, X)


def test_an_output_that_a_chain_changes_is_computed_anew():
    stack = moved(bdl.ChainStack(AddedInPlace(), CHAINS, only=["own.*", "end.*"], shared=True))
    stack(X)
    assert stack.net.body.calls == CHAINS
    assert_shared(stack, X)


def test_the_prefix_ends_with_the_first_parameters_of_a_chain():
    """What comes later mostly depends on them, and keeping its inputs would take memory."""
    net = AddedLater()
    shared = {name: t.detach() for name, t in named_tensors(net).items() if name.startswith("body.")}
    tensors = {"own.weight": torch.randn(CHAINS, 2, 6), "own.bias": torch.randn(CHAINS, 2)}
    outputs = Forward(net, "loop", shared)(tensors, X)
    assert net.body.calls == CHAINS and not torch.equal(outputs[0], outputs[1])


def test_the_networks_of_a_posterior_share_it_without_gradients():
    net = gpt()
    names = {name for name in named_tensors(net) if name.startswith("blocks.2.")}
    tensors = {name: torch.randn(CHAINS, *t.shape) for name, t in named_tensors(net).items() if name in names}
    rest = {name: t.detach() + 0.1 for name, t in named_tensors(net).items() if name not in names}
    with torch.no_grad():
        together = Forward(net, shared=rest).evaluate(tensors, TOKENS)
        assert [block.calls for block in net.blocks] == [1, 1, CHAINS]
        alone = [Forward(net, shared=rest).evaluate({k: t[[c]] for k, t in tensors.items()}, TOKENS) for c in range(3)]
    assert torch.equal(together, torch.cat(alone))
    with torch.inference_mode():  # torch counts no changes of its tensors there, so that each network runs alone
        assert torch.equal(Forward(net, shared=rest).evaluate(tensors, TOKENS), together)


@pytest.mark.parametrize(
    "first, frozen",
    [(nn.Dropout(0.5), "train"), (nn.BatchNorm1d(6), "train"), (Noisy(6, 6), "eval")],
    ids=["dropout", "batch norm", "noise in eval mode"],
)
def test_what_is_random_or_learns_belongs_to_each_chain(first, frozen):
    """The chains have equal parameters here, so that their outputs differ by the noise of the prefix alone."""
    net = mlp(nn.Linear(6, 6), Counted(nn.Sequential(nn.Linear(6, 6), first)))
    stack = bdl.ChainStack(net, CHAINS, only=["3.*", "5.*"], frozen=frozen, shared=True)
    outputs = stack(X)
    assert stack.net[1].calls == CHAINS
    if isinstance(first, nn.BatchNorm1d):
        assert stack.net[1].module[1].num_batches_tracked.tolist() == [1] * CHAINS
    else:
        assert not torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[1], outputs[2])


def test_a_frozen_dropout_in_eval_mode_is_shared():
    net = mlp(Counted(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))))
    stack = moved(bdl.ChainStack(net, CHAINS, only=["2.*", "4.*"], shared=True)).train()
    stack(X)
    assert stack.net[0].calls == 1
    assert_shared(stack, X)


def test_hooks_are_called_for_each_chain():
    seen, net = [], mlp(nn.Sequential(nn.Linear(6, 6), nn.Tanh()))
    net[0][1].register_forward_hook(lambda *_: seen.append(1))
    bdl.ChainStack(net, CHAINS, only=["2.*", "4.*"], shared=True)(X)
    assert len(seen) == CHAINS


def test_an_error_leaves_the_network_as_it_was():
    stack = bdl.ChainStack(mlp(nn.Linear(6, 6)), CHAINS, only=["2.*", "4.*"], shared=True)
    with pytest.raises(bdl.ConfigError):
        stack(torch.randn(5, 7))
    assert not any("forward" in vars(module) for module in stack.modules())
