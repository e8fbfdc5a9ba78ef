"""A short exact continuation: HMC over all data from the last states of a run. If U falls, the run was hotter."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bdl.devices import widest
from bdl.law.exact import ExactPotential
from bdl.samplers.dynamics.metropolis import HMC

LEAPFROG = 10  # Steps of a trajectory, in the mean
TARGET = 0.9  # Acceptance: smaller steps than usual, because the run may begin far from rest
ADAPTED = 0.4  # Share of the trajectories in which the step adapts
ADAPTATION_GAIN = 4.0  # Change of log lr for each unit of acceptance away from TARGET, over sqrt(trajectories)
WORST = -0.3  # Least of acceptance less TARGET that counts: one refusal says little
FIRST = 0.3  # Step of the first trajectory, in units of 1 / sqrt(largest curvature)


@dataclass(frozen=True)
class Continuation:
    """C chains that went on by exact HMC.

    theta: (C, d) where they ended. energies: (C, trajectories + 1) U after each, nats, the start first. acceptance:
    mean probability, once the step no longer adapted.
    """

    theta: Tensor
    energies: Tensor
    acceptance: float

    @property
    def late(self) -> Tensor:
        """(C, n) U after each trajectory of the second half, nats."""
        return self.energies[:, self.energies.shape[1] // 2 :]

    @property
    def change(self) -> Tensor:
        """(C,) mean U of the second half of the trajectories less that of the start, nats."""
        return self.late.mean(1) - self.energies[:, 0]


@torch.no_grad()
def continue_exactly(
    potential: ExactPotential,
    theta: Tensor,
    temperature: Tensor,
    steepest: Tensor,
    trajectories: int,
    random: torch.Generator,
    seen: Callable[[int, Tensor, Tensor], None] | None = None,
) -> Continuation:
    """HMC (Duane et al. 1987) at exp(-U/T) from θ (C, d).

    temperature: (C,). steepest: (C,) about the largest curvature of U, which decides the first step. seen: called
    after every trajectory with its number, from 1 on, θ (C, d) and U (C,), nats.
    """
    kernel, n, adapting = HMC(leapfrog=LEAPFROG), potential.num_data, int(ADAPTED * trajectories)
    kind = {"device": theta.device, "dtype": widest(theta.device)}

    def evaluate(at: Tensor) -> tuple[Tensor, Tensor]:
        energy, g = potential(at)
        return (energy / n).to(**kind)[:, None], g / n

    s = kernel.init(theta.clone())
    value, s.gradient = evaluate(s.theta)
    s.potential = value.squeeze(-1)
    lr = (FIRST**2 / 2) * (n / steepest)[:, None].to(**kind)  # h = sqrt(2 lr) = FIRST / sqrt(curvature of U/N)
    tau, energies = (temperature[:, None] / n).to(**kind), [s.potential.cpu().double() * n]
    for number in range(1, trajectories + 1):
        z = torch.randn(theta.shape, generator=random, dtype=theta.dtype).to(theta.device)
        log_u = torch.rand((len(theta), 1), generator=random, dtype=torch.float64).log().to(**kind)
        s = kernel.kernel(s, evaluate, lr, tau, z, log_u)
        if number <= adapting:  # faster than HMC by itself, which begins near its step
            s.log_factor += ADAPTATION_GAIN * (s.accepted - TARGET).clamp_min(WORST) / math.sqrt(number)
            s.accepted.zero_()
        energies.append(s.potential.cpu().double() * n)
        if seen is not None:
            seen(number, s.theta, energies[-1])
    return Continuation(s.theta, torch.stack(energies, 1), float(s.accepted.mean()) / max(1, trajectories - adapting))
