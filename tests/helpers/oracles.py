"""Stationary laws without random numbers: by Lyapunov's equation for linear steps, on points of a grid for others."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from scipy.interpolate import CubicSpline
from scipy.linalg import solve_discrete_lyapunov
from scipy.optimize import newton
from scipy.sparse.linalg import eigs

COVARIANCE = torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
PRECISION = torch.linalg.inv(COVARIANCE)  # eigenvalues 1/1.8 and 5


@dataclass(frozen=True)
class LinearStep:
    """state <- M state + B z + G xi, z ~ N(0, 1), xi the error of the gradient; the state is (θ, m) stacked, or θ."""

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

    def second_difference(self, precision: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """(d, d) mean of D D', D = g0 - 2 g1 + g2 for g = A θ + xi at three steps, with xi of covariance `noise`."""
        A, M, d = precision, self.M, self.d
        read = np.concatenate([A, np.zeros((d, len(M) - d))], 1)  # of a state
        second, first = read @ M - 2 * read, read  # of what comes in with the second state, and with the third
        of_state = second @ M + read
        ahead, last, eye = second @ self.G, first @ self.G, np.eye(d)
        total = of_state @ self.covariance(noise) @ of_state.T
        total = total + sum(f @ self.B @ self.B.T @ f.T for f in (second, first))
        return total + sum(f @ noise @ f.T for f in (eye + ahead, last - 2 * eye, eye))


def vectors(state) -> list[str]:
    """Names of the fields that move: θ, and m if the state has a momentum. All other fields are memory."""
    return [f.name for f in dataclasses.fields(state) if f.name in ("theta", "m")]


def state_of(dynamics, parts, memory):
    """A state with the given θ and, where it has one, m, each (n, d), and with the same memory in every row."""
    state = dynamics.init(parts[0].clone())
    values = dict(zip(vectors(state)[1:], (part.clone() for part in parts[1:]), strict=True))
    for name, v in memory.items():
        values[name] = v.to(parts[0]).expand_as(getattr(state, name)).clone() if isinstance(v, torch.Tensor) else v
    return dataclasses.replace(state, **values)


def advance(dynamics, state, g, lr, tau, z, extra=None):
    """One step. Dynamics that need more than a gradient receive `extra`."""
    return dynamics.step(state, g.clone(), lr, tau, z.clone(), *([extra or {}] if dynamics.needs else []))


def linear_step(dynamics, precision, lr, tau, memory=None, extra=None) -> LinearStep:
    """The matrices of one step on U/N = θ'Aθ/2, found by feeding basis vectors to `dynamics.step` in float64.

    lr, tau: numbers, or (d,) tensors of one per coordinate.
    """
    A = torch.as_tensor(precision, dtype=torch.float64)
    d = len(A)
    k = d * len(vectors(dynamics.init(torch.zeros(1, d, dtype=torch.float64))))

    n = dynamics.noise_numbers(d)

    def response(state, z, xi):
        parts = state.split(d, dim=1)
        s = advance(dynamics, state_of(dynamics, parts, memory or {}), parts[0] @ A.T + xi, lr, tau, z, extra)
        return torch.cat([getattr(s, name) for name in vectors(s)], 1).T.numpy()

    def zeros(*shape):
        return torch.zeros(*shape, dtype=torch.float64)

    one, each, noise = (torch.eye(size, dtype=torch.float64) for size in (d, k, n))
    return LinearStep(
        M=response(each, zeros(k, n), zeros(k, d)),
        B=response(zeros(n, k), noise, zeros(n, d)),
        G=response(zeros(d, k), zeros(d, n), one),
        d=d,
    )


