"""Trial: a few steps of a stack of chains, to be watched. The stack that it copies stays as it is."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bdl.batch import map_tensors, rows_of
from bdl.data.loader import TensorBatches
from bdl.engine.choose import Compile, choose_gradient
from bdl.engine.functional import evaluating
from bdl.engine.stack import ChainStack
from bdl.errors import DivergedError
from bdl.likelihoods import Likelihood, Loss
from bdl.samplers.batch_noise import left_by_a_pass
from bdl.samplers.dynamics.base import Transition
from bdl.samplers.exchange import Exchange
from bdl.samplers.kernel_moves import KernelMoves
from bdl.samplers.moves import FEWEST
from bdl.samplers.potential import BoundGradient
from bdl.samplers.priors.base import Prior
from bdl.samplers.sampler import Sampler
from bdl.samplers.weighting.base import Flat, Weighting
from bdl.seeding import derive_seed

TrialItems = tuple[
    Any, Tensor
]  # x (n, ...) as the network takes it, or several inputs in a tuple or a dict; and y (n, ...)
Watch = Callable[["Trial"], None]
SMALLER = 4.0  # a divergence divides lr by it
SMALLEST_LR = 1e-12  # lr below which the data, and not lr, are to blame for a divergence


@dataclass(frozen=True)
class Problem:
    """What settings are wanted for.

    Args:
        stack: C networks, at the parameters from which they will be sampled.
        loss: a negative log-likelihood per item, or any loss that returns its mean over the batch.
        items: the training items, or an even part of them.
        num_data: N, all training items; of a text, all tokens.
        batch_size: items per chain and step, or all of them.
        temperature: T.
        seed: names the random streams.
        compiled: see `compile` of `BayesianModule`.
        train: the mode of the networks, for dropout and BatchNorm; False for eval mode.
        labels: of each item, that count towards N; of a window of text, its tokens.
        groups: (n,) of the items; a part that is held out has whole groups.
    """

    stack: ChainStack
    loss: Loss
    items: TrialItems
    num_data: int
    batch_size: int
    temperature: float = 1.0
    seed: int = 0
    compiled: Compile = "auto"
    train: bool = True
    labels: int = 1
    groups: Tensor | None = None

    @property
    def tau(self) -> float:
        return self.temperature / self.num_data

    @property
    def takes_all(self) -> bool:
        """Whether each batch holds all the data."""
        return self.batch_size >= self.count

    @property
    def count(self) -> int:
        """All training items, `items` or more."""
        return self.num_data // self.labels

    @property
    def parameters(self) -> int:
        """Of one network, that are sampled."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Sizes and the like of one network's parameter tensors."""
        return [tuple(p.shape[1:]) for p in self.stack.parameters() if p.requires_grad]

    def centred(self, prior: Prior) -> Prior:
        """The prior with its mean as it is where the run begins; after a divergence a trial begins again elsewhere."""
        named = {name: p.detach() for name, p in self.stack.named_parameters() if p.requires_grad}
        start = torch.cat([p.reshape(len(p), -1) for p in named.values()], 1)
        return prior.centred(list(named), self.shapes, start)

    def on(self, items: TrialItems) -> Problem:
        """The same problem for a part of the items alone, as if there were no others."""
        n = round(self.num_data * len(items[1]) / len(self.items[1]))
        return replace(self, items=items, num_data=n, batch_size=min(self.batch_size, n // self.labels), groups=None)


class Trial:
    """Chains of a problem under one dynamics and prior, without Lightning, store or schedule.

    Args:
        weighting, exchange: of the sampler.
    """

    def __init__(
        self,
        problem: Problem,
        dynamics: Transition,
        prior: Prior,
        lr: float,
        name: str,
        weighting: Weighting = Flat(),
        exchange: Exchange | None = None,
    ):
        self.problem, self.name, self.prior, self.weighting, self.exchange = problem, name, prior, weighting, exchange
        self.diverged_at = math.inf  # the smallest lr that diverged
        self.stack = copy.deepcopy(problem.stack).train(problem.train)
        self.stack.shared = False
        self._new_sampler(dynamics, lr, derive_seed("tune", name, problem.seed))
        self.energies: list[Tensor] = []  # (C,) energies of every step
        self.losses: list[Tensor] = []  # (C,) mean batch loss of every step; NaN for steps in C
        self._batches = _batches(problem, self.stack.chains, name)

    @property
    def lr(self) -> float:
        return self.sampler.param_groups[0]["lr"]

    @lr.setter
    def lr(self, value: float) -> None:
        self.sampler.param_groups[0]["lr"] = value

    def run(self, steps: int, watch: Watch | None = None, every: int = 1) -> None:
        """Take the steps, and call `watch` after every `every` of them. Raises DivergedError."""
        step = 0
        while step < steps:
            made = self._walk(steps - step if watch is None else min(steps - step, every - step % every))
            if not made:
                self.losses.append(self._step(*next(self._batches)).clone())
                energy = self.sampler.energy
                assert energy is not None
                self.energies.append(energy.clone())
            step += made or 1
            if watch is not None and step % every == 0:
                watch(self)
        self.sampler.check()

    def _walk(self, most: int) -> int:
        """Make up to so many steps of a full-batch kernel in C, to the bit as one by one; returns how many."""
        moves, (x, y), first = self.sampler.moves, self.problem.items, self.sampler.steps
        if not (isinstance(moves, KernelMoves) and self._gradient.walks and self.problem.takes_all):
            return 0
        ahead = range(first, first + min(most, moves.longest))
        steps = next((step for step in ahead if moves.is_single(step)), ahead.stop) - first
        if steps < FEWEST or not isinstance(x, Tensor) or x.device.type != "cpu":
            return 0
        gradients = self._gradient.batches(x, y, None, self.stack.chains)
        made = self.sampler.walk(gradients, [self.sampler.settings()] * steps)
        if made and moves.walked is not None:
            self.energies.extend(moves.walked)
            self.losses.extend(torch.full_like(moves.walked, math.nan))
        return made

    def _step(self, x: Any, y: Tensor) -> Tensor:
        return self.sampler.advance(BoundGradient.of(self._gradient, x, y))

    def run_stably(self, steps: int, watch: Watch | None = None, every: int = 1) -> int:
        """`run`, again from the same state with a smaller lr where it diverges; returns how often that was."""
        theta, seen, times = self.sampler.chain.theta.clone(), len(self.energies), 0
        while True:
            try:
                self.run(steps, watch, every)
                return times
            except DivergedError:
                times += 1
                if self.lr < SMALLEST_LR:
                    raise
                self.diverged_at = lr = self.lr
                del self.energies[seen:], self.losses[seen:]
                self.sampler.chain.theta.copy_(theta)
                self._new_sampler(self.sampler.dynamics, lr / SMALLER, derive_seed("tune", times, self.sampler.seed))

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Tensor:
        """(C, n, K) outputs of every chain, in eval mode."""
        with evaluating(self.stack):
            return self.stack.broadcast(x)

    @torch.no_grad()
    def predictions(self, x: Tensor) -> Tensor:
        """(C, quantities) probabilities or means that the chains of the target give to x, else their outputs."""
        outputs, loss = self.outputs(x)[self.sampler.target_chains], self.problem.loss
        if isinstance(loss, Likelihood) and loss.outputs == "logits":
            return outputs.softmax(-1).flatten(1)
        if isinstance(loss, Likelihood) and loss.outputs in ("labels", "values"):
            return loss.mean(outputs).flatten(1)
        return outputs.flatten(1)

    def gradients(self, count: int, chains: int) -> Tensor:
        """(count, chains, d) gradients of the mean loss of the next batches, of the first chains, where they are."""
        chain, rows = self.sampler.chain, []
        for _ in range(count):
            self._gradient.write(*next(self._batches), chain.g_views)
            rows.append(chain.g.view(self.stack.chains, -1)[:chains].clone())
        return torch.stack(rows)

    def energy_trace(self) -> Tensor:
        """(C, steps) batch estimates of U, nats."""
        return torch.stack(self.energies, 1)

    def _new_sampler(self, dynamics: Any, lr: float, seed: int) -> None:
        """A sampler that begins at the stack's parameters, without momentum."""
        problem = self.problem
        self.sampler = Sampler(
            self.stack.named_parameters(), dynamics, num_data=problem.num_data, lr=lr, prior=self.prior,
            temperature=problem.temperature, weighting=self.weighting, exchange=self.exchange,
            chains=self.stack.chains, seed=seed,
        )  # fmt: skip
        share = left_by_a_pass(problem.count / problem.batch_size)
        self.sampler.host = replace(self.sampler.host, compiled=problem.compiled is not False, noise_share=share)
        self._gradient = choose_gradient(self.stack, problem.loss, problem.compiled)


def _batches(problem: Problem, chains: int, name: str) -> Iterator[TrialItems]:
    """x (C, B, ...) and y (C, B, ...) for ever. Full batches are views of the items."""
    x, y = problem.items
    if problem.batch_size >= len(y):
        while True:
            yield map_tensors(lambda t: t.expand(chains, *t.shape), x), y.expand(chains, *y.shape)
    seed = derive_seed("tune", name, problem.seed)
    if isinstance(x, Tensor):
        loader = TensorBatches(x, y, problem.batch_size, chains=chains, seed=seed)
        while True:
            yield from loader
    places = torch.arange(len(y), device=y.device)
    loader = TensorBatches(places, places, problem.batch_size, chains=chains, seed=seed)
    while True:
        for rows, _ in loader:
            yield rows_of(x, rows), y[rows]
