"""Chains of bdl's samplers on a problem of the leaderboard, without Lightning and store, and their core-seconds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

import bdl
from bdl.data import TensorBatches
from bdl.engine.choose import choose_gradient
from bdl.engine.functional import evaluating
from bdl.likelihoods import mean_loss
from bdl.samplers.dynamics.base import Transition
from bdl.samplers.potential import BoundGradient
from bdl.samplers.weighting.base import Weighting
from bdl.schedules import Constant, Cycle, CyclicalCosine
from benchmarks.leaderboard.problems import Average, Problem

DRAWS = 100  # draws of every chain that a run averages
Watch = Callable[[Tensor, Tensor], None]  # called with outputs (C, n, K) and energies (C,) of kept draws


class Clock:
    """Core-seconds of this process since it was made, without those of `paused` blocks."""

    def __init__(self):
        self._began = time.process_time()

    @property
    def seconds(self) -> float:
        return time.process_time() - self._began

    @contextmanager
    def paused(self) -> Iterator[None]:
        began = time.process_time()
        yield
        self._began += time.process_time() - began


@dataclass(frozen=True)
class Recipe:
    """How chains are sampled.

    Args:
        dynamics: what moves θ in a run of so many steps.
        lr: step size; None for the one that `bdl.find_settings` finds within the run's time.
        gradients: over all items that a step takes, for a kernel on all the data.
        weighting: what weights a run of so many steps.
        cycles: how many there are, in which lr falls as a cosine and only the last fifth injects noise and counts; 0
            for a constant lr.
        train: share of the passes in which the start is trained as a deep ensemble, as in MILE (Sommer et al. 2025).
    """

    dynamics: Callable[[int], Transition]
    lr: float | None = None
    gradients: float = 1.0
    weighting: Callable[[int], Weighting] = lambda steps: bdl.Flat()
    exchange: bdl.Exchange | None = None
    cycles: int = 0
    train: float = 0.0
    chains: int = 8

    def steps(self, problem: Problem, passes: float) -> int:
        """Steps whose gradients see every item so many times."""
        each = self.gradients if self.dynamics(100).full_batch else problem.batch / problem.num_data
        return max(20, round((1 - self.train) * passes / each))


def sample(
    recipe: Recipe, problem: Problem, passes: float, seed: int, watch: Watch | None = None, kept: int = DRAWS
) -> tuple[Average, float]:
    """The average over `kept` draws of the second half of a run, and its core-seconds."""
    clock, average = Clock(), Average(problem)
    stack = problem.stack(recipe.chains, seed)
    if recipe.train:
        train(stack, problem, round(recipe.train * passes), seed)
    steps = recipe.steps(problem, passes)
    sampler = sampler_of(recipe, stack, problem, steps, seed)
    gradient = choose_gradient(stack, problem.loss)
    batches = batches_of(problem, sampler.dynamics, recipe.chains, seed)
    cycle = Cycle(steps, recipe.cycles, explore=0.8) if recipe.cycles else None
    due, group = draws(steps, kept, cycle.sampling if cycle else None), sampler.param_groups[0]
    rate = CyclicalCosine(group["lr"], cycle) if cycle else Constant(group["lr"])
    for step in range(steps):
        group["lr"], group["temperature"] = rate(step), float(cycle is None or cycle.sampling(step))
        x, y = next(batches)
        sampler.advance(BoundGradient.of(gradient, x, y))
        if step in due:
            with clock.paused():
                outputs = outputs_of(stack, problem)[sampler.target_chains]
                average.add(outputs)
                if watch is not None and sampler.energy is not None:
                    watch(outputs, sampler.energy)
    return average, clock.seconds


def sampler_of(recipe: Recipe, stack: bdl.ChainStack, problem: Problem, steps: int, seed: int) -> bdl.Sampler:
    """The sampler of a run of so many steps, with its step size."""
    dynamics = recipe.dynamics(steps)
    sampler = bdl.Sampler(
        stack.named_parameters(), dynamics, num_data=problem.num_data, prior=problem.prior,
        lr=found_lr(stack, problem, dynamics, steps, seed) if recipe.lr is None else recipe.lr,
        weighting=recipe.weighting(steps), exchange=recipe.exchange, chains=recipe.chains, seed=seed,
    )  # fmt: skip
    sampler.full_loss = lambda: full_loss(stack, problem)
    return sampler


def found_lr(stack: bdl.ChainStack, problem: Problem, dynamics: Transition, steps: int, seed: int) -> float:
    """What tune=auto would take, with a prior and a batch size that are given."""
    given = {"batch_size": problem.batch, "prior": problem.prior, "burn_in": steps // 2, "friction": dynamics.friction}
    return bdl.find_settings(
        stack, problem.loss, problem.train, dynamics=dynamics, steps=steps, given=given, seed=seed
    ).settings["lr"]


def train(stack: bdl.ChainStack, problem: Problem, epochs: int, seed: int) -> None:
    """Train the stack as a deep ensemble, whose members stop early."""
    x, y = problem.train
    bdl.AdamWStart(epochs=max(1, epochs)).train(
        stack, TensorBatches(x, y, problem.batch, chains=stack.chains, seed=seed), problem.loss
    )


def draws(steps: int, kept: int, counts: Callable[[int], bool] | None = None) -> frozenset[int]:
    """Steps after which a draw counts: at most `kept` of them, evenly over the second half."""
    late = [k for k in range(steps // 2, steps) if counts is None or counts(k)]
    return frozenset(late[:: -(-len(late) // kept)]) if late else frozenset([steps - 1])


def batches_of(problem: Problem, dynamics: Transition, chains: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches x (C, B, ...), y (C, B, ...) without end."""
    x, y = problem.train
    if dynamics.full_batch or problem.batch >= len(y):
        while True:
            yield x.expand(chains, *x.shape), y.expand(chains, *y.shape)
    loader = TensorBatches(x, y, problem.batch, chains=chains, seed=seed)
    while True:
        yield from loader


@torch.no_grad()
def outputs_of(stack: bdl.ChainStack, problem: Problem) -> Tensor:
    """(C, n, K) outputs at the test items."""
    with evaluating(stack):
        return stack.broadcast(problem.test[0]).clone()


@torch.no_grad()
def full_loss(stack: bdl.ChainStack, problem: Problem) -> Tensor:
    """(C,) mean losses over all training items."""
    x, y = problem.train
    return mean_loss(problem.loss, stack.broadcast(x), y.expand(stack.chains, *y.shape), stack.chains)
