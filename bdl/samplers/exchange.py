"""Replica exchange: chains at a ladder of temperatures that swap their states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from bdl.devices import widened, widest
from bdl.errors import ConfigError, check_choice
from bdl.samplers.batch_noise import BatchNoise
from bdl.samplers.chain import Chain
from bdl.samplers.held import HeldNumbers
from bdl.samplers.potential import Launch, Potential
from bdl.samplers.resume import Saved
from bdl.samplers.settings import StepSettings

KEEP = 0.99  # decay of the running mean of the energy's variance


@dataclass(frozen=True)
class Exchange:
    """Replica exchange SG-MCMC (Deng et al. 2020, algorithm 1), over any dynamics.

    Chain c is at rung k = c mod K of the ladder, at the temperature T · ladder[k]. The first rung has the target
    distribution, and only its chains are kept. Every `every` steps neighbours (k, k + 1), even and odd k in turn,
    swap states with probability

        min(1, exp(c (U_k - U_{k+1} - c σ²))),    c = 1/T_k - 1/T_{k+1}

    σ² = `energy_var` is the variance that the mini-batch gives to one energy, half that of U_k - U_{k+1}. The penalty
    c²σ² keeps the law of every rung under normal errors of the energies (Ceperley & Dewing 1999). "estimated" takes σ²
    from the change of U_k - U_{k+1} between consecutive steps, which is right for chains that share their batches, too.
    The estimate includes what U itself changes in a step; it is then too large, and swaps are rarer. With exact
    energies give 0; full-batch kernels always use 0. Momenta are rescaled by the root of the ratio of lr T, in the
    middle of their next kick, where they are independent of θ.

    energy: "batch" reads the energy of the step's batch. "full" reads the energy of all the data (`Sampler.full_loss`),
    which has no error and costs one pass over the data every `every` steps. With batches c σ must be of order one, or
    nothing ever swaps: on Landsat at batch 100 σ is 240 nats, and c between T = 0.2 and 0.21 is 0.24.

    Raises ConfigError for a ladder that does not rise from 1, and for chains that do not fill it.
    """

    ladder: Sequence[float] = (1.0, 2.0, 4.0, 8.0)  # multiples of T
    every: int = 1
    energy_var: float | Literal["estimated"] = "estimated"  # nats², of a batch energy
    energy: Literal["batch", "full"] = "batch"

    def __post_init__(self) -> None:
        try:
            rungs = [float(f) for f in self.ladder]
        except (TypeError, ValueError):
            raise ConfigError(f"a ladder is a list of multiples of T, got {self.ladder!r}") from None
        if len(rungs) < 2 or rungs[0] != 1 or not all(a < b for a, b in zip(rungs, rungs[1:], strict=False)):
            raise ConfigError(
                f"a ladder is two or more rising multiples of T that begin with 1, got {rungs}; put them in order"
            )
        if self.every < 1:
            raise ConfigError(f"every must be at least 1 step, got {self.every}")
        check_choice("energy", self.energy, ("batch", "full"))
        estimated = self.energy_var == "estimated"
        if not (estimated or isinstance(self.energy_var, int | float) and self.energy_var >= 0):
            raise ConfigError(f'energy_var must be "estimated" or a variance >= 0, got {self.energy_var!r}')


class Replicas(Saved):
    """Runs an Exchange along one stack of chains. Shapes (C,)."""

    saved = ("tried", "done", "turn", "previous", "square", "count")

    def __init__(self, exchange: Exchange, chains: int | None, device: torch.device):
        rungs = len(exchange.ladder)
        if chains is None or chains < 2:
            raise ConfigError(
                f"replica exchange needs chains to exchange, got {chains or 1}: set chains to a multiple of {rungs}"
            )
        if chains % rungs:
            raise ConfigError(f"{chains} chains do not fill a ladder of {rungs}: set chains to a multiple of {rungs}")
        self.exchange, self.chains, self.rungs = exchange, chains, rungs
        self.factor = torch.tensor(list(exchange.ladder), dtype=torch.float64).repeat(chains // rungs)  # CPU, like T
        self.tried = torch.zeros(rungs - 1, dtype=widest(device), device=device)  # swaps proposed per pair
        self.done = torch.zeros_like(self.tried)
        self.turn = 0  # the pairs that swap next: those whose lower rung is even (0) or odd (1)
        self.previous: Tensor | None = None  # (C,) energies of the last step
        # Running mean: σ² of each chain and the next
        self.square = torch.zeros(chains, dtype=widest(device), device=device)
        self.count = 0  # changes of energy in that mean
        self._held: HeldNumbers | None = None  # what the kernels of a swap read of a step

    @property
    def target(self) -> list[int]:
        """The chains of the first rung, which sample the target distribution."""
        return list(range(0, self.chains, self.rungs))

    @property
    def rates(self) -> Tensor:
        """(K - 1,) share of proposed swaps that were made, per pair of neighbours; NaN before the first."""
        return self.done / self.tried

    def temperatures(self, temperature: float | Tensor) -> Tensor:
        """(C,) T of every chain, on the CPU."""
        return (temperature.cpu() if isinstance(temperature, Tensor) else temperature) * self.factor

    def load_state_dict(self, state: Mapping[str, Any], theta: Tensor) -> None:
        for name in self.saved:
            setattr(self, name, widened(state[name], theta.device))

    def counts(self, energy: Tensor) -> bool:
        """Count a change of energy; False at the first energy, which has none before it."""
        if self.previous is None:
            self.previous = energy.clone()
            return False
        self.count += 1
        return True

    @property
    def weight(self) -> float:
        """Of the last change in the running mean."""
        return max(1 - KEEP, 1 / self.count)

    def follow(self, energy: Tensor, weight: float | Tensor) -> None:
        assert self.previous is not None
        step = energy - self.previous
        self.square.lerp_((step - step.roll(-1)).square() / 4, weight)
        self.previous.copy_(energy)

    def order(self, energy: Tensor, temperature: Tensor, log_u: Tensor, exact: bool = False) -> Tensor:
        """(C,) the chain whose state each chain takes over; energy, temperature and log_u are (C,)."""
        order = torch.arange(self.chains, device=energy.device)
        ladders = order.view(-1, self.rungs)
        below, above = slice(self.turn, -1, 2), slice(self.turn + 1, None, 2)  # the two chains of each pair
        u, t, log_u = (values.view_as(ladders) for values in (energy, temperature, log_u))
        variance = 0.0 if exact else self.variance()
        variance = variance.view_as(ladders)[:, below] if isinstance(variance, Tensor) else variance
        c = 1 / t[:, below] - 1 / t[:, above]
        swapped = log_u[:, below] < c * (u[:, below] - u[:, above] - c * variance)
        self.tried[self.turn :: 2] += len(ladders)
        self.done[self.turn :: 2] += swapped.sum(0)
        ladders[:, below] += swapped
        ladders[:, above] -= swapped.long()
        if self.previous is not None:
            self.previous.copy_(self.previous[order])
        return order

    def pass_turn(self) -> None:
        """Let the other pairs swap next."""
        self.turn = 1 - self.turn if self.rungs > 2 else 0

    def swap(
        self,
        chain: Chain,
        potential: Potential,
        batch_noise: BatchNoise,
        now: StepSettings,
        launch: Launch | None = None,
        exact: bool = False,
    ) -> None:
        """Swap states between neighbours, if it is time. Chains keep their T and what they have learnt at it.

        launch: runs the kernels together. exact: the energies are those of all the data.
        """
        energy = potential.energy
        if energy is None:
            raise ConfigError("replica exchange needs the energy of every step: call step(closure)")
        follows, due = self.counts(energy), now.samples and not (chain.steps + 1) % self.exchange.every
        judged = potential.full_energy(now.lr) if due and self.exchange.energy == "full" and not exact else energy
        held = self._near(energy)
        seen = held.copy("energy", energy)
        judged = seen if judged is energy else held.copy("full energy", judged)
        weight = held.put("weight", self.weight if follows else 1.0)
        t, lr = held.put("temperature", now.temperature, each=True), held.put("lr", now.lr, each=True)
        uniform = held.uniform("uniform", chain.generator) if due else None

        def work() -> Tensor | None:
            if follows:
                self.follow(seen, weight)
            if uniform is None:
                return None
            order = self.order(judged, t, uniform.log(), exact)
            chain.reorder(order)
            chain.dynamics.after_swap(chain.state, order, chain.g, lr, t)
            return order

        mine = self.previous, self.square, self.tried, self.done
        reads = (*mine, chain.theta, chain.g, *chain.values(), *chain.companions)
        key = ("exchange", follows, due, due and self.turn, judged is seen, self.count > 0)
        order = work() if launch is None else launch(work, key, reads)
        if order is not None:
            self.pass_turn()
            batch_noise.reorder(order)

    def _near(self, energy: Tensor) -> HeldNumbers:
        """Where the kernels of a swap find the numbers of a step, on the device of the energies."""
        if self._held is None or not self._held.serves(energy):
            self._held = HeldNumbers(energy)
        return self._held

    def describe(self) -> str:
        """The sentence of `Sampler.explain`."""
        ladder = ", ".join(f"{f:g}" for f in self.exchange.ladder)
        known = ", ".join(f"{r:.2f}" for r in self.rates.tolist() if r == r) or "unknown yet"
        return f"replica exchange: temperatures T times {ladder}; the first rung is kept; swap rates {known}"

    def variance(self) -> Tensor | float:
        """σ² of the pairs (c, c + 1), (C,) or a number; infinite while it is unknown, which forbids every swap."""
        if self.exchange.energy == "full":
            return 0.0
        if self.exchange.energy_var != "estimated":
            return float(self.exchange.energy_var)
        if self.count == 0:
            return math.inf
        return self.square
