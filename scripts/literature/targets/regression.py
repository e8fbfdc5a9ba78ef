"""Linear regression with conjugate priors, whose posterior is known at any temperature."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bdl.seeding import generator
from literature.targets.base import DataTarget, double, factor, freeze
from literature.targets.normal_inverse_gamma import NormalInverseGamma


def simulate_linear(n: int = 10_000, correlation: float = 0.9, seed: int = 0) -> tuple[Tensor, Tensor]:
    """X (n, 2), an intercept and x, and y (n,): (x, y) normal of unit variances and correlation r.

    Hence y = r x + N(0, 1 - r²). Karagiannis 2023, section 4, has n = 10⁴ and r = .9.
    """
    noise = generator("cpu", "linear", seed)
    x = torch.randn(n, generator=noise, dtype=torch.float64)
    e = torch.randn(n, generator=noise, dtype=torch.float64)
    return torch.stack([torch.ones_like(x), x], 1), correlation * x + math.sqrt(1 - correlation**2) * e


@dataclass(frozen=True, eq=False)
class LinearRegression(DataTarget):
    """Normal linear regression with the normal-inverse-gamma prior (Karagiannis 2023, section 4).

        y_i | b, s² ~ N(x_i' b, s²),    b | s² ~ N(m, s² V),    s² ~ IG(phi, psi)

    as a law of x = (b, c) on R^{p+1}, with c = log s² and its Jacobian s²:

        U(x) = n/2 log 2π + n c / 2 + |y - X b|² exp(-c) / 2 - log N(b; m, e^c V) - log IG(e^c; phi, psi) - c

    X (n, p), y (n,). m: a number or (p,). V: a number (times the identity) or (p, p). The handout has m = 0, phi =
    psi = 1, V = 100. U is -log p(y, b, c) with all constants. (In the handout's eq. 4.2, d/2 should be -d/2.)
    """

    X: Any  # (n, p)
    y: Any  # (n,)
    prior_mean: Any = 0.0  # (p,)
    prior_scale: Any = 100.0  # V (p, p)
    shape: float = 1.0  # phi
    rate: float = 1.0  # psi
    _precision: Any = field(init=False, repr=False)  # (p, p) V⁻¹
    gram: Any = field(init=False, repr=False)  # (p, p) X'X
    fit: Any = field(init=False, repr=False)  # (p,) least squares
    rss: Any = field(init=False, repr=False)  # () |y - X fit|²
    _constant: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        X, y, V = double(self.X), double(self.y), double(self.prior_scale)
        n, p = X.shape
        m, V = double(self.prior_mean).expand(p), V if V.ndim else V * torch.eye(p, dtype=torch.float64)
        root = factor("prior_scale", V)
        gram, fit, rss = least_squares(X, y)
        log_v = 2 * root.diagonal().log().sum().item()
        constant = 0.5 * (n + p) * math.log(2 * math.pi) + 0.5 * log_v + math.lgamma(self.shape)
        constant -= self.shape * math.log(self.rate)
        freeze(self, X=X, y=y, prior_mean=m, prior_scale=V, _precision=torch.cholesky_inverse(root))
        freeze(self, gram=gram, fit=fit, rss=rss, _constant=constant)

    @property
    def dim(self) -> int:
        return self.X.shape[1] + 1

    def loss_and_grad(self, x: Tensor, index: Tensor | None = None) -> tuple[Tensor, Tensor]:
        b, c, n = x[..., :-1], x[..., -1], self.num_data
        p = self.dim - 1
        squares, pull = mean_squares(self, b, index)  # (...,) mean residual², (..., p) half its gradient
        r = b - self.prior_mean.to(x)
        scaled = r @ self._precision.to(x)
        pull = pull + scaled / n
        inverse = (-c).exp()
        half = 0.5 * inverse * (squares + (torch.linalg.vecdot(r, scaled) + 2 * self.rate) / n)
        power = 0.5 + (0.5 * p + self.shape) / n  # coefficient of c
        grad_c = power - half
        return power * c + half + self._constant / n, torch.cat([inverse[..., None] * pull, grad_c[..., None]], -1)

    def posterior(self, temperature: float = 1.0) -> NormalInverseGamma:
        """The law of (b, s²) at T: exp(-U/T) is again normal-inverse-gamma.

        b | s² ~ N(m_n, T s² V_n),    s² ~ IG((a_n + p/2)/T - p/2, b_n/T)
        V_n⁻¹ = V⁻¹ + X'X,    m_n = V_n (V⁻¹ m + X'y),    a_n = phi + n/2,
        b_n = psi + (|y|² + m'V⁻¹m - m_n'V_n⁻¹m_n) / 2
        """
        root = torch.linalg.cholesky(self._precision + self.gram)
        pull = self._precision @ self.prior_mean + self.gram @ self.fit
        mean = torch.cholesky_solve(pull[:, None], root).squeeze(1)
        shift, apart = mean - self.fit, mean - self.prior_mean
        rate = self.rate + 0.5 * (self.rss + shift @ self.gram @ shift + apart @ self._precision @ apart).item()
        half_p = 0.5 * (self.dim - 1)
        shape = (self.shape + 0.5 * self.num_data + half_p) / temperature - half_p
        return NormalInverseGamma(mean, temperature * torch.cholesky_inverse(root), shape, rate / temperature)

    def mean(self, temperature: float = 1.0) -> Tensor:
        return self.posterior(temperature).mean()

    def covariance(self, temperature: float = 1.0) -> Tensor:
        return self.posterior(temperature).covariance()

    def sample(self, n: int, generator: torch.Generator | None = None, temperature: float = 1.0) -> Tensor:
        return self.posterior(temperature).sample(n, generator)


def least_squares(X: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """X'X (p, p), the fit (p,) and the sum of its squared residuals."""
    fit = torch.linalg.lstsq(X, y[:, None], driver="gelsd").solution.squeeze(1)  # least norm if X is singular
    return X.T @ X, fit, (y - X @ fit).square().sum()


def mean_squares(target: Any, b: Tensor, index: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean of (y_i - x_i' b)² over the items (...,), and half its gradient (..., p).

    Without an index |y - X b|² = rss + (b - fit)' X'X (b - fit), a sum of positive terms that costs p² a point.
    """
    if index is None:
        r, n = b - target.fit.to(b), len(target.y)
        scaled = r @ target.gram.to(b)
        return (target.rss.to(b) + torch.linalg.vecdot(r, scaled)) / n, scaled / n
    X, y = target.X.to(b)[index], target.y.to(b)[index]  # (..., B, p), (..., B)
    r = (X @ b[..., None]).squeeze(-1) - y
    return r.square().mean(-1), (r[..., None, :] @ X).squeeze(-2) / r.shape[-1]
