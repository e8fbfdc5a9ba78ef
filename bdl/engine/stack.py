"""ChainStack: C independent copies of a network, run as one, and where they start."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from bdl.batch import Inputs, count_items, inputs_of_call, structure
from bdl.engine.forward import Forward, Method
from bdl.engine.functional import named_tensors, replace_tensors
from bdl.errors import BdlWarning, ConfigError, check_whole
from bdl.frozen import (
    FrozenMode,
    Only,
    check_parameters,
    freeze,
    frozen_tensors,
    hold_in_eval,
    matching,
    refuse_parallel,
)
from bdl.seeding import derive_seed
from bdl.torch_private import has_tensor_hooks


class ChainStack(nn.Module):
    """C copies of a network whose parameters and buffers carry a leading axis C. Every copy has its own start.

    `stack(x)` maps x (C, B, ...), one batch per chain, to outputs (C, B, ...). With `shared=True` every chain sees the
    same batch x (B, ...). Networks with several inputs take them in order or by name. Dropout differs between chains.

        >>> import torch
        >>> from bdl import ChainStack
        >>> stack = ChainStack(torch.nn.Linear(3, 2), chains=4)
        >>> stack.net.weight.shape
        torch.Size([4, 2, 3])
        >>> stack(torch.zeros(4, 5, 3)).shape
        torch.Size([4, 5, 2])
        >>> stack.broadcast(torch.zeros(5, 3)).shape
        torch.Size([4, 5, 2])

    Args:
        net: a network, or a function that builds one. A network is copied, and `reset_parameters` initialises every
            copy again. A function is called C times, under one seed per chain.
        chains: C >= 1.
        only: patterns of names, such as "head.*": the chains differ in these parameters, and share the frozen rest,
            which keeps the values of the network, and under start="given" its memory. None for all parameters.
        start: "fresh" initialises every copy, "given" starts all chains at the values of the network. None means
            "fresh", and "given" under `only`.
        frozen: "eval" holds the modules of the frozen part in eval mode, so that its BatchNorm statistics stay and it
            drops nothing out. In "train" they follow the stack's mode, and their buffers belong to each chain.
        seed, stack: these and the chain's number decide its starting point. The global random stream of the CPU is
            restored afterwards; the streams of GPUs stay seeded with the last chain's seed.
        shared: True sends one batch to all chains, False one to each. None means False, until a `BayesianModule` trains
            the stack on a DataLoader, which has one batch for all.
        method: how the copies run together, see `bdl.engine.forward.Forward`: "auto", "bmm" for networks made of Linear
            and elementwise layers, or "vmap" or "loop", which run any network, and call hooks once per chain, with the
            tensors of that chain. "branches" is a loop whose networks train side by side on a GPU, in one CUDA graph.
            "auto" does so for convolutions in which the chains differ.

    Raises ConfigError for chains < 1, for a pattern that matches nothing, for "bmm" on a network with other layers or
    hooks, for x without the axis of chains, and for a network with random parameters that `reset_parameters` does not
    draw anew: its chains would start equal. And for hooks on its parameters, which the stack would not call.
    """

    def __init__(
        self,
        net: nn.Module | Callable[[], nn.Module],
        chains: int,
        *,
        only: Only = None,
        start: Literal["fresh", "given"] | None = None,
        frozen: FrozenMode = "eval",
        seed: int = 0,
        stack: int = 0,
        shared: bool | None = None,
        method: Method = "auto",
    ):
        super().__init__()
        check_whole("chains", chains)
        chains = int(chains)
        if isinstance(net, nn.Module):
            refuse_unstackable(net)
        fresh = start == "fresh" or start is None and only is None
        alike = isinstance(net, nn.Module) and not fresh  # one copy then stands for all
        known = frozen_aliases(net, only) if isinstance(net, nn.Module) and not fresh else {}
        copies = (started_copy(net, derive_seed("start", seed, stack, c), fresh, known) for c in range(chains))
        self.net, self.chains, self.shared = next(copies), chains, bool(shared)
        self._sampled_paths = freeze(dict(self.net.named_parameters()), only)
        self._frozen_mode: FrozenMode = frozen
        if frozen == "eval":
            hold_in_eval(self.net, self._sampled())
        self.frozen_names = frozenset(frozen_tensors(self.net, self._sampled()))
        each = [self._of_one(self.net)]
        each += each * (chains - 1) if alike else map(self._of_one, copies)  # a copy goes before the next one comes
        equal = (
            equal_starts(each, {name for name, p in self.net.named_parameters() if p.requires_grad}) if fresh else None
        )
        if not isinstance(net, nn.Module):
            warn_of_equal_starts(equal)
        elif fresh:
            refuse_equal_starts(equal)
            with torch.no_grad():
                for name, given in named_tensors(net).items():
                    if name in self.frozen_names:
                        named_tensors(self.net)[name].copy_(given)
        self.follows_loader = shared is None
        self.method: Method = method
        Forward(self.net, method)  # refuses bmm where it is impossible
        stacked = {name: torch.stack([tensors[name] for tensors in each]) for name in each[0]}
        replace_tensors(self.net, stacked)  # tied parameters stay tied

    def _of_one(self, copied: nn.Module) -> dict[str, Tensor]:
        """The tensors of one copy in which the chains differ."""
        return {name: t.detach() for name, t in named_tensors(copied).items() if name not in self.frozen_names}

    def train(self, mode: bool = True) -> ChainStack:
        """As torch's, but a frozen part that is held in eval mode stays in it."""
        super().train(mode)
        if self._frozen_mode == "eval":
            hold_in_eval(self.net, self._sampled())
        return self

    def _sampled(self) -> set[int]:
        return {id(p) for name, p in self.net.named_parameters() if name in self._sampled_paths}

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        inputs = inputs_of_call(args, kwargs)
        if not self.shared:
            check_inputs(inputs, self.chains)
        return self._outputs(inputs, each=not self.shared)

    def broadcast(self, *args: Any, **kwargs: Any) -> Tensor:
        """(C, B, ...) outputs for one batch x (B, ...) that all chains see."""
        return self._outputs(inputs_of_call(args, kwargs), each=False)

    def _outputs(self, inputs: Inputs, each: bool) -> Tensor:
        forward = self._forward()
        if not each and not self.training:
            return forward.evaluate(self._of_chains(), inputs)
        return forward(self._of_chains(), inputs, each)

    def _forward(self) -> Forward:
        return Forward(self.net, self.method, self.frozen_names)

    def _of_chains(self) -> dict[str, Tensor]:
        return {name: t for name, t in named_tensors(self.net).items() if name not in self.frozen_names}

    @property
    def runs_in_turn(self) -> bool:
        """Whether its networks run one after another."""
        return self._forward().way(self.chains) == "loop"

    @property
    def takes_branches(self) -> bool:
        """Whether its networks train side by side where a graph can hold their step: see `bdl.engine.branches`.

        vmap runs once what chains with one batch share, and each branch would run it again.
        """
        if self.method != "auto":
            return self.method == "branches"
        differ = any(isinstance(m, _ConvNd) and m.weight.requires_grad for m in self.net.modules())
        return self.chains > 1 and differ and not (self.shared and self.frozen_names)

    def networks(self) -> list[dict[str, Tensor]]:
        """The tensors of each chain by name: buffers, and copies in the same memory of parameters, as leaves."""
        own = self._of_chains()
        live = {name: t.requires_grad for name, t in own.items()}
        return [{name: t.detach()[c].requires_grad_(live[name]) for name, t in own.items()} for c in range(self.chains)]

    def in_turn(self, networks: Sequence[dict[str, Tensor]], inputs: Inputs) -> Iterator[Tensor]:
        """The outputs (B, ...) of each of the `networks`, for its batch, which run when they are asked for."""
        return self._forward().in_turn(networks, inputs, each=not self.shared)

    def outputs_of(self, network: dict[str, Tensor], inputs: Inputs) -> Tensor:
        """The outputs (B, ...) of one of the `networks` for its batch (B, ...)."""
        return next(self._forward().in_turn([network], inputs, each=False))

    def items(self, inputs: Inputs) -> int:
        """How many items like those of the inputs (b, ...) all chains together may run on at once on an accelerator."""
        return self._forward().items(inputs, self._of_chains())

    def per_chain(self, y: Tensor) -> Tensor:
        """(C, B, ...) targets of a batch: those given, or where the chains share a batch (B, ...), its own for each."""
        return y.expand(self.chains, *y.shape) if self.shared else y


