"""A short exact continuation: HMC over all data from the last states of a run. If U falls, the run was hotter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bdl.devices import widest
from bdl.law.exact import ExactPotential
from bdl.samplers.dynamics.metropolis import HMC

LEAPFROG = 10  # steps of a trajectory, in the mean
TARGET = 0.9  # acceptance; smaller steps than usual, because the run may begin far from rest
ADAPTED = 0.4  # share of the trajectories in which the step adapts
FIRST = 0.3  # step of the first trajectory, in units of 1 / sqrt(largest curvature)


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
    def change(self) -> Tensor:
        """(C,) mean U of the second half of the trajectories less that of the start, nats."""
        late = self.energies[:, self.energies.shape[1] // 2 :]
        return late.mean(1) - self.energies[:, 0]


@torch.no_grad()
def continue_exactly(
    potential: ExactPotential,
    theta: Tensor,
    temperature: Tensor,
    steepest: Tensor,
    trajectories: int,
    random: torch.Generator,
    keep: list[Tensor] | None = None,
) -> Continuation:
    """HMC (Duane et al. 1987) at exp(-U/T) from θ (C, d).

    temperature: (C,). steepest: (C,) about the largest curvature of U, which decides the first step. keep: takes a copy
    of θ after every trajectory.
    """
    kernel, n = HMC(leapfrog=LEAPFROG, target=TARGET, adapt_steps=int(ADAPTED * trajectories)), potential.num_data
    kind = {"device": theta.device, "dtype": widest(theta.device)}

    def evaluate(at: Tensor) -> tuple[Tensor, Tensor]:
        energy, g = potential(at)
        return (energy / n).to(**kind)[:, None], g / n

    s = kernel.init(theta.clone())
    value, s.gradient = evaluate(s.theta)
    s.potential = value.squeeze(-1)
    lr = (FIRST**2 / 2) * (n / steepest)[:, None].to(**kind)  # h = sqrt(2 lr) = FIRST / sqrt(curvature of U/N)
    tau, energies = (temperature[:, None] / n).to(**kind), [s.potential.cpu().double() * n]
    for _ in range(trajectories):
        z = torch.randn(theta.shape, generator=random, dtype=theta.dtype).to(theta.device)
        log_u = torch.rand((len(theta), 1), generator=random, dtype=torch.float64).log().to(**kind)
        s = kernel.kernel(s, evaluate, lr, tau, z, log_u)
        energies.append(s.potential.cpu().double() * n)
        if keep is not None:
            keep.append(s.theta.clone())
    return Continuation(s.theta, torch.stack(energies, 1), float(kernel.acceptance(s).mean()))
