"""Covariance-controlled SGHMC: friction and injected noise know the strongest directions of the noise of batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.dynamics.base import Scalar, add_, mean, root
from bdl.samplers.dynamics.subtracting import SUBTRACTS_INDEPENDENT
from bdl.samplers.dynamics.underdamped import Underdamped

WAIT, BASIS = 0.2, 0.6  # shares of the adaptation before the first reading, and until the directions are fixed
LEAST = 40  # readings that a short adaptation has nevertheless, if it has as many steps
MARGIN = 1.05  # friction over the least that carries the noise of a direction
CAP = 0.5  # most of that least friction; above it lr falls in the direction
NEGLIGIBLE = 1e-5  # variance over the largest one, below which rounding decides the direction

Extra = dict[str, Tensor]


@dataclass
class Controlled:
    """State of `CCHMC`. k = rank, at most d; q = min(2 k, d)."""

    theta: Tensor  # (..., d)
    m: Tensor  # (..., d)
    basis: Tensor  # (..., k, d) rows v_j, orthonormal; zero where no noise was seen
    variance: Tensor  # (..., k, 1) c_j = v_j' V v_j, with which steps are made
    measured: Tensor  # (..., k, k) running mean of v_i' V v_j in the directions that were fixed
    sketch: Tensor  # (..., q, d) orthogonal rows whose squares sum to V; no rows once the directions are fixed
    friction: Tensor  # (..., k, 1) a_j of the last step
    factor: Tensor  # (..., k, 1) s_j of the last step
    outside: Tensor  # (...) the largest variance of a direction outside the basis, when it was fixed
    readings: int = 0  # of the noise, for the directions
    measurements: int = 0  # of the variances in the fixed directions
    steps: int = 0


@dataclass(frozen=True)
class CCHMC(Underdamped):
    """Covariance-controlled stochastic gradient HMC of low rank (after Shang, Zhu, Leimkuhler & Storkey 2015).

        m <- (1 - A) m - lr S g + N(0, 2 lr tau A S - lr² S Π V Π S)
        θ <- θ + m

    V is the covariance that batches give to g, Π projects on its `rank` strongest directions v_j, and c_j = v_j' V v_j.
    A and S have the values a_j and s_j along v_j, and a = `friction` and 1 across:

        s_j = min(1, tau / (lr c_j)),    a_j = max(a, 1.05 lr s_j c_j / (2 tau))

    Where batches bring more noise than the friction a carries, friction rises in this direction. Where no friction up
    to 0.525 would carry it, lr falls there too. So the injected variance is never negative, and injected and batch
    noise together are 2 lr tau A S: the law is exp(-U/T) as lr -> 0, in each of these directions. Nothing is subtracted
    across them. There a direction with the variance c is heated to T (1 + lr c / (2 a tau)), as under SGHMC; to take
    the rest away as isotropic would make soft directions cold. D = A S, Q as SGHMC (Ma et al. 2015); A and S commute.

    V comes from the differences between parts of one batch (`Sampler.extras["noise_draws"]`), which do not know the
    curvature. Every chain learns in its first `adapt_steps` steps, each `every` of them: the span of the directions by
    an incremental principal component analysis of 2 `rank` rows, from 20 to 60 % of these steps, in which later
    readings weigh more; then the covariance within the fixed span, without bias, whose axes the v_j are in the end.
    From n draws c_j is known to sqrt(2/n), and so is the temperature along a fixed direction in one chain; the mean
    over chains is too large by about rank/n. All is fixed before samples are kept. A step costs O(rank d) more than
    SGHMC's, and the state 3 `rank` numbers a parameter while it learns, then `rank`.

    At tau = 0 nothing is controlled: this is SGD with momentum 1 - a. Without noise of batches, or with
    `adapt_steps` = 0, it is SGHMC.

    Raises ConfigError for friction outside (0, 1], a rank or `every` below 1, and adapt_steps below 0.
    """

    friction: float = 0.1
    rank: int = 20
    adapt_steps: int = 1000  # type: ignore[assignment]
    every: int = 10
    needs = frozenset(["noise_draws"])
    per_coordinate = False
    caveat = (
        "removes the noise of batches in its strongest directions, as they were in the adaptation; other directions "
        f"stay hot. It {SUBTRACTS_INDEPENDENT}"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rank >= 1:
            raise ConfigError(f"rank must be at least 1, got {self.rank} (directions of batch noise; 20 is usual)")
        if not self.every >= 1:
            raise ConfigError(f"every must be at least 1 step, got {self.every}")
        if self.adapt_steps < 0:
            raise ConfigError(f"adapt_steps must be >= 0, got {self.adapt_steps}")

    def init(self, theta: Tensor) -> Controlled:
        *lead, d = theta.shape
        k = min(self.rank, d)
        basis, sketch = theta.new_zeros(*lead, k, d), theta.new_zeros(*lead, min(2 * k, d), d)
        zero, one = theta.new_zeros(*lead, k, 1), theta.new_ones(*lead, k, 1)
        outside = theta.new_zeros(lead)
        return Controlled(
            theta,
            torch.zeros_like(theta),
            basis,
            zero,
            theta.new_zeros(*lead, k, k),
            sketch,
            self.friction * one,
            one,
            outside,
        )

    def reads_extra(self, s: Controlled) -> bool:
        """Whether the next step reads the noise of its batch."""
        step, last = s.steps + 1, self.adapt_steps
        every = max(1, min(self.every, last // LEAST))
        return int(WAIT * last) < step <= last and (last - step) % every == 0

    def heat_along(self, c: Scalar, mean: Scalar, lr: Scalar, tau: Scalar) -> Any:
        """1: it takes the noise out of the strongest directions. All others are hotter than T by less."""
        return 1 + 0 * lr * c

    def step(
        self, s: Controlled, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor, extra: Extra | None = None
    ) -> Controlled:
        a, reads, change = self.friction, self.reads_extra(s), None
        s.steps += 1
        if reads:
            self._learn(s, (extra or {})["noise_draws"])
        if s.readings and (isinstance(tau, Tensor) or tau > 0):
            change = self._along_basis(s, g, lr, tau, z)
        add_(s.m.mul_(1 - a), -lr, g)
        add_(s.m, root(2 * a * lr * tau), z)
        if change is not None:
            s.m.add_((change.mT @ s.basis).squeeze(-2))
        s.theta.add_(s.m)
        return s

    def _along_basis(self, s: Controlled, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor) -> Tensor:
        """(..., k, 1) what the step along each v_j has more than SGHMC's; sets a_j and s_j."""
        lr, tau, a = column(lr), column(tau), self.friction
        cold = torch.as_tensor(tau, device=g.device) <= 0
        warm = torch.where(cold, 1, tau) if isinstance(tau, Tensor) else tau
        strength = lr * s.variance / (2 * warm)  # the friction that the noise alone would need
        factor = (CAP / strength.clamp_min(torch.finfo(g.dtype).tiny)).clamp_max(1)
        friction = (MARGIN * strength * factor).clamp(a, 1)
        s.factor.copy_(torch.where(cold, 1, factor))
        s.friction.copy_(torch.where(cold, a, friction))
        batches = torch.where(cold, 0, (lr * s.factor).square() * s.variance)
        injected = (2 * s.friction * lr * s.factor * tau - batches).clamp_min(0).sqrt()
        m, g, z = (torch.stack([s.m, g, z], -2) @ s.basis.mT).mT.split(1, -1)  # this order of the factors is fastest
        return (a - s.friction) * m + lr * (1 - s.factor) * g + (injected - root(2 * a * lr * tau)) * z

    # ---- learning ----

    def _learn(self, s: Controlled, draws: Tensor) -> None:
        """Learn from draws (..., r, d) of mean 0 with the covariance V."""
        if draws.ndim != s.basis.ndim or draws.shape[-1] != s.theta.shape[-1]:
            raise ConfigError(f"noise_draws must have the shape (..., draws, parameters), got {tuple(draws.shape)}")
        if s.steps <= int(BASIS * self.adapt_steps):
            s.readings += 1
            self._turn(s, draws)
        elif s.readings:
            if not s.measurements:  # fix the directions, orthonormal to rounding, and drop the sketch
                s.basis.copy_(torch.linalg.qr(s.basis.mT).Q.mT)
                s.sketch = s.sketch[..., :0, :].clone()
            s.measurements += 1
            seen = s.basis @ draws.mT  # (..., k, r)
            s.measured.lerp_(seen @ seen.mT / draws.shape[-2], 1 / s.measurements)
            if s.steps == self.adapt_steps:  # within their span the measured noise is then uncorrelated
                values, vectors = torch.linalg.eigh(s.measured)
                s.variance.copy_(values.clamp_min(0).flip(-1).unsqueeze(-1))
                s.basis.copy_(vectors.flip(-1).mT @ s.basis)

    def _turn(self, s: Controlled, draws: Tensor) -> None:
        """Add draws to the sketch, where the n-th reading weighs in proportion to n, and turn the basis."""
        weight, k = 2 / (s.readings + 1), s.basis.shape[-2]
        rows = torch.cat([(1 - weight) ** 0.5 * s.sketch, (weight / draws.shape[-2]) ** 0.5 * draws], -2)
        values, vectors = torch.linalg.eigh(rows @ rows.mT)  # (..., n), (..., n, n), ascending
        values, vectors = values.flip(-1).clamp_min(0).unsqueeze(-1), vectors.flip(-1)
        q = s.sketch.shape[-2]
        s.sketch.copy_(vectors[..., :q].mT @ rows)
        seen = values[..., :k, :] > NEGLIGIBLE * values[..., :1, :]
        s.variance.copy_(torch.where(seen, values[..., :k, :], 0))
        scale = torch.where(seen, values[..., :k, :].rsqrt(), 0)
        s.basis.copy_(scale * s.sketch[..., :k, :])
        if k < q:
            s.outside.copy_(values[..., k, 0])

    # ---- what it says of itself ----

    def heating(self, s: Controlled, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        """(..., d) terms whose mean is T_eff/T - 1: the noise ratio, less the share of the controlled directions."""
        removed = s.variance.sum((-2, -1)).unsqueeze(-1) / s.theta.shape[-1]
        return self.noise_ratio(s, (grad_var.mean(-1, keepdim=True) - removed).clamp_min(0), lr, tau)

    def kinetic_tau(self, s: Controlled, lr: Scalar) -> Tensor:
        """(...,) mean over directions of the tau that their momenta show, m_j² (2 - a_j) / (2 lr s_j)."""
        along = (s.m.unsqueeze(-2) @ s.basis.mT).mT.square()  # (..., k, 1)
        a, each = self.friction, (1 - s.friction / 2) / s.factor
        square = s.m.square().sum(-1, keepdim=True).mul(1 - a / 2) + (along * (each - (1 - a / 2))).sum(-2)
        return square.div(lr).squeeze(-1) / s.m.shape[-1]

    def describe_noise(self, s: Controlled, lr: Scalar, tau: Scalar) -> str:
        plain = super().describe_noise(s, lr, tau)
        if not s.readings:
            return f"{plain}; the noise of batches was not read yet, so none is removed"
        friction, factor = s.friction.max().item(), s.factor.min().item()
        hottest = 1 + mean(lr * s.outside / (2 * self.friction * tau))
        return (
            f"{plain}; less in {s.basis.shape[-2]} directions of batch noise, with friction up to {friction:.3g} and "
            f"lr down to {factor:.3g} times as large; the hottest of the other directions has about {hottest:.3g} T"
        )

    def after_swap(self, s: Controlled, order: Tensor, g: Tensor, lr: Scalar, temperature: Tensor) -> None:
        """Give swapped momenta the covariance 2 lr tau S (2 - A)⁻¹ of their new chain, as for other displacements."""
        mobility, across = s.factor / (2 - s.friction), 1 / (2 - self.friction)  # (C, k, 1) S (2 - A)⁻¹, along v_j
        lr = lr.to(temperature, non_blocking=True) if isinstance(lr, Tensor) else torch.full_like(temperature, lr)
        lr = lr.expand_as(temperature)
        size = (lr * temperature).sqrt().to(s.m).unsqueeze(1)
        lr, old, before = lr.to(s.m).unsqueeze(1), s.basis[order], mobility[order]
        s.m.sub_(lr[order] * scaled(g, old, before, across))
        s.m.copy_(scaled(s.m, old, before.rsqrt(), across**-0.5).div_(size[order]))
        s.m.copy_(scaled(s.m, s.basis, mobility.sqrt(), across**0.5).mul_(size))
        s.m.add_(lr * scaled(g, s.basis, mobility, across))


def scaled(x: Tensor, basis: Tensor, along: Tensor, across: float) -> Tensor:
    """x (..., d) times `along` (..., k, 1) in the directions of the basis, and `across` in all others."""
    return across * x + (((along - across).mT * (x.unsqueeze(-2) @ basis.mT)) @ basis).squeeze(-2)


def column(c: Scalar) -> Scalar:
    """(C, 1) -> (C, 1, 1), which multiplies columns of k numbers; floats stay."""
    return c.unsqueeze(-1) if isinstance(c, Tensor) and c.ndim else c
