"""Replica exchange: chains at a ladder of temperatures that swap their states now and then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.dynamics.base import Scalar
from bdl.samplers.weighting.reweighting import any_positive

if TYPE_CHECKING:
    from bdl.samplers.sampler import Sampler

OF_A_STATE = ("theta", "m", "gradient", "potential")  # the rest of a dynamics' state is what a chain has learnt
KEEP = 0.99  # decay of the running mean of the energy's variance


@dataclass(frozen=True)
class Exchange:
    """Replica exchange SG-MCMC (Deng et al. 2020, algorithm 1), over any dynamics.

    Chain c is at rung k = c mod K of the ladder, with temperature T · ladder[k]; the first rung is the law that is
    sampled, and only its chains are kept. Every `every` steps neighbours (k, k + 1), in turns even and odd k, swap
    states with probability

        min(1, exp(c (U_k - U_{k+1} - c σ²))),    c = 1/T_k - 1/T_{k+1}

    σ² = `energy_var`, the variance of one energy that its mini-batch makes, half that of U_k - U_{k+1}; c²σ² is the
    penalty under which normal errors of energies leave every rung's law alone (Ceperley & Dewing 1999). "estimated":
    from the change of U_k - U_{k+1} between consecutive steps, so that it is right also for chains that share their
    batches; it is too large by what U itself moves in a step, which pulls the rungs apart. With exact energies give 0;
    accept/reject kernels always take 0. Momenta are rescaled by the root of the ratio of lr T, in the middle of the
    kick that they are about to get, where they are independent of θ.

    energy: "batch", of the step's own batch, or "full", of all the data (`Sampler.full_loss`), which has no error and
    costs one pass over the data every `every` steps. With batches, c σ must be of order one, or nothing ever swaps: on
    Landsat at batch 100 σ is 240 nats, and c between T = .2 and .21 is .24.

    Raises ConfigError for a ladder that does not rise from 1, or chains that do not fill it.
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
        if self.energy not in ("batch", "full"):
            raise ConfigError(f'energy must be "batch" or "full", got {self.energy!r}')
        estimated = self.energy_var == "estimated"
        if not (estimated or isinstance(self.energy_var, int | float) and self.energy_var >= 0):
            raise ConfigError(f'energy_var must be "estimated" or a variance >= 0, got {self.energy_var!r}')


