"""Whole steps in CUDA graphs: batch, gradient, prior, weighting, noise and update of many steps in one launch.

The numbers of a step (lr, tau, the step of psi) lie in tensors on the device, which are filled before a launch. Noise
comes from the chain's generator, which is registered with the graph: a launch draws what single steps draw.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from bdl.devices import widest
from bdl.fused import Fused
from bdl.samplers.batch_noise import BatchNoise
from bdl.samplers.chain import Chain
from bdl.samplers.dynamics.base import Scalar
from bdl.samplers.held import HeldNumbers
from bdl.samplers.potential import Potential
from bdl.samplers.settings import StepSettings
from bdl.samplers.weighting.recorded import LONGEST
from bdl.samplers.weighting.reweighting import Reweighting

SIZES = (20, 5, 1)  # steps of a graph, whose first one is a multiple of them: what happens at some steps stays in place


class WalkBatches(Protocol):
    """The batches of a walk, where the kernels of a graph read them: `bdl.engine.recorded.HeldBatches`."""

    idle: Sequence[int]

    def hold(self) -> None: ...

    def take(self, index: Tensor) -> None: ...

    def write(self, k: int, out: Sequence[Tensor]) -> Tensor: ...

    def run(
        self, work: Callable[[], Any], key: Hashable, reads: Sequence[object], streams: Sequence[torch.Generator]
    ) -> Any: ...


class WholeSteps(ABC):
    """The steps of a chain on a GPU, in graphs or one by one with the same numbers."""

    def __init__(self, chain: Chain, potential: Potential):
        self.chain, self.potential = chain, potential
        self._held: HeldNumbers | None = None
        self._fused: Fused | None = None

    @property
    def held(self) -> HeldNumbers | None:
        """The numbers on the device; None where steps take those of Python."""
        theta, kind = self.chain.theta, self.kind
        if theta.device.type != "cuda" or theta.dtype not in (torch.float32, torch.float64):
            return None
        if not self.chain.dynamics.recordable:
            return None
        if self._held is None or not self._held.serves(theta.device, kind):
            self._held = HeldNumbers(theta.new_empty(self.chain.chains or 1, dtype=kind))
        return self._held

    @property
    def kind(self) -> torch.dtype:
        """The type of lr and tau."""
        return self.chain.theta.dtype

    def numbers(self, now: StepSettings) -> tuple[Tensor, Tensor] | None:
        """() lr and tau of a single step, lr (d,) where blocks have factors; None where it takes others."""
        if (held := self.held) is None or _differ(now):
            return None
        lr, tau = self.single(held, now.lr, now.temperature / self.potential.num_data)
        return self.factored(lr), tau

    def single(self, held: HeldNumbers, lr: Any, tau: Any) -> tuple[Tensor, Tensor]:
        """() lr and tau of a single step: on the host, where to calculate with them takes no kernel.

        A fused step has them where a walk has them, so that both have one kernel.
        """
        if self.chain.host.fuses:
            row = held.rows("single", [row_of(lr, tau)], 1)[0]
            return row[0], row[1]
        return torch.tensor(lr, dtype=self.kind), torch.tensor(tau, dtype=self.kind)

    def step(self, s: Any, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor, *extra: Any) -> Any:
        """That of the dynamics with () lr and tau, by few kernels where `torch.compile` fuses them."""
        dynamics: Any = self.chain.dynamics
        if extra or not self.chain.host.fuses:
            return dynamics.step(s, g, lr, tau, z, *extra)
        if self._fused is None:
            self._fused = Fused(dynamics.step)
        return self._fused(s, g, lr, tau, z)

    def factored(self, lr: Tensor) -> Tensor:
        """() lr, or (d,) where blocks of parameters have factors."""
        return lr if self.chain.lr_factors is None else lr * self.chain.lr_factors

    def takes(self, settings: Sequence[StepSettings]) -> bool:
        """Whether graphs may hold these steps: under one lr and one T, with nothing that a prior draws."""
        distinct = {id(now): now for now in settings}.values()
        return not self.potential.prior.learns and not any(map(_differ, distinct)) and self.held is not None

    def walk(self, batches: WalkBatches, settings: Sequence[StepSettings]) -> int:
        """Make the steps; returns how many."""
        held, items, made = self.held, self.potential.num_data, 0
        assert held is not None
        rates: Any = [row_of(now.lr, now.temperature / items) for now in settings]  # type: ignore[operator]
        self._rates, self._done = held.rows("rates", rates, LONGEST), held.put("done", 0.0)
        self._done.zero_()  # steps of the walk, which graphs count
        batches.hold()
        while made < len(settings) and (room := min(self.room, len(settings) - made)):
            n = next(size for size in SIZES if self.chain.steps % size == 0 and size <= room)
            self.make(batches, settings[made : made + n])
            self.chain.note_walk(n)
            made += n
        return made

    @property
    def room(self) -> int:
        """How many steps one graph may hold at most; 0 where the next step is no part of a walk."""
        return SIZES[0]

    @abstractmethod
    def make(self, batches: WalkBatches, settings: Sequence[StepSettings]) -> None:
        """Make the next steps."""

    def index(self, steps: int) -> Tensor:
        """(steps,) the numbers of the next steps in the walk, which counts them."""
        index = torch.arange(steps, device=self._done.device) + self._done.long()
        self._done.add_(steps)
        return index

    def begin(self, batches: WalkBatches, index: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Take the batches of the steps with these numbers (steps,). Returns lr, () or (d,), and () tau of each."""
        batches.take(index)
        return [(self.factored(row[0]), row[1]) for row in self._rates.index_select(0, index)]

    def reads(self) -> list[object]:
        """What the kernels read, but for those of a weighting."""
        chain, potential = self.chain, self.potential
        memory = chain.theta, chain.g, chain.z, *chain.tensors(), chain.lr_factors, self._rates, self._done
        return [*memory, potential.prior, potential.divergence]

    def keep(self, state: Any) -> None:
        """Take over what a dynamics has returned, in the memory of the chain's state."""
        for f in dataclasses.fields(state):
            mine, new = getattr(self.chain.state, f.name), getattr(state, f.name)
            if isinstance(new, Tensor) and new is not mine:
                mine.copy_(new)


