"""Dynamics whose steps follow a metric: of running gradients (PSGLD), a given one (SGRLD), or Fisher's (SGFS).

Where the metric depends on θ, the drift needs the divergence Γ_i = Σ_j ∂P_ij/∂θ_j of its inverse P. Where the metric
depends on the path of the chain, no Γ restores the law: the metric must stop adapting before samples are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from bdl.errors import ConfigError, check_choice
from bdl.identity import type_name
from bdl.samplers.dynamics.base import Dynamics, Position, Scalar, add_, root

Extra = dict[str, Tensor]


@dataclass
class Averaged:
    """A first-order state with a running mean: per coordinate, or of matrices."""

    theta: Tensor  # (..., d)
    mean: Tensor  # (..., d), or (..., d, d)
    count: int = 0  # steps so far


class Preconditioned(Dynamics):
    """A dynamics whose step is scaled per coordinate, so that no one lr bounds it."""

    tunable = frozenset()

    def describe_noise(self, s: Any, lr: Scalar, tau: Scalar) -> str:
        return super().describe_noise(s, lr, tau) + ", times the root of the preconditioner"


@dataclass(frozen=True)
class PSGLD(Preconditioned):
    """Preconditioned SGLD with RMSProp's preconditioner (Li et al. 2016, algorithm 1).

        V <- a V + (1 - a) g²,    P = 1 / (λ + sqrt V)
        θ <- θ - lr P g + lr tau Γ + sqrt(2 lr tau P) z

    lr is in RMSProp's units: a step has size lr whatever the gradient. λ = `damping`. D = P, Q = 0 (Ma et al. 2015).
    There are three forms.

    - a > 0 and `adapt_steps` = k: V learns for k steps and is then frozen. The law is exp(-U/T) as lr -> 0. Keep
      samples after step k.
    - a > 0 without `adapt_steps`: the usual form, which drops Γ and is biased. P depends on the path, so that no Γ
      restores the law. As lr -> 0 the law is exp(-U/T)/P. On N(0, 1) with λ = 0.1 and a = 0.99 the variance is 1.16,
      1.31 and 1.69 times too large at lr = 0.03, 0.01 and 0.001, and 1.89 times in the limit.
    - a = 0: P depends on the present gradient alone, and Γ_i = -sign(g_i) ∂g_i/∂θ_i / (λ + |g_i|)² restores the law. It
      needs the diagonal curvature of U/N (`Sampler.extras["curvature"]`) and exact gradients. The error of the variance
      on N(0, 1) is about 0.4 lr/λ², so that λ must not be small.

    The first 1/(1 - a) steps average evenly, so that V does not start from 0. Raises ConfigError for a outside [0, 1).
    """

    a: float = 0.99
    damping: float = 1e-3  # λ, units of g; Li et al. have 1e-5, which lets nearly flat directions leap
    adapt_steps: int | None = None
    per_coordinate = True
    scale_free = True

    def __post_init__(self) -> None:
        if not 0 <= self.a < 1:
            raise ConfigError(
                f"a must be in [0, 1), got {self.a} (the memory of the running mean of g²; 0.99 is usual)"
            )
        check_adaptation(self.damping, self.adapt_steps)
        if self.a == 0 and self.adapt_steps is not None:
            raise ConfigError("a = 0 remembers nothing that adapt_steps could freeze: leave one of the two out")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(["curvature"] if self.a == 0 else [])

    @property
    def caveat(self) -> str | None:
        if self.a > 0 and self.adapt_steps is None:
            return "biased: the preconditioner depends on the path of the chain; adapt_steps freezes it"
        return None

    def init(self, theta: Tensor) -> Averaged:
        return Averaged(theta, torch.zeros_like(theta))

    def step(self, s: Averaged, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor, extra: Extra | None = None) -> Averaged:
        if self.adapt_steps is None or s.count < self.adapt_steps:
            s.count += 1
            s.mean.lerp_(g.square(), max(1 - self.a, 1 / s.count))
        p = self._inverse(s)
        if self.a == 0:
            add_(s.theta, -lr * tau, (extra or {})["curvature"] * g.sign() * p.square())
        s.theta.sub_(lr * p * g)
        s.theta.add_((2 * lr * tau * p).sqrt_().mul_(z))
        return s

    def noise_ratio(self, s: Averaged, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        return lr * self._inverse(s) * grad_var / (2 * tau)

    def _inverse(self, s: Averaged) -> Tensor:
        return 1 / (s.mean.sqrt() + self.damping)


@dataclass(frozen=True, eq=False)
class SGRLD(Preconditioned):
    """Stochastic gradient Riemannian Langevin dynamics (Patterson & Teh 2013, eq. 12; Ma et al. 2015).

        θ <- θ - lr G⁻¹ g + lr tau Γ + N(0, 2 lr tau G⁻¹),    Γ_i = Σ_j ∂(G⁻¹)_ij/∂θ_j

    metric: G as a function of one chain's θ (d,), written in torch. It returns a diagonal (d,) or a matrix (d, d). Γ is
    computed by automatic differentiation, with one backward pass per entry of G, all vectorised. None, for networks:
    the diagonal of the empirical Fisher matrix (the mean square of per-example gradients), divided by its own mean to
    keep lr in SGD's units, plus `damping`. This metric learns for `adapt_steps` steps and is then frozen; it has no Γ.
    D = G⁻¹, Q = 0. Law as lr -> 0: exp(-U/T).

    Raises ConfigError where G is not positive definite.
    """

    metric: Callable[[Tensor], Tensor] | None = None
    damping: float = 0.1  # a multiple of the mean Fisher information
    adapt_steps: int | None = 1000

    def __post_init__(self) -> None:
        check_adaptation(self.damping, self.adapt_steps)
        if self.metric is None and self.adapt_steps is None:
            raise ConfigError(
                "adapt_steps=null never freezes the Fisher metric, and then it samples nothing: give adapt_steps"
            )

    def __str__(self) -> str:
        what = f"Fisher, adapt_steps={self.adapt_steps}" if self.metric is None else type_name(self.metric)
        return f"SGRLD(metric={what})"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(["per_example"] if self.metric is None else [])

    def reads_extra(self, s: Any) -> bool:
        """Whether the Fisher metric still learns from per-example gradients."""
        return self.metric is None and s.count < (self.adapt_steps or 0)

    def init(self, theta: Tensor) -> Averaged | Position:
        return Averaged(theta, torch.zeros_like(theta)) if self.metric is None else Position(theta)

    def step(self, s: Any, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor, extra: Extra | None = None) -> Any:
        if self.metric is None:
            if self.reads_extra(s):
                s.count += 1
                s.mean.lerp_((extra or {})["per_example"].square().mean(-2), 1 / s.count)
            metric, gamma = self._fisher(s), None
        else:
            metric, gamma = metric_and_divergence(self.metric, s.theta)
        drift, noise = self._solve(metric, g, z)
        add_(s.theta, -lr, drift)
        if gamma is not None:
            add_(s.theta, lr * tau, gamma)
        add_(s.theta, root(2 * lr * tau), noise)
        return s

    def noise_ratio(self, s: Any, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        if self.metric is None:
            return lr * grad_var / self._fisher(s) / (2 * tau)
        g = vmap(self.metric)(_rows(s.theta))
        inverse = 1 / g if g.ndim == 2 else torch.linalg.inv(g).diagonal(dim1=1, dim2=2)
        return lr * grad_var * inverse.reshape_as(grad_var) / (2 * tau)

    def _solve(self, metric: Tensor, g: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """(..., d) G⁻¹ g, and noise of covariance G⁻¹ from z. Raises ConfigError unless G is positive definite."""
        if metric.ndim == g.ndim:
            # The check waits for the device; the Fisher metric is always positive
            positive = self.metric is None or bool((metric > 0).all())
            drift, noise = g / metric, z / metric.sqrt()
        else:
            root_g, info = torch.linalg.cholesky_ex(metric)
            positive = not bool(info.any())
            drift = torch.cholesky_solve(g.unsqueeze(-1), root_g).squeeze(-1)
            noise = torch.linalg.solve_triangular(root_g.mT, z.unsqueeze(-1), upper=True).squeeze(-1)
        if not positive:
            raise ConfigError(
                "the metric G(θ) is not positive definite where the chain is: add a multiple of the identity"
            )
        return drift, noise

    def _fisher(self, s: Averaged) -> Tensor:
        scale = s.mean.mean(-1, keepdim=True).clamp_min(torch.finfo(s.mean.dtype).tiny)
        return s.mean / scale + self.damping if s.count else torch.ones_like(s.mean)


@dataclass(frozen=True)
class SGFS(Preconditioned):
    """Stochastic gradient Fisher scoring (Ahn et al. 2012, algorithm 1), at any temperature.

        I <- (1 - 1/t) I + V/t,    V = covariance of the per-example gradients of the batch
        θ <- θ - 2 (γ I + 2 B/lr)⁻¹ (g + η),    η ~ N(0, 2 tau B/lr),    γ = 1 + 1/(n tau)

    n = batch size, B = `b` times the identity. The paper has the case T = 1 with ε = 2 lr/N. The step counts on batch
    noise of variance V/n: where the curvature of U/N is I, as at large N for a true model, the covariance is right at
    any lr. There is no Γ, and exact gradients give another law. form: "diagonal", or "full" with a (d, d) matrix per
    chain. At small lr the step is that of SGLD with lr / b; at tau = 0, γ = 1. Needs `Sampler.extras["per_example"]`.
    """

    form: Literal["diagonal", "full"] = "diagonal"
    b: float = 1.0  # B, a multiple of the identity, in units of I

    needs = frozenset(["per_example"])
    thermostat = True  # the noise of batches is taken for the one that is wanted
    caveat = (
        "the step counts on batch noise: it is right where batches are independent (data.replacement=true) and the "
        "curvature equals the covariance of per-example gradients"
    )

    def __post_init__(self) -> None:
        check_choice("form", self.form, ("diagonal", "full"))
        if not self.b > 0:
            raise ConfigError(f"b must be > 0, got {self.b}")

    def init(self, theta: Tensor) -> Averaged:
        columns = () if self.form == "diagonal" else theta.shape[-1:]
        return Averaged(theta, theta.new_zeros(*theta.shape, *columns))

    def step(self, s: Any, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor, extra: Extra) -> Any:  # type: ignore[override]
        each = extra["per_example"]  # (..., n, d)
        n = each.shape[-2]
        if n < 2:
            raise ConfigError("SGFS needs batches of at least 2 items, for the covariance of their gradients")
        s.count += 1
        each = each - each.mean(-2, keepdim=True)
        add_(g, root(2 * tau * self.b / lr), z)
        gamma = _where_positive(tau, 1 / n)
        if self.form == "diagonal":
            s.mean.lerp_(each.square().sum(-2) / (n - 1), 1 / s.count)
            s.theta.sub_(2 * g / (gamma * s.mean + 2 * self.b / lr))
            return s
        s.mean.lerp_(each.mT @ each / (n - 1), 1 / s.count)
        eye = torch.eye(g.shape[-1], dtype=g.dtype, device=g.device)
        step = torch.linalg.solve(_matrix(gamma) * s.mean + _matrix(2 * self.b / lr) * eye, g.unsqueeze(-1))
        s.theta.sub_(2 * step.squeeze(-1))
        return s

    def noise_ratio(self, s: Any, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        return lr * grad_var / (2 * self.b * tau)

    def heating(self, s: Any, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        """(..., d) zeros: the step counts on the batch noise."""
        return torch.zeros_like(grad_var)


def metric_and_divergence(metric: Callable[[Tensor], Tensor], theta: Tensor) -> tuple[Tensor, Tensor]:
    """G (..., d) or (..., d, d) at θ (..., d), and Γ (..., d), the divergence of G⁻¹, by ∂G⁻¹ = -G⁻¹ ∂G G⁻¹."""

    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        g = metric(x)
        return g, g

    # The last axis of slopes is ∂/∂θ_j; forward mode takes 4 times as long
    slopes, g = vmap(jacrev(twice, has_aux=True))(_rows(theta))
    if g.ndim == 2:
        gamma = -slopes.diagonal(dim1=1, dim2=2) / g.square()
    else:
        inverse = torch.linalg.inv_ex(g).inverse  # the caller refuses a G that is not positive definite
        gamma = -(inverse @ (slopes * inverse.unsqueeze(1)).sum((2, 3)).unsqueeze(2)).squeeze(2)
    return g.reshape(*theta.shape[:-1], *g.shape[1:]), gamma.reshape(theta.shape)


def check_adaptation(damping: float, adapt_steps: int | None) -> None:
    if not damping > 0:
        raise ConfigError(f"damping must be > 0, got {damping}")
    if adapt_steps is not None and adapt_steps < 1:
        raise ConfigError(f"adapt_steps must be at least 1, or null, got {adapt_steps}")


def _rows(theta: Tensor) -> Tensor:
    return theta.reshape(-1, theta.shape[-1])


def _where_positive(tau: Scalar, c: float) -> Scalar:
    """1 + c / tau where tau > 0, else 1."""
    if isinstance(tau, Tensor):
        return 1 + torch.where(tau > 0, c / tau, 0)
    return 1 + c / tau if tau > 0 else 1.0


def _matrix(c: Scalar) -> Scalar:
    """(C, 1) -> (C, 1, 1), which multiplies matrices; floats stay."""
    return c.unsqueeze(-1) if isinstance(c, Tensor) else c