class Replicas:
    """Runs an Exchange along one stack of chains. Shapes (C,)."""

    def __init__(self, exchange: Exchange, chains: int | None, device: torch.device):
        rungs = len(exchange.ladder)
        if chains is None or chains < 2:
            raise ConfigError(
                f"replica exchange needs chains to exchange, got {chains or 1}: set chains to a multiple of {rungs}"
            )
        if chains % rungs:
            raise ConfigError(f"{chains} chains do not fill a ladder of {rungs}: set chains to a multiple of {rungs}")
        self.exchange, self.chains, self.rungs = exchange, chains, rungs
        self.factor = torch.tensor(list(exchange.ladder), dtype=torch.float64).repeat(chains // rungs)  # CPU, as T is
        self.tried = torch.zeros(rungs - 1, dtype=torch.float64, device=device)  # swaps per pair of neighbours
        self.done = torch.zeros_like(self.tried)
        self._turn = 0
        self._before: Tensor | None = None  # (C,) energies of the last step
        self._square = torch.zeros(chains, dtype=torch.float64, device=device)  # running mean: σ² with the next chain
        self._count = 0

    @property
    def target(self) -> list[int]:
        """The chains of the first rung, which sample the law that is meant."""
        return list(range(0, self.chains, self.rungs))

    @property
    def rates(self) -> Tensor:
        """(K - 1,) share of proposed swaps that were made, per pair of neighbours; NaN before the first."""
        return self.done / self.tried

    def temperatures(self, temperature: float | Tensor) -> Tensor:
        """(C,) T of every chain, on the CPU."""
        return (temperature.cpu() if isinstance(temperature, Tensor) else temperature) * self.factor

    def observe(self, energy: Tensor) -> None:
        """energy (C,): of the states as they stand, nats."""
        if self._before is not None:
            step = energy - self._before
            self._count += 1
            self._square.lerp_((step - step.roll(-1)).square() / 4, max(1 - KEEP, 1 / self._count))
        self._before = energy

    def due(self, step: int) -> bool:
        return step % self.exchange.every == self.exchange.every - 1

    def order(self, energy: Tensor, temperature: Tensor, log_u: Tensor, exact: bool = False) -> Tensor:
        """(C,) which chain's state every chain goes on with; energy, temperature and log_u are (C,)."""
        chains = torch.arange(self.chains, device=energy.device)
        low = chains.view(-1, self.rungs)[:, self._turn : -1 : 2].flatten()  # the lower ones of pairs whose turn it is
        k = low % self.rungs
        self._turn = 1 - self._turn if self.rungs > 2 else 0
        c = 1 / temperature[low] - 1 / temperature[low + 1]
        swapped = log_u[low] < c * (energy[low] - energy[low + 1] - c * (0 if exact else self._variance(low)))
        self.tried.index_add_(0, k, torch.ones_like(c))
        self.done.index_add_(0, k, swapped.to(c.dtype))
        order = chains.clone()
        order[low] += swapped.long()
        order[low + 1] -= swapped.long()
        if self._before is not None:
            self._before = self._before[order]
        return order

    def state_dict(self) -> dict[str, Any]:
        names = ("tried", "done", "_turn", "_before", "_square", "_count")
        return {name.strip("_"): getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        for name in ("tried", "done", "_turn", "_before", "_square", "_count"):
            value = state[name.strip("_")]
            setattr(self, name, value.to(device, copy=True) if isinstance(value, Tensor) else value)

    def _variance(self, low: Tensor) -> Tensor | float:
        """σ² of the pairs (low, low + 1), infinite while it is unknown, so that nothing swaps."""
        if self.exchange.energy == "full":
            return 0.0
        if self.exchange.energy_var != "estimated":
            return float(self.exchange.energy_var)
        if self._count == 0:
            return math.inf
        return self._square[low]


def swap_states(sampler: Sampler, replicas: Replicas, energy: Tensor | None, temperature: Any) -> None:
    """Swap what belongs to a state between neighbouring chains, if it is time. energy (C,): of the states before it.

    Chains keep their temperature and what they have learnt for it; θ, momenta, gradient and energy move.
    """
    if energy is None:
        raise ConfigError("replica exchange needs the energy of every step: call step(closure)")
    replicas.observe(energy)
    if not any_positive(temperature) or not replicas.due(sampler.steps):
        return
    if replicas.exchange.energy == "full" and not sampler.is_kernel:
        energy = sampler.full_energy()
    temperature = temperature.to(energy.device, non_blocking=True)
    log_u = torch.rand(energy.shape, generator=sampler._generator, dtype=energy.dtype, device=energy.device).log()
    order = replicas.order(energy, temperature, log_u, exact=sampler.is_kernel)
    for name in OF_A_STATE:
        value = getattr(sampler._state, name, None)
        if value is not None:
            value.copy_(value[order])
    sampler._g.copy_(sampler._g[order])
    if sampler._noise._before is not None:
        sampler._noise._before = sampler._noise._before[order]
    momentum = getattr(sampler._state, "m", None)
    if momentum is not None and getattr(sampler.dynamics, "noisy", True):
        half = sampler._g / (2 - getattr(sampler.dynamics, "friction", 1.0))
        _rescale_(momentum, half, sampler._numbers()[0], temperature, order)


def _rescale_(m: Tensor, half: Tensor, lr: Scalar, temperature: Tensor, order: Tensor) -> None:
    """Bring displacements m from the lr T of the chains `order` to that of their new ones; lr half: of a kick."""
    lr = lr.to(temperature, non_blocking=True) if isinstance(lr, Tensor) else torch.full_like(temperature, lr)
    lr = lr.expand_as(temperature)
    scale = ((lr * temperature) / (lr * temperature)[order]).sqrt()
    m.sub_(half * lr[order, None].to(m)).mul_(scale[:, None].to(m)).add_(half * lr[:, None].to(m))
