"""What bench.py's samplers sample: Landsat, whose speed is measured, and a linear regression, whose law is known."""

from dataclasses import dataclass

import numpy as np
import torch

import bdl
from bdl.data import LandsatDataModule, TensorBatches
from bdl.models import MLP


@dataclass(frozen=True)
class Problem:
    """exp(-U/T) for U = Σ NLL + |θ|²/2 of an MLP, sampled by SGHMC in the form of `bdl.SGHMC`.

        m <- (1 - a) m - lr grad U/N + sqrt(2 a lr T/N) z
        θ <- θ + m

    x: (N, features) float32. y: (N,) int64 classes, or (N, 1) float32 values with errors of standard deviation 1.
    """

    sizes: tuple[int, ...]
    x: torch.Tensor
    y: torch.Tensor
    batch: int
    lr: float
    temperature: float
    friction: float = 0.1

    @property
    def num_data(self) -> int:
        return len(self.x)

    @property
    def tau(self) -> float:
        """T/N."""
        return self.temperature / self.num_data

    @property
    def classes(self) -> bool:
        """Whether the labels are classes."""
        return not self.y.is_floating_point()

    @property
    def dim(self) -> int:
        return sum((fan_in + 1) * out for fan_in, out in zip(self.sizes[:-1], self.sizes[1:], strict=True))

    def loss(self) -> bdl.CategoricalNLL | bdl.GaussianNLL:
        return bdl.CategoricalNLL() if self.classes else bdl.GaussianNLL(1.0)

    def stack(self, chains: int) -> bdl.ChainStack:
        return bdl.ChainStack(MLP(self.sizes), chains)

    def batches(self, chains: int | None) -> TensorBatches:
        return TensorBatches(self.x, self.y, self.batch, chains=chains)

    def sampler(self, params, chains: int | None = None) -> bdl.Sampler:
        return bdl.Sampler(
            params, bdl.SGHMC(self.friction), num_data=self.num_data, lr=self.lr, temperature=self.temperature,
            chains=chains,
        )  # fmt: skip


def landsat() -> Problem:
    """The network of `experiment=landsat/liang`, and about its numbers."""
    x, y = LandsatDataModule().tensors("train")
    return Problem((36, 30, 30, 6), x, y, batch=100, lr=0.1, temperature=0.2)


def regression() -> Problem:
    """A linear regression with full batches: a Gaussian posterior, and no batch noise."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(50, 4, generator=draw)
    y = x.sum(1, keepdim=True) + torch.randn(50, 1, generator=draw)
    return Problem((4, 1), x, y, batch=50, lr=0.01, temperature=1.0)


class Quadratic:
    """U - min U of `regression()`, and its mean under a sampler's law at its step size.

    U is quadratic, so SGHMC is a linear recurrence in every eigendirection of its matrix, and the stationary variance
    is that recurrence's fixed point: T / k for a small lr, and known exactly for every other.
    """

    def __init__(self, problem: Problem):
        self.problem = problem
        x = np.concatenate([problem.x.double().numpy(), np.ones((problem.num_data, 1))], 1)
        self.matrix = x.T @ x + np.eye(x.shape[1])
        self.minimum = np.linalg.solve(self.matrix, x.T @ problem.y.double().numpy()[:, 0])

    def energy(self, theta: np.ndarray) -> np.ndarray:
        """(...) U - min U, nats, of parameters (..., d): the weights, then the bias."""
        away = theta - self.minimum
        return 0.5 * np.einsum("...i,ij,...j->...", away, self.matrix, away)

    def mean(self, explicit: bool = False, refresh: int | None = None) -> float:
        """Mean of U - min U. It tends to d T / 2 as lr -> 0.

        explicit: θ moves before m, by the old m. refresh: m is drawn anew every so many steps.
        """
        p, total = self.problem, 0.0
        for k in np.linalg.eigvalsh(self.matrix):
            pull, keep = p.lr * k / p.num_data, 1 - p.friction
            move = np.array([[1, 1], [-pull, keep]] if explicit else [[1 - pull, keep], [-pull, keep]])
            kick = np.array([0.0, 1.0] if explicit else [1.0, 1.0])
            noise = 2 * p.friction * p.lr * p.tau * np.outer(kick, kick)
            law, fresh = np.zeros((2, 2)), p.lr * p.tau
            for step in range(4000):
                if refresh and step % refresh == 0:
                    law = np.diag([law[0, 0], fresh])
                law = move @ law @ move.T + noise
            total += 0.5 * k * law[0, 0]
        return total