def refuse_unstackable(net: nn.Module) -> None:
    """Raise ConfigError for a network that has no copies: see `check_parameters`; and for hooks on its parameters."""
    refuse_parallel(net)
    check_parameters(net.named_parameters())
    for name, p in net.named_parameters():
        if has_tensor_hooks(p):
            raise ConfigError(
                f"{name} has a hook (register_hook or register_post_accumulate_grad_hook), which the tensors of the "
                "stack would not call: remove it, and register it on stack.net's parameters"
            )


def check_inputs(inputs: Inputs, chains: int) -> None:
    """Raise ConfigError for inputs without the axis of chains."""
    if count_items(inputs) != chains:
        shapes = str(tuple(inputs.shape)) if isinstance(inputs, Tensor) else structure(inputs)
        raise ConfigError(
            f"{chains} chains need x of shape ({chains}, batch, ...), got {shapes}; shared=True, on the command line "
            "shared_batches=true, sends one batch to all"
        )


def frozen_aliases(net: nn.Module, only: Only) -> dict[int, Any]:
    """Parameters that share the memory of those that `only` freezes, by the id of these: what `deepcopy` need not copy.

    Those of a class of their own, such as quantised ones, are left out.
    """
    named = dict(net.named_parameters())
    chosen = matching(named.keys(), only)
    frozen = [p for name, p in named.items() if name not in chosen and type(p) is nn.Parameter]
    return {id(p): nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in frozen}


