"""What becomes of chains that diverge: the sampler stops, or they are dropped while the others go on."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bdl.errors import BdlWarning, ConfigError, DivergedError
from bdl.samplers.batch_noise import BatchNoise
from bdl.samplers.chain import Chain
from bdl.samplers.resume import Saved

OnDivergence = Literal["stop", "drop"]


class Survivors(Saved):
    """Drops diverged chains from a stack; the rows (C, ...) of the others keep every bit.

    A dropped chain takes the state of another chain, moves on from there and counts no more. It draws noise from the
    stream of the stack, of which every chain has numbers that no other chain gets.

    Args:
        policy: "stop" raises, "drop" drops.
        chain, batch_noise: of the sampler.

    Attributes:
        lost: the step of the divergence by chain, in the order in which they were noticed.
    """

    saved = ("lost",)

    def __init__(self, policy: OnDivergence, chain: Chain, batch_noise: BatchNoise):
        if policy not in get_args(OnDivergence):
            raise ConfigError(f"on_divergence must be stop or drop, got {policy!r}")
        self.policy, self.chain, self.batch_noise = policy, chain, batch_noise
        self.lost: dict[int, int] = {}

    def number(self, c: int) -> int:
        """The number of chain c among those of all stacks."""
        return self.chain.stack * (self.chain.chains or 1) + c

    def excluded(self) -> dict[int, int]:
        """The step of the divergence by the number of every chain whose samples do not count."""
        return {self.number(c): step for c, step in self.lost.items()}

    def replace(self, error: DivergedError, *values: Tensor | None) -> None:
        """Replace the chains that have diverged. values: of the step that is being made, (C, ...) each."""
        each = [self.chain.theta, self.chain.g, *(value for value in values if value is not None)]
        if self.policy == "stop" or self.chain.chains is None:
            raise error
        bad = torch.stack([~value.reshape(len(value), -1).isfinite().all(1) for value in each]).any(0).tolist()
        healthy = [c for c, is_bad in enumerate(bad) if not is_bad and c not in self.lost]
        if not any(bad) or not healthy:
            raise error
        rows = [c for c, is_bad in enumerate(bad) if is_bad]
        self._copy(healthy[0], rows, each[2:])
        for c in rows:
            if c not in self.lost:
                self.lost = {**self.lost, c: self.chain.steps}
                warnings.warn(
                    f"chain {self.number(c)} has diverged at step {self.chain.steps} and is dropped: its samples so "
                    f"far are left out, and the other {len(healthy)} chains go on; a lower lr, a warm-up or clipping "
                    "may keep it",
                    BdlWarning,
                    stacklevel=6,
                )

    @torch.no_grad()
    def _copy(self, donor: int, rows: list[int], values: list[Tensor]) -> None:
        chain, noise = self.chain, self.batch_noise
        fields: list[Any] = [getattr(chain.state, field.name) for field in dataclasses.fields(chain.state)]
        of_chains = [f for f in fields if isinstance(f, Tensor) and f.ndim and len(f) == chain.chains]
        estimates = [estimate for estimate in (noise.mean, noise.previous) if estimate is not None]
        for value in [*of_chains, *values, *chain.host.buffers(), *estimates]:
            value[rows] = value[donor].clone()
        chain.g[rows] = 0.0
