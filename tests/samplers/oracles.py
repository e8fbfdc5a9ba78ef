"""Laws known without a random number: linear steps by Lyapunov's equation, steps in one dimension on a grid."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from scipy.linalg import solve_discrete_lyapunov

COVARIANCE = torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
PRECISION = torch.linalg.inv(COVARIANCE)  # eigenvalues 1/1.8 and 5


@dataclass(frozen=True)
class LinearStep:
    """state <- M state + B z + G xi, for z ~ N(0, 1) and an error xi of the gradient; state = (θ, m) stacked, or θ."""

    M: np.ndarray
    B: np.ndarray
    G: np.ndarray
    d: int

    def covariance(self, gradient_covariance: np.ndarray | None = None) -> np.ndarray:
        noise = self.B @ self.B.T
        if gradient_covariance is not None:
            noise = noise + self.G @ gradient_covariance @ self.G.T
        return solve_discrete_lyapunov(self.M, noise)

    def theta_covariance(self, gradient_covariance: np.ndarray | None = None) -> np.ndarray:
        return self.covariance(gradient_covariance)[: self.d, : self.d]


def linear_step(dynamics, precision, lr: float, tau: float) -> LinearStep:
    """The matrices of one step on U/N = θ'Aθ/2, read off by feeding basis vectors to `dynamics.step` in float64."""
    A = torch.as_tensor(precision, dtype=torch.float64)
    d = len(A)
    k = d * len(dataclasses.fields(dynamics.init(torch.zeros(1, d, dtype=torch.float64))))

    def response(state, z, xi):
        theta, *rest = (part.contiguous() for part in state.split(d, dim=1))
        s = dynamics.init(theta)
        s = dataclasses.replace(s, **dict(zip([f.name for f in dataclasses.fields(s)][1:], rest, strict=True)))
        s = dynamics.step(s, theta @ A.T + xi, lr, tau, z.clone())
        return torch.cat([getattr(s, f.name) for f in dataclasses.fields(s)], 1).T.numpy()

    def zeros(*shape):
        return torch.zeros(*shape, dtype=torch.float64)

    one, each = torch.eye(d, dtype=torch.float64), torch.eye(k, dtype=torch.float64)
    return LinearStep(
        M=response(each, zeros(k, d), zeros(k, d)),
        B=response(zeros(d, k), one, zeros(d, d)),
        G=response(zeros(d, k), zeros(d, d), one),
        d=d,
    )


@dataclass(frozen=True)
class Well:
    """Double well U(x) = height (x² - 1)² + tilt x in one dimension."""

    height: float = 1.0
    tilt: float = 0.3

    def energy(self, x):
        return self.height * (x * x - 1) ** 2 + self.tilt * x

    def grad(self, x):
        return 4 * self.height * x * (x * x - 1) + self.tilt


def langevin_law(drift: np.ndarray, e: float, T: float, x: np.ndarray) -> np.ndarray:
    """Mass at the points of a grid x of the stationary law of x <- x - e drift + sqrt(2 e T) z, at this very e."""
    kernel = np.exp(-((x[None] - (x - e * drift)[:, None]) ** 2) / (4 * e * T))
    kernel /= kernel.sum(1, keepdims=True)
    equations = np.vstack([(kernel.T - np.eye(len(x)))[1:], np.ones(len(x))])  # p K = p, sum p = 1
    return np.linalg.solve(equations, np.eye(len(x))[-1])


def momentum_law(well: Well, a: float, e: float, T: float, dx: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Grid x and its stationary mass under m <- (1 - a) m - e U'(x) + sqrt(2 a e T) z; x <- x + m, at this very e.

    m lives on a grid of the same spacing, so that x + m is a grid point. The sum over a grid finer than the noise's
    standard deviation is exact to 1e-8. Starts at the law for e -> 0 and iterates the step.
    """
    x = np.arange(-round(2.6 / dx), round(2.6 / dx) + 1) * dx
    j = round(6 * np.sqrt(2 * e * T / (2 - a)) / dx)
    m = np.arange(-j, j + 1) * dx
    mean = (1 - a) * m[None, :] - e * well.grad(x)[:, None]  # (x, m)
    kernel = np.exp(-((m[None, None] - mean[:, :, None]) ** 2) / (4 * a * e * T))
    kernel *= dx / np.sqrt(4 * np.pi * a * e * T)
    p = np.exp(-well.energy(x)[:, None] / T - m[None] ** 2 * (2 - a) / (4 * e * T))
    i = np.arange(len(x))[:, None] - np.arange(-j, j + 1)[None]  # x' - m'
    inside, i = (i >= 0) & (i < len(x)), i.clip(0, len(x) - 1)
    for _ in range(steps):
        moved = np.matmul(p[:, None, :], kernel)[:, 0]  # (x, m')
        p = np.where(inside, moved[i, np.arange(len(m))[None]], 0)
        p /= p.sum()
    return x, p.sum(1)


def refine(x: np.ndarray, mass: np.ndarray, factor: int) -> tuple[np.ndarray, np.ndarray]:
    """The same law on a grid `factor` times finer, by a spline of its log density."""
    fine = np.linspace(x[0], x[-1], factor * (len(x) - 1) + 1)
    p = np.exp(CubicSpline(x, np.log(np.maximum(mass, 1e-300)))(fine))
    return fine, p / p.sum()


@dataclass(frozen=True)
class Estimate:
    """Time averages of statistics over independent chains, with standard errors from between the chains."""

    mean: np.ndarray
    se: np.ndarray

    @classmethod
    def over_chains(cls, averages: torch.Tensor) -> Estimate:
        """averages: (C, k), one row per chain."""
        averages = averages.double()
        return cls(averages.mean(0).numpy(), (averages.std(0) / len(averages) ** 0.5).numpy())

    def z(self, expected) -> np.ndarray:
        return (self.mean - np.asarray(expected)) / self.se