def started_copy(
    net: nn.Module | Callable[[], nn.Module], seed: int, fresh: bool, known: Mapping[int, Any]
) -> nn.Module:
    """One copy of the network, if `fresh` initialised under the seed. The CPU's global random stream is restored.

    known: what stands for the objects of these ids in the copy.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not isinstance(net, nn.Module):
            return net()
        one = copy.deepcopy(net, dict(known))
        if fresh:
            initialise(one)
        return one


def initialise(module: nn.Module) -> None:
    """Draw the parameters of a module, and of those in it, anew, where it knows how."""
    reset: Any = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
        return
    for child in module.children():
        initialise(child)
    if isinstance(module, nn.MultiheadAttention):
        module._reset_parameters()  # torch's name of what other layers call reset_parameters


def equal_starts(each: list[dict[str, Tensor]], sampled: Container[str]) -> str | None:
    """The first sampled parameter of random values, not of one constant, that the first two copies share."""
    for name, values in each[0].items() if len(each) > 1 else ():
        if name in sampled and torch.equal(values, each[1][name]) and bool((values != values.flatten()[:1]).any()):
            return name
    return None


def refuse_equal_starts(name: str | None) -> None:
    if name is not None:
        raise ConfigError(
            f"{name} would start equal in all chains, because its module has no reset_parameters that draws it: "
            'give a function that builds the network in place of the network, or start="given", where all chains '
            "begin at its weights"
        )


def warn_of_equal_starts(name: str | None) -> None:
    if name is not None:
        warnings.warn(
            f"{name} starts equal in all chains, because the function that builds the network gives the same values "
            "each time: let it draw them from torch's random stream, which has another seed for each chain, or say "
            'start="given", where all chains begin at one point', BdlWarning, 3,
        )  # fmt: skip