def settled(dynamics, momenta, lr: float, tau: float) -> dict:
    """The friction at which a slow thermostat settles: under the law that it then produces, its mean change is 0.

    momenta(memory): points m (n, d) and weights (n,) of the law of m while the state has this memory.
    """

    def rise(xi):
        memory = {"xi": torch.tensor(xi, dtype=torch.float64)}
        m, weight = momenta(memory)
        zero = torch.zeros(
            m.shape, dtype=torch.float64
        )  # from θ = m = z = 0, a gradient -m/lr makes the new momentum m
        state = state_of(dynamics, [zero, zero], memory)
        return weight @ (advance(dynamics, state, torch.from_numpy(-m) / lr, lr, tau, zero).xi.numpy() - xi)

    xi = newton(rise, dynamics.friction, x1=1.01 * dynamics.friction, tol=1e-6)
    return {"xi": torch.tensor(xi, dtype=torch.float64)}


def memory_of(row, dynamics, precision, lr: float, tau: float, gradient_covariance=None) -> dict:
    """The memory that the dynamics of a row has long after the start, on U/N = θ'Aθ/2."""
    d = len(precision)

    def momenta(memory):
        step = linear_step(dynamics, precision, lr, tau, memory)
        columns = np.linalg.cholesky(step.covariance(gradient_covariance)[d:, d:]).T * d**0.5
        return np.concatenate([columns, -columns]), np.full(2 * d, 0.5 / d)  # these points integrate quadratics exactly

    return settled(dynamics, momenta, lr, tau) if row.thermostat else row.memory(d)


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
    """Masses of the stationary law of x <- x - e drift + sqrt(2 e T) z, for this step e, at the points of a grid x."""
    kernel = np.exp(-((x[None] - (x - e * drift)[:, None]) ** 2) / (4 * e * T))
    kernel /= kernel.sum(1, keepdims=True)
    equations = np.vstack([(kernel.T - np.eye(len(x)))[1:], np.ones(len(x))])  # p K = p, sum p = 1
    return np.linalg.solve(equations, np.eye(len(x))[-1])


@dataclass(frozen=True)
class NodeLaw:
    """A law given by points and weights, which average smooth functions."""

    theta: np.ndarray  # (n, d)
    weight: np.ndarray  # (n,) adds to 1
    m: np.ndarray | None = None  # (n, d)

    def mean(self, values) -> np.ndarray:
        """(n, ...) values at the points -> (...) expectation."""
        return np.tensordot(self.weight, np.asarray(values), 1)


