"""Bayesian logistic regression, the usual law without conjugacy on which mini-batch samplers are tested."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bdl.seeding import generator
from literature.targets.base import DataTarget, double, freeze


def simulate_logistic(n: int = 1000, p: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """X (n, p), an intercept and p - 1 standard normals; y (n,) in {0, 1}. The weights alternate between 1 and -1."""
    noise = generator("cpu", "logistic", seed)
    X = torch.randn(n, p, generator=noise, dtype=torch.float64)
    X[:, 0] = 1.0
    w = torch.ones(p, dtype=torch.float64)
    w[1::2] = -1.0
    return X, (torch.rand(n, generator=noise, dtype=torch.float64) < (X @ w).sigmoid()).double()


@dataclass(frozen=True, eq=False)
class LogisticRegression(DataTarget):
    """P(y_i = 1 | w) = 1 / (1 + exp(-x_i' w)), w ~ N(0, I / λ).

        U(w) = Σ_i [softplus(x_i' w) - y_i x_i' w] + λ |w|² / 2 - p/2 log(λ / 2π)

    X (n, p), y (n,) of zeros and ones. λ = prior_precision. U is convex with minimum `mode()`.
    """

    X: Any  # (n, p)
    y: Any  # (n,)
    prior_precision: float = 1.0

    def __post_init__(self) -> None:
        freeze(self, X=double(self.X), y=double(self.y))

    @property
    def dim(self) -> int:
        return self.X.shape[1]

    def loss_and_grad(self, x: Tensor, index: Tensor | None = None) -> tuple[Tensor, Tensor]:
        X, y, weight = self.X.to(x), self.y.to(x), self.prior_precision / self.num_data
        if index is None:
            logits = x @ X.T  # (..., n)
            pull = (logits.sigmoid() - y) @ X
        else:
            X, y = X[index], y[index]
            logits = (X @ x[..., None]).squeeze(-1)
            pull = ((logits.sigmoid() - y)[..., None, :] @ X).squeeze(-2)
        constant = -0.5 * self.dim * math.log(self.prior_precision / (2 * math.pi)) / self.num_data
        loss = (softplus(logits) - y * logits).mean(-1) + 0.5 * weight * x.square().sum(-1) + constant
        return loss, pull / logits.shape[-1] + weight * x

    def hessian(self, x: Tensor) -> Tensor:
        """(p,) -> (p, p) Hessian of U."""
        probability = (self.X.to(x) @ x).sigmoid()
        curvature = (self.X.to(x) * (probability * (1 - probability))[:, None]).T @ self.X.to(x)
        return curvature + self.prior_precision * torch.eye(self.dim).to(x)

    def mode(self) -> Tensor:
        """(p,) minimum of U, by Newton's method with halved steps."""
        w = torch.zeros(self.dim, dtype=torch.float64)
        for _ in range(100):
            energy, grad = self.energy_and_grad(w)
            step = torch.linalg.solve(self.hessian(w), grad)
            while self.energy(w - step) > energy + 1e-9:  # U is convex, so the halving terminates
                step = step / 2
            w = w - step
            if step.abs().max() < 1e-12:
                break
        return w