class GradientSteps(WholeSteps):
    """The steps of a dynamics with one gradient a step, weighted or not."""

    def __init__(self, chain: Chain, potential: Potential, batch_noise: BatchNoise, reweighting: Reweighting):
        super().__init__(chain, potential)
        self.batch_noise, self.reweighting = batch_noise, reweighting

    @property
    def weighted(self) -> bool:
        return self.reweighting.weighting.needs_energy

    @property
    def room(self) -> int:
        return self.reweighting.room if self.weighted else super().room

    def takes(self, settings: Sequence[StepSettings]) -> bool:
        return super().takes(settings) and (not self.weighted or self.reweighting.can_walk(settings))

    def walk(self, batches: WalkBatches, settings: Sequence[StepSettings]) -> int:
        if not self.weighted:
            return super().walk(batches, settings)
        self.reweighting.begin_walk(settings[0])
        try:
            return super().walk(batches, settings)
        finally:
            self.reweighting.end_walk()

    def make(self, batches: WalkBatches, settings: Sequence[StepSettings]) -> None:
        chain, potential, n = self.chain, self.potential, len(settings)
        first = chain.steps
        injects = [chain.injects(now.temperature) for now in settings]
        seen = [self.batch_noise.reads(first + k) for k in range(n)]
        weighed = self.reweighting.begin(n) if self.weighted else None
        potential.sizes.see(None)

        def work() -> Any:
            evaluations, gradients = [], []
            index = self.index(n)
            if weighed is not None:
                weighed.take(index)
            for k, (lr, tau) in enumerate(self.begin(batches, index)):
                loss = batches.write(k, chain.g_views)
                e = potential.evaluate(loss, list(batches.idle), weighed is not None, notes=False)
                evaluations.append(e)
                if seen[k]:
                    gradients.append(e.g.clone())
                potential.complete(e, lambda g: potential.prior.add_grad_(g, chain.theta, potential.num_data))
                if weighed is not None:
                    weighed.act(k, e.g, e.energy)  # type: ignore[arg-type]
                alone = potential.idle.values(e.idle)
                z = chain.noise.fill(chain.z, first + k, chain.generator) if injects[k] else chain.z.zero_()
                self.keep(self.step(chain.state, e.g, lr, tau, z))
                potential.idle.put_back(alone)
            potential.divergence.note_all([e.total for e in evaluations])
            return evaluations[0], gradients

        key = n, tuple(injects), tuple(seen), None if weighed is None else weighed.key
        reads = [*self.reads(), *(() if weighed is None else weighed.reads)]
        e, gradients = batches.run(work, key, reads, [chain.generator])
        potential.accept(e, settings[0].lr, n)
        for k, g in zip([k for k in range(n) if seen[k]], gradients, strict=True):
            self.batch_noise.observe(first + k, g)
        if weighed is not None:
            self.reweighting.end(n, settings[-1])


