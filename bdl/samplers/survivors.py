"""What becomes of chains that diverge: the sampler stops, or they are dropped or restarted while the others go on."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bdl.errors import BdlWarning, ConfigError, DivergedError
from bdl.samplers.batch_noise import BatchNoise
from bdl.samplers.chain import Chain

OnDivergence = Literal["stop", "drop", "restart"]
RESTARTED = 10**6  # between the numbers of a chain before and after a restart, which the samples record


class Survivors:
    """Replaces the rows of diverged chains (C, ...) by finite ones; the rows of the others keep every bit.

    A dropped chain takes the state of another chain, moves on from there and counts no more. A restarted one takes its
    own start and a fresh state of the dynamics. It counts under a new number once it has made `burn_in` further steps.
    Both draw noise from the stream of the stack, of which every chain has its own numbers and none comes twice.

    Args:
        policy: "stop" raises, "drop" or "restart".
        chain, batch_noise: of the sampler.

    Attributes:
        lost: (chain, step) of every divergence, in the order in which they were noticed.
        burn_in: steps of a restarted chain before it counts; `CollectSamples` sets those of its keep-rule.
        buffers: returns tensors (C, ...) of the network that are no parameters, such as BatchNorm's statistics.

    Raises ConfigError for another policy.
    """

    def __init__(self, policy: OnDivergence, chain: Chain, batch_noise: BatchNoise):
        if policy not in get_args(OnDivergence):
            raise ConfigError(f"on_divergence must be stop, drop or restart, got {policy!r}")
        self.policy, self.chain, self.batch_noise = policy, chain, batch_noise
        self.lost: list[tuple[int, int]] = []
        self.burn_in = 0
        self.buffers: Callable[[], Iterable[Tensor]] = tuple
        self._start: Tensor | None = None  # (C, d) θ before the first step, for restarts

    def counts(self, c: int) -> bool:
        """Whether the present state of chain c may be a sample."""
        steps = [step for chain, step in self.lost if chain == c]
        return not steps or self.policy == "restart" and self.chain.steps - steps[-1] >= self.burn_in

    def number(self, c: int) -> int:
        """The number of chain c among those of all stacks; a restarted chain is another one."""
        restarts = sum(chain == c for chain, _ in self.lost) if self.policy == "restart" else 0
        return self.chain.stack * (self.chain.chains or 1) + c + RESTARTED * restarts

    def excluded(self) -> dict[int, int]:
        """The step of the divergence by the number of every chain whose samples do not count."""
        first, times, steps = self.chain.stack * (self.chain.chains or 1), {}, {}
        for c, step in self.lost:
            again = times.get(c, 0) if self.policy == "restart" else 0
            steps.setdefault(first + c + RESTARTED * again, step)
            times[c] = again + 1
        return steps

    def remember_start(self) -> None:
        """Call it before the first step."""
        if self.policy == "restart" and self._start is None:
            self._start = self.chain.theta.clone()

    def replace(self, error: DivergedError, *values: Tensor | None) -> None:
        """Replace the chains that have diverged. values: of the step that is being made, (C, ...) each.

        Raises the error under "stop", where no row explains it, and where no chain is left.
        """
        each = [self.chain.theta, self.chain.g, *(value for value in values if value is not None)]
        if self.policy == "stop" or self.chain.chains is None:
            raise error
        bad = torch.stack([~value.reshape(len(value), -1).isfinite().all(1) for value in each]).any(0).tolist()
        gone = {c for c, _ in self.lost} if self.policy == "drop" else set()
        healthy = [c for c, is_bad in enumerate(bad) if not is_bad and c not in gone]
        if not any(bad) or not healthy:
            raise error
        rows = [c for c, is_bad in enumerate(bad) if is_bad]
        self._replace(rows, healthy[0], each[2:])
        for c in rows:
            if c not in gone:
                number = self.number(c)
                self.lost.append((c, self.chain.steps))
                self._say(number, len(healthy))

    @torch.no_grad()
    def _replace(self, rows: list[int], donor: int, values: list[Tensor]) -> None:
        chain = self.chain
        fresh = None if self._start is None else chain.dynamics.init(self._start.clone())
        for field in dataclasses.fields(chain.state):
            value: Any = getattr(chain.state, field.name)
            if isinstance(value, Tensor) and value.ndim and len(value) == chain.chains:
                value[rows] = value[donor].clone() if fresh is None else getattr(fresh, field.name)[rows]
        chain.g[rows] = 0.0
        estimates = [self.batch_noise.mean, self.batch_noise.previous]
        for value in [*values, *self.buffers(), *(one for one in estimates if one is not None)]:
            value[rows] = value[donor].clone()

    def _say(self, number: int, healthy: int) -> None:
        fate = "starts again and counts anew after its burn-in" if self.policy == "restart" else "is dropped"
        warnings.warn(
            f"chain {number} has diverged at step {self.chain.steps} and {fate}: its samples so far are left out, and "
            f"the other {healthy} chains go on; a lower lr, a warm-up or clipping may keep it",
            BdlWarning,
            stacklevel=7,
        )

    def to(self, theta: Tensor) -> None:
        self._start = None if self._start is None else self._start.to(theta)

    def state_dict(self) -> dict[str, Any]:
        return {"lost": [list(pair) for pair in self.lost], "start": self._start}

    def load_state_dict(self, state: dict[str, Any], theta: Tensor) -> None:
        self.lost = [(chain, step) for chain, step in state["lost"]]
        self._start = None if state["start"] is None else state["start"].to(theta, copy=True)
