"""A linear regression whose posterior is known, and whose batch noise is strong in one direction.

y = x'β + ε with x ~ N(0, 1), where ε grows with x along one direction that all coordinates have in common. The model
takes ε for N(0, 1), so that U is quadratic and the posterior normal. The noise of a batch is far stronger along that
direction than elsewhere; the curvature is about the same everywhere.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import bdl
from bdl.samplers.potential import BoundGradient

N, BATCH, D = 2000, 20, 6
D64 = torch.float64
_RANDOM = torch.Generator().manual_seed(4)
LOUD = torch.full((D,), D**-0.5, dtype=D64)  # the direction of strong noise, of length 1
X = torch.randn(N, D, generator=_RANDOM, dtype=D64)
Y = X.sum(1) + torch.randn(N, generator=_RANDOM, dtype=D64) * (0.5 + 0.2 * (X @ LOUD) ** 4)
H = (X.T @ X + torch.eye(D, dtype=D64)) / N  # Hessian of U/N, under the prior N(0, 1)
MODE = torch.linalg.solve(H, X.T @ Y / N)
COVARIANCE = torch.linalg.inv(H) / N  # the posterior's
# Directions in which variances are measured: the loud one, and others that are orthogonal to it
AXES = torch.linalg.qr(torch.cat([LOUD[:, None], torch.eye(D, dtype=D64)[:, 1:]], 1))[0].T


# Covariance of the gradient of a batch that is drawn with replacement, at the mode
NOISE = torch.cov((X * (X @ MODE - Y)[:, None]).T, correction=0) / BATCH


def controlled_noise(distance: Tensor) -> Tensor:
    """(D, D) the same with a control variate, averaged over θ - anchor of second moments `distance` (D, D).

    An item's part is x x' (θ - anchor), whose mean over items is S (θ - anchor).
    """
    S = X.T @ X / N
    return ((X @ distance * X).sum(1)[:, None] * X).T @ X / N / BATCH - S @ distance @ S / BATCH


class Regression:
    """Chains of a sampler on batches of the regression, each chain with its own. They begin in its posterior."""

    def __init__(
        self,
        dynamics: Any,
        lr: float,
        chains: int = 100,
        seed: int = 0,
        at_mode: bool = False,
        batch: int = BATCH,
        **settings: Any,
    ):
        random = torch.Generator().manual_seed(seed)
        z = torch.randn(chains, D, generator=random, dtype=D64)
        start = MODE.expand(chains, D) if at_mode else MODE + z @ torch.linalg.cholesky(COVARIANCE).T
        self.theta = start.clone().requires_grad_()
        self.draw, self.batch = random, batch
        self.sampler = bdl.Sampler([self.theta], dynamics, num_data=N, lr=lr, chains=chains, seed=seed, **settings)
        self.sampler.full_gradient = self.full_gradient
        self.gradients = 0.0  # gradients of single items that each chain has taken

    def mean(self, rows: Tensor, out: Tensor) -> Tensor:
        """(C,) mean losses over the rows (C, B), whose gradients go into `out` (C, D)."""
        x = X[rows]
        residual = (x @ self.theta.detach()[..., None]).squeeze(-1) - Y[rows]
        torch.bmm(residual[:, None], x, out=out[:, None]).div_(rows.shape[-1])
        self.gradients += rows.shape[-1]
        return residual.square().mean(-1) / 2

    def full_gradient(self) -> Tensor:
        residual = self.theta.detach() @ X.T - Y
        self.theta.grad = residual @ X / N
        self.gradients += N
        return residual.square().mean(-1) / 2

    def step(self) -> Tensor:
        """(C,) losses of a step on the next batches."""
        rows = torch.randint(N, (len(self.theta), self.batch), generator=self.draw)

        def gradient(out: Sequence[Tensor]) -> Tensor:
            return self.mean(rows, out[0])

        return self.sampler.advance(BoundGradient(gradient))

    def run(self, steps: int, burn_in: int = 0) -> Tensor:
        """(C, D) mean squares of θ - MODE along AXES over a chain, divided by those of the posterior at T = 1."""
        total = torch.zeros_like(self.theta)
        for step in range(burn_in + steps):
            self.step()
            if step >= burn_in:
                total += ((self.theta.detach() - MODE) @ AXES.T).square()
        return total / steps / (AXES @ COVARIANCE @ AXES.T).diagonal()