class KernelSteps(WholeSteps):
    """The steps of a `FullBatch` kernel, once it no longer adapts.

    evaluate: finds U/N (..., 1) and its gradient at θ (..., d) from what finds losses and idle parameters there, and
    the θ at which the step has begun.
    """

    def __init__(self, chain: Chain, potential: Potential, evaluate: Callable[[Any, Tensor, Tensor], Any]):
        super().__init__(chain, potential)
        self.evaluate = evaluate

    @property
    def kind(self) -> torch.dtype:
        return widest(self.chain.theta.device)

    def single(self, held: HeldNumbers, lr: Any, tau: Any) -> tuple[Tensor, Tensor]:
        """On the device: a kernel converts them to the type of θ."""
        return held.put("lr", lr), held.put("tau", tau)

    def takes(self, settings: Sequence[StepSettings]) -> bool:
        chain = self.chain
        return (
            super().takes(settings)
            and chain.stray.left_at is not None
            and chain.host.loss_is_whole
            and chain.state.steps >= (chain.dynamics.adapt_steps or 0)
            and all(now.all_sample for now in settings)
        )

    def walk(self, batches: WalkBatches, settings: Sequence[StepSettings]) -> int:
        stray = self.chain.stray
        stray.note(self.chain.theta)
        made = super().walk(batches, settings)
        stray.left_at = self.chain.theta.clone()
        return made

    def make(self, batches: WalkBatches, settings: Sequence[StepSettings]) -> None:
        chain, n, kernel = self.chain, len(settings), self.chain.dynamics
        before = chain.state.steps
        for now in settings:
            chain.injects(now.temperature)

        def step(k: int, lr: Tensor, tau: Tensor) -> None:
            start = chain.theta.clone()  # proposals are evaluated in the parameters themselves

            def evaluate(theta: Tensor) -> Any:
                return self.evaluate(lambda: (batches.write(k, chain.g_views), batches.idle), theta, start)

            z = chain.noise.fill(chain.z, chain.steps + k, chain.generator)
            log_u = log_uniform(chain)
            s = dataclasses.replace(chain.state, theta=start)
            self.keep(kernel.kernel(s, evaluate, lr, tau, z, log_u))  # type: ignore[attr-defined]

        def work() -> None:
            for k, (lr, tau) in enumerate(self.begin(batches, self.index(n))):
                step(k, lr, tau)

        batches.run(work, n, self.reads(), [chain.generator])
        chain.state.steps = before + n


def row_of(lr: Any, tau: Any) -> tuple[float, ...]:
    """The numbers of a step. Each row begins at a multiple of 16 bytes, where compiled kernels need no copy of it."""
    return lr, tau, 0.0, 0.0


def log_uniform(chain: Chain) -> Tensor:
    """(..., 1) the log of a uniform number for each chain, in the widest type, from its stream."""
    device = chain.theta.device
    return torch.rand((*chain.lead, 1), generator=chain.generator, dtype=widest(device), device=device).log()


def _differ(now: StepSettings) -> bool:
    """Whether chains have numbers of their own."""
    return isinstance(now.lr, Tensor) or isinstance(now.temperature, Tensor)
