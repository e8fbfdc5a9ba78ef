"""A linear regression whose posterior is known in every direction, in batches whose noise follows the curvature.

The condition number of the covariance of x is 58. The noise of a batch has a covariance in proportion to the curvature,
about, as in any model that fits its data.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import bdl
from bdl.engine.noise_draws import contrasts

N, D, BATCH, CONDITION = 400, 30, 40, 58.0
D64 = torch.float64
_RANDOM = torch.Generator().manual_seed(0)
_Q = torch.linalg.qr(torch.randn(D, D, generator=_RANDOM, dtype=D64)).Q
_WHITE = torch.linalg.qr(torch.randn(N, D, generator=_RANDOM, dtype=D64)).Q * N**0.5
X = _WHITE * torch.logspace(0, 1, D, CONDITION**0.5, dtype=D64) @ _Q.T  # (N, D)
Y = X.sum(1) / D**0.5 + torch.randn(N, generator=_RANDOM, dtype=D64)
H = (X.T @ X + torch.eye(D, dtype=D64)) / N  # Hessian of U/N, under the prior N(0, 1)
CURVATURE, AXES = torch.linalg.eigh(H)  # (D,) ascending, so that soft directions come first; (D, D) in columns
MODE = torch.linalg.solve(H, X.T @ Y / N)
# Covariance of the gradient of a batch that is drawn with replacement, the mean over the posterior
_SPREAD = torch.linalg.inv(H) / N
_RESIDUALS = (X @ MODE - Y).square() + ((X @ _SPREAD) * X).sum(1)
NOISE = (X * _RESIDUALS[:, None]).T @ X / N / BATCH
SIXTH = D // 6


def lr_of(noise_ratio: float, friction: float = 0.1) -> float:
    """The lr at which batches bring so many times the noise that SGHMC injects, in the mean over coordinates."""
    return noise_ratio * 2 * friction / N / (NOISE.trace().item() / D)


class Regression:
    """Chains of a sampler that begin in the posterior, each with batches of its own.

    replacement: draw the items of a batch independently. Else batches are parts of shuffled epochs.
    """

    def __init__(self, dynamics: Any, lr: float, chains: int = 48, seed: int = 0, replacement: bool = True):
        self.draw, self.replacement = torch.Generator().manual_seed(seed), replacement
        z = torch.randn(chains, D, generator=self.draw, dtype=D64)
        self.theta = (MODE + z * (CURVATURE * N).rsqrt() @ AXES.T).requires_grad_()
        self.sampler = bdl.Sampler([self.theta], dynamics, num_data=N, lr=lr, chains=chains, seed=seed)
        self.sampler.extras["noise_draws"] = self.noise_draws
        self.rows: Tensor = torch.empty(0)
        self._epoch: list[Tensor] = []

    def next_rows(self) -> Tensor:
        """(C, BATCH) items of the next batches."""
        shape = len(self.theta), BATCH
        if self.replacement:
            return torch.randint(N, shape, generator=self.draw)
        if not self._epoch:
            order = torch.rand(shape[0], N, generator=self.draw).argsort(1)
            self._epoch = list(order.split(BATCH, 1))
        return self._epoch.pop()

    def each(self) -> tuple[Tensor, Tensor]:
        """Inputs (C, BATCH, D) and residuals (C, BATCH) of the present batches."""
        x = X[self.rows]
        return x, (x @ self.theta.detach()[..., None]).squeeze(-1) - Y[self.rows]

    def noise_draws(self, groups: int = 8) -> Tensor:
        """(C, groups - 1, D) as `bdl.noise_draws`, written out."""
        x, residual = self.each()
        parts = (x * residual[..., None]).unflatten(1, (groups, -1)).mean(2)
        scale = groups**-0.5 * (1 if self.replacement else (1 - BATCH / N) ** 0.5)
        return scale * (contrasts(groups) @ parts)

    def step(self) -> None:
        self.rows = self.next_rows()
        x, residual = self.each()
        self.theta.grad = (residual[:, None] @ x).squeeze(1) / BATCH
        self.sampler.step()

    def run(self, steps: int, burn_in: int, watch: Callable[[Tensor], None] | None = None) -> Tensor:
        """(C, D) mean square of θ along every axis, over the posterior's: 1 in the right distribution."""
        total = torch.zeros_like(self.theta)
        for step in range(burn_in + steps):
            self.step()
            if step >= burn_in:
                total += ((self.theta.detach() - MODE) @ AXES).square()
        return (total / steps * CURVATURE * N).detach()
