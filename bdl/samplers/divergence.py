"""Divergence: detected by numbers that are not finite or energies far too high; which chains survive it."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bdl.errors import BdlWarning, ConfigError, DivergedError
from bdl.samplers.batch_noise import BatchNoise
from bdl.samplers.chain import Chain
from bdl.samplers.dynamics.base import Scalar
from bdl.samplers.resume import Saved

CHECK_EVERY = 100  # steps between reads of the counter on an accelerator; each is a device sync

FAR = 20.0  # nats per item; a constant predictor's are log K for K classes, and those of the start for other losses
RISE = 10.0  # times the first loss
PATIENCE = 3  # reads in a row, CHECK_EVERY steps apart

Named = Iterable[tuple[str, Tensor | None]]
OnDivergence = Literal["stop", "drop"]


class DivergenceWatch:
    """Watches every step: at once, or through a counter on the device where reading a number would make steps wait.

    The counter holds how many steps there are since the first bad one, that step included; 0 without a bad step.
    Unlike the number of that step, it can be kept by kernels that are the same in every step.
    """

    def __init__(self, device: torch.device, at_once: bool):
        self._since_bad = None if at_once else torch.zeros((), dtype=torch.int64, device=device)
        self._last = -1  # the last step that was seen

    def note(self, total: Tensor) -> None:
        """Count a step; it has to be seen, too. total: () a sum that is not finite if one of its parts is not."""
        if self._since_bad is not None:  # inf - inf and NaN - NaN are NaN: fewer kernels than isfinite has
            self._since_bad.add_((self._since_bad > 0) | (total - total).isnan())

    def note_all(self, totals: Sequence[Tensor]) -> None:
        """`note` for several steps, in few kernels."""
        if self._since_bad is not None:
            since = torch.arange(len(totals), 0, -1, device=self._since_bad.device)  # steps since each, it included
            each = torch.stack(list(totals))
            first = ((each - each).isnan() * since).amax()
            self._since_bad.copy_(torch.where(self._since_bad > 0, self._since_bad + len(totals), first))

    def see(self, step: int, total: Tensor, suspects: Callable[[], Named], lr: Scalar, noted: int = 1) -> None:
        """Raise DivergedError for a bad step, with a counter some steps later. suspects: the parts of `total`.

        noted: how many steps from this one on were noted.
        """
        self._last = step + noted - 1
        if self._since_bad is None:
            if not math.isfinite(total.item()):
                refuse(step, suspects(), lr)  # one by one, since a sum of finite numbers may overflow
        elif step % CHECK_EVERY == 0:
            self.check(lr)

    def check(self, lr: Scalar) -> None:
        """Read the counter: a device sync. Raises DivergedError."""
        since_bad = 0 if self._since_bad is None else int(self._since_bad)
        if since_bad:
            raise DivergedError(_message("loss or gradient", self._last - since_bad + 1, lr))


class EnergyWatch:
    """Warns once of a chain whose loss stays far above that of a constant predictor: of one that is lost, yet finite.

    A loss of more than FAR + RISE x the first loss, in PATIENCE reads in a row, is no state of a posterior: any network
    that ignores its inputs has a lower one. Without data (N = 1, a law of its own) a loss has no such scale.
    """

    def __init__(self, num_data: int):
        self.first: float | None = None  # the highest loss of all chains at the first read, nats per item
        self._silent = num_data == 1
        self._high = 0  # reads in a row

    def see(self, step: int, loss: Tensor | None, lr: Scalar) -> None:
        """loss: () or (C,) mean negative log-likelihoods of the batch. A device sync every CHECK_EVERY steps."""
        if loss is None or self._silent or step % CHECK_EVERY:
            return
        highest = float(loss.max())
        if self.first is None:
            self.first = highest
        limit = FAR + RISE * max(self.first, 0.0)
        self._high = self._high + 1 if highest > limit else 0
        if self._high == PATIENCE:
            self._silent = True
            where = f"chain {int(loss.argmax())}" if loss.ndim else "the chain"
            warnings.warn(
                f"{where} has diverged: its loss is {highest:.3g} nats per item at step {step} and was at most "
                f"{self.first:.3g} at the start; most likely lr = {lr} is too large: lower it, warm it up, or clip",
                BdlWarning,
                stacklevel=7,
            )


def refuse(step: int, suspects: Named, lr: Scalar) -> None:
    """Raise DivergedError naming the first suspect that is not finite, if any."""
    for name, value in suspects:
        if value is not None and not _all_finite(value):
            raise DivergedError(_message(name, step, lr))


def _all_finite(value: Tensor) -> bool:
    """The sum tells, without a tensor of the size of value; only that of finite numbers that overflow does not."""
    return math.isfinite(float(value.sum())) or bool(torch.isfinite(value).all())


def _message(where: str, step: int, lr: Scalar) -> str:
    if step == 0:  # no step has been made, so that lr has no part in it
        return (
            f"{where} is not finite at step 0: the data, the weights where the chain begins or the loss have numbers "
            "that are not finite, or too large for their type; look at torch.isfinite of a batch and of net(x)"
        )
    return (
        f"{where} is not finite at step {step}: most likely lr = {lr} is too large for this network, or the data "
        "contain NaN; lower lr, warm it up, or clip (bdl.ClipNorm); nothing of this step was written"
    )


class Survivors(Saved):
    """Drops diverged chains from a stack, or raises; the rows (C, ...) of the others keep every bit.

    A dropped chain takes the state of another chain, moves on from there and counts no more. It draws noise from the
    stream of the stack, of which every chain has numbers that no other chain gets.
    """

    saved = ("lost",)

    def __init__(self, policy: OnDivergence, chain: Chain, batch_noise: BatchNoise):
        if policy not in get_args(OnDivergence):
            raise ConfigError(f"on_divergence must be stop or drop, got {policy!r}")
        self.policy, self.chain, self.batch_noise = policy, chain, batch_noise
        self.lost: dict[int, int] = {}  # the step of the divergence by chain, in the order in which they were noticed

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
                    f"far are left out, and the others ({len(healthy)}) go on; a lower lr, a warm-up or clipping "
                    "may keep it",
                    BdlWarning,
                    stacklevel=7,
                )

    @torch.no_grad()
    def _copy(self, donor: int, rows: list[int], values: list[Tensor]) -> None:
        chain, noise = self.chain, self.batch_noise
        fields: list[Any] = [getattr(chain.state, field.name) for field in dataclasses.fields(chain.state)]
        of_chains = [f for f in fields if isinstance(f, Tensor) and f.ndim and len(f) == chain.chains]
        estimates = [estimate for estimate in (noise.mean, noise.previous) if estimate is not None]
        for value in [*of_chains, *values, *chain.host.buffers(), *chain.companions, *estimates]:
            value[rows] = value[donor].clone()
        chain.g[rows] = 0.0
