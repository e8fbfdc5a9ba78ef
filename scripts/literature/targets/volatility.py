"""A stochastic volatility model: a time series whose log-variance follows a hidden autoregression."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from bdl.seeding import generator
from literature.targets.base import DataTarget, double, freeze

# Priors of Kim, Shephard and Chib (1998), section 2.2
MEAN_VARIANCE = 10.0  # mu ~ N(0, 10)
PERSISTENCE = (20.0, 1.5)  # (phi + 1) / 2 ~ Beta(20, 1.5)
VARIANCE = (2.5, 0.025)  # sigma² ~ IG(2.5, .025)


def simulate_volatility(
    n: int = 200, mu: float = -1.0, phi: float = 0.95, sigma: float = 0.25, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """y (n,) observations and h (n,) log-volatilities of `StochasticVolatility` at known parameters."""
    stream = generator("cpu", "volatility", seed)
    z, e = torch.randn(2, n, generator=stream, dtype=torch.float64)
    deviations = [(sigma / math.sqrt(1 - phi**2) * z[0]).item()]
    for shock in z[1:].tolist():
        deviations.append(phi * deviations[-1] + sigma * shock)
    h = mu + torch.tensor(deviations, dtype=torch.float64)
    return (h / 2).exp() * e, h


@dataclass(frozen=True, eq=False)
class StochasticVolatility(DataTarget):
    """Kim, Shephard and Chib (1998), eq. 1, with their priors.

        y_t ~ N(0, exp(h_t)),    h_t ~ N(mu + phi (h_{t-1} - mu), sigma²),    h_1 ~ N(mu, sigma² / (1 - phi²))

    as a law of (mu, a, b, h_1, ..., h_n) on R^{n+3} with phi = 2 sigmoid(a) - 1, sigma = exp(b) and both Jacobians.
    U is -log p(y, h, mu, a, b) with all constants. A mini-batch is a set of times t: the loss of an item is
    -log p(y_t | h_t), and every batch contains the whole prior of h.
    """

    y: Any  # (n,)
    _squares: Any = field(init=False, repr=False)  # (n,) y²
    _constant: float = field(init=False, repr=False)  # the constant of -log prior

    def __post_init__(self) -> None:
        y = double(self.y)
        (p, q), (a, r) = PERSISTENCE, VARIANCE
        constant = 0.5 * len(y) * math.log(2 * math.pi) + 0.5 * math.log(2 * math.pi * MEAN_VARIANCE)
        constant += math.lgamma(p) + math.lgamma(q) - math.lgamma(p + q)
        constant += math.lgamma(a) - a * math.log(r) - math.log(2)  # sigma² = exp(2 b): dsigma²/db = 2 sigma²
        freeze(self, y=y, _squares=y.square(), _constant=constant)

    @property
    def dim(self) -> int:
        return len(self.y) + 3

    def pack(self, mu: Any, phi: Any, sigma: Any, h: Any) -> Tensor:
        """(...,), (...,), (...,), (..., n) -> (..., n + 3): a point of the law from the natural parameters."""
        mu, phi, sigma, h = double(mu), double(phi), double(sigma), double(h)
        head = [mu, torch.logit((phi + 1) / 2), sigma.log()]
        return torch.cat([torch.stack([v.expand(h.shape[:-1]) for v in head], -1), h], -1)

    def parameters(self, x: Tensor) -> Tensor:
        """(..., n + 3) -> (..., 3): mu, phi, sigma."""
        return torch.stack([x[..., 0], 2 * x[..., 1].sigmoid() - 1, x[..., 2].exp()], -1)

    def loss_and_grad(self, x: Tensor, index: Tensor | None = None) -> tuple[Tensor, Tensor]:
        prior, grad = self._prior(x)
        n, h = self.num_data, x[..., 3:]
        energy, scaled = prior / n, grad / n
        if index is None:
            ratio = self._squares.to(x) * (-h).exp()
            items = 0.5 * (h + ratio)
            scaled[..., 3:] += 0.5 * (1 - ratio) / n
        else:
            index = index.expand(*h.shape[:-1], index.shape[-1])
            at = h.gather(-1, index)
            ratio = self._squares.to(x)[index] * (-at).exp()
            items = 0.5 * (at + ratio)
            scaled[..., 3:].scatter_add_(-1, index, 0.5 * (1 - ratio) / index.shape[-1])
        return items.mean(-1) + 0.5 * math.log(2 * math.pi) + energy, scaled

    def _prior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """-log p(h, mu, a, b) (...,) and its gradient (..., n + 3)."""
        (p, q), (shape, rate), n = PERSISTENCE, VARIANCE, self.num_data
        mu, a, b, d = x[..., 0], x[..., 1], x[..., 2], x[..., 3:] - x[..., :1]
        half = a.sigmoid()  # (1 + phi) / 2
        phi, slope = 2 * half - 1, 2 * half * (1 - half)  # d phi / d a
        precision = 1 - phi.square()  # precision of h_1, in units of 1 / sigma²
        e, first = d[..., 1:] - phi[..., None] * d[..., :-1], d[..., 0]
        inverse = (-2 * b).exp()
        quadratic = precision * first.square() + e.square().sum(-1)
        # Jacobian of phi times the Beta density of half = half^p (1 - half)^q, up to constants
        log_precision = math.log(4) + logsigmoid(a) + logsigmoid(-a)
        energy = 0.5 * quadratic * inverse + n * b - 0.5 * log_precision
        energy = energy + 0.5 * mu.square() / MEAN_VARIANCE - p * logsigmoid(a) - q * logsigmoid(-a)
        energy = energy + 2 * shape * b + rate * inverse + self._constant
        grad_d = _grad_of_quadratic(d, e, phi, precision) * inverse[..., None]
        grad_phi = -(phi * first.square() + (e * d[..., :-1]).sum(-1)) * inverse
        grad_a = grad_phi * slope + 0.5 * phi - p * (1 - half) + q * half
        grad_b = -quadratic * inverse + n + 2 * shape - 2 * rate * inverse
        head = torch.stack([mu / MEAN_VARIANCE - grad_d.sum(-1), grad_a, grad_b], -1)
        return energy, torch.cat([head, grad_d], -1)


def _grad_of_quadratic(d: Tensor, e: Tensor, phi: Tensor, precision: Tensor) -> Tensor:
    """(..., n) gradient in d of (precision d_1² + Σ_t e_t²) / 2, e_t = d_t - phi d_{t-1}."""
    grad = torch.zeros_like(d)
    grad[..., 1:] = e
    grad[..., :-1] -= phi[..., None] * e
    grad[..., 0] += precision * d[..., 0]
    return grad