def panels(edges, nodes: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre points (n,) and weights (n,) between consecutive edges. Integrands may jump at an edge."""
    t, w = np.polynomial.legendre.leggauss(nodes)
    start, half = np.asarray(edges)[:-1, None], np.diff(edges)[:, None] / 2
    return (start + half * (1 + t)).ravel(), (half * w).ravel()


def first_order_law(dynamics, grad, theta, weight, lr: float, tau: float, memory=None, curvature=None) -> NodeLaw:
    """The stationary law of θ <- mean(θ) + root(θ) z at the given lr, computed without random numbers.

    theta (n, d), weight (n,): points and weights of a quadrature, whose accuracy is that of the law. grad, curvature:
    functions of U/N, (n, d) θ -> (n, d), float64 tensors. `dynamics.step` gives the mean at z = 0 and the columns of
    the root at the unit vectors.
    """
    n, d = theta.shape
    x = torch.from_numpy(theta)
    extra = {} if curvature is None else {"curvature": curvature(x)}

    def moved(z):
        z = torch.as_tensor(z, dtype=torch.float64).expand(n, d)
        return advance(dynamics, state_of(dynamics, [x], memory or {}), grad(x), lr, tau, z, extra).theta.numpy()

    mean = moved(np.zeros(d))
    root = np.stack([moved(unit) - mean for unit in np.eye(d)], 2)  # (n, d, d)
    y = np.einsum("nij,nmj->nmi", np.linalg.inv(root), theta[None] - mean[:, None])  # (from, to, d) standard normal
    flow = np.exp(-0.5 * (y**2).sum(2)) * weight / np.abs(np.linalg.det(root))[:, None]
    flow /= flow.sum(1, keepdims=True)
    return NodeLaw(theta, _eigenvector(flow.T))


def second_order_law(dynamics, grad, x, lr: float, tau: float, memory=None, scale=None) -> NodeLaw:
    """The stationary law of (θ, m) in one dimension at the given lr, for any step.

    x: a grid of equal spacing. The grid of m has 41 points, up to 6 times `scale`, or the spread of a displacement.
    The mean of f(θ', m') over z is a Gauss-Hermite sum over the new states, which `dynamics.step` gives. There f is
    interpolated from 6 grid points per axis. This makes a sparse matrix whose left eigenvector with eigenvalue 1 is
    the law. Grids of spacing .05 and .04 agree to 1e-6.
    """
    m = np.linspace(-6, 6, 41) * (scale or np.sqrt(2 * lr * tau / (2 - dynamics.friction)))
    states = np.stack([axis.ravel() for axis in np.meshgrid(x, m, indexing="ij")], 1)
    parts = torch.from_numpy(states).split(1, 1)
    n, flow = len(states), sparse.csr_matrix((len(states), len(states)))
    for z, w in zip(*np.polynomial.hermite_e.hermegauss(12), strict=True):
        z = torch.full((n, 1), z, dtype=torch.float64)
        s = advance(dynamics, state_of(dynamics, parts, memory or {}), grad(parts[0]), lr, tau, z)
        (i, wx), (j, wm) = _interpolation(x, s.theta[:, 0].numpy()), _interpolation(m, s.m[:, 0].numpy())
        columns = (i[:, :, None] * len(m) + j[:, None]).ravel()
        values = w / np.sqrt(2 * np.pi) * (wx[:, :, None] * wm[:, None]).ravel()
        flow = flow + sparse.csr_matrix((values, (np.repeat(np.arange(n), 36), columns)), shape=(n, n))
    return NodeLaw(states[:, :1], _eigenvector(flow.T.tocsr()), states[:, 1:])


def _eigenvector(flow) -> np.ndarray:
    value, vector = eigs(flow, k=1, which="LM", v0=np.ones(flow.shape[0]), tol=1e-10)
    assert abs(value[0] - 1) < 1e-6
    return vector[:, 0].real / vector[:, 0].real.sum()


def _interpolation(axis: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n, 6) indices into an axis and Lagrange weights that interpolate at x (n,), which is clamped to the axis."""
    t = ((x - axis[0]) / (axis[1] - axis[0])).clip(0, len(axis) - 1)
    first = (np.floor(t).astype(int) - 2).clip(0, len(axis) - 6)
    j = np.arange(6)
    s = (t - first)[:, None, None] - j  # (n, 1, 6) distance from the other points
    others = np.where(np.eye(6, dtype=bool), 1.0, s / np.where(np.eye(6), 1, j[:, None] - j))
    return first[:, None] + j, others.prod(2)


def refine(x: np.ndarray, mass: np.ndarray, factor: int) -> tuple[np.ndarray, np.ndarray]:
    """The same law on a grid `factor` times finer, by a spline through its log density."""
    fine = np.linspace(x[0], x[-1], factor * (len(x) - 1) + 1)
    p = np.exp(CubicSpline(x, np.log(np.maximum(mass, 1e-300)))(fine))
    return fine, p / p.sum()


@dataclass(frozen=True)
class Estimate:
    """Time averages of statistics, as means over independent chains with standard errors between chains."""

    mean: np.ndarray
    se: np.ndarray

    @classmethod
    def over_chains(cls, averages: torch.Tensor) -> Estimate:
        """averages: (C, k), one row per chain."""
        averages = averages.double()
        return cls(averages.mean(0).numpy(), (averages.std(0) / len(averages) ** 0.5).numpy())

    def z(self, expected) -> np.ndarray:
        return (self.mean - np.asarray(expected)) / self.se
