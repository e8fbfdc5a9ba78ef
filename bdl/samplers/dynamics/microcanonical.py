"""MCLMC: microcanonical Langevin dynamics on the energy of all the data. It tunes its step size and its length."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from bdl.devices import widest
from bdl.errors import ConfigError, check_positive
from bdl.samplers.dynamics.base import Evaluate, FullBatch, Scalar, mean

B = 0.1931833275037836  # McLachlan 1995: the first kick of the two-stage scheme with the smallest error constant
STAGES = {  # kicks, with drifts between them, as shares of a step
    "leapfrog": ((0.5, 0.5), (1.0,)),
    "mclachlan": ((B, 1 - 2 * B, B), (0.5, 0.5)),
}
MEMORY = 0.98  # decay per step of the mean from which the step size is tuned
WIDTH = 9.0  # a step whose ln ξ lies this far from 0 has the weight e^-1/2 in that mean (Robnik & Seljak 2024)
SPREAD = (0.5, 0.75)  # shares of the adaptation between which the spread of θ is measured
DRIFT = 0.03  # of the level per step; at 0.01 and at 0.1 networks mix more slowly


@dataclass
class Microcanonical:
    """State of MCLMC. θ moves on a unit speed; `direction` is the unit vector u, zero before the first step."""

    theta: Tensor  # (..., d)
    gradient: Tensor  # (..., d) ∇(U/N) at theta
    direction: Tensor  # (..., d) u
    mean: Tensor  # (..., d) running mean of θ while its spread is measured
    square: Tensor  # (..., d) sum of squared deviations from it
    potential: Tensor  # (...) U/N at theta, double; NaN before the first step
    length: Tensor  # (...) L, in the units of θ, double
    log_factor: Tensor  # (...) log of the factor of lr, double
    errors: Tensor  # (...) weighted sum of ΔE²/d / factor³, double
    weights: Tensor  # (...) sum of these weights, double
    error: Tensor  # (...) sum of ΔE²/d since adaptation ended, double
    undone: Tensor  # (...) steps that were undone since adaptation ended, or since it began while it goes on, double
    level: Tensor  # (...) of the test of acceptance, in (-1, 1], double
    steps: int = 0


@dataclass(frozen=True)
class MCLMC(FullBatch):
    """Microcanonical Langevin Monte Carlo (Robnik et al. 2023; Robnik & Seljak 2024), S = U/T.

        u <- (u + ν z) / |u + ν z|,    ν² = (e^(2ε/L) - 1) / d
        leapfrog: kick(ε/2), θ <- θ + ε u, kick(ε/2);    mclachlan: kick(bε), drift(ε/2), kick((1-2b)ε), drift, kick
        kick(h): u <- (u + e (sinh δ + (cosh δ - 1) e·u)) / (cosh δ + (e·u) sinh δ),    e = -∇S/|∇S|,  δ = h|∇S|/(d - 1)

    |u| = 1, and ε = sqrt(2 lr tau d), the mean length of a leapfrog step of HMC at the same lr. Unadjusted, the law is
    exp(-U/T) up to an error of first order in lr, that is of second order in ε, which the error of the energy of a step
    measures:

        ΔE = ΔS + (d - 1) Σ_kicks (δ - ln 2 + ln(1 + c + (1 - c) e^(-2δ))),    c = e·u before the kick,    ΔE² ~ lr³

    For its first `adapt_steps` steps each chain tunes itself, much as in MILE (Sommer et al. 2025): a factor of lr so
    that ΔE²/d has the mean `energy_var`, to which the target falls on a line from `energy_var_start` in half of these
    steps; and L, which is the root of the summed variance of θ between half and three quarters of them. Before that,
    and without adaptation, L is `length`, or sqrt(d). Rare steps hold most of the mean of ΔE²/d: those of a network may
    have some times the error that a chain was tuned to.

    adjusted: after adaptation each step has a test of acceptance, and the law is exp(-U/T) at any lr. A step is kept if
    |v| < e^(-ΔE) for a level v; else the chain stays and u turns around. v moves by 0.03 per step, around the interval
    (-1, 1], and a step that is kept multiplies it by e^(ΔE). Refused steps then come one after another, so that a chain
    seldom turns around (Neal 2020, "Non-reversibly updating a uniform [0,1] value for Metropolis accept/reject
    decisions"). Networks have rare steps with large errors, which heat them if they are kept: posteriors of some tables
    have 3 to 4 T in their hottest direction at an `energy_var` of 1e-4.

    Unadjusted, ΔE²/d bounds the error of the mean over all directions. That of the stiffest direction is larger, the
    more so the worse the condition. On a Gaussian in 20 dimensions with variances from 1 to 100, an `energy_var` of
    5e-4 left the mean of the relative variances 1 % too small and the narrowest one 7 % ("leapfrog": 1 % and 12 % too
    large); one of 0.01 left them 5 % and 58 % too small. Stiff directions hardly move the predictions of networks, for
    which MILE takes 0.1.

    A step whose ΔE is not finite is undone: the chain stays, u turns around, and lr shrinks by 4 during adaptation.
    integrator: "leapfrog" takes one gradient a step, "mclachlan" two, for steps more than twice as long.
    """

    integrator: Literal["leapfrog", "mclachlan"] = "mclachlan"
    energy_var: float = 5e-4  # nats² per coordinate
    energy_var_start: float | None = None  # None: energy_var
    length: float | None = None
    adapt_steps: int = 0
    adjusted: bool = False
    travels = ("theta", "gradient", "potential", "direction")
    every_gradient = True  # u has unit length over all parameters

    def __post_init__(self) -> None:
        if self.integrator not in STAGES:
            raise ConfigError(f"integrator must be one of {', '.join(STAGES)}, got {self.integrator!r}")
        for name in ("energy_var", "energy_var_start", "length"):
            value = getattr(self, name)
            if value is not None:
                check_positive(name, value)
        if not isinstance(self.adjusted, bool):
            raise ConfigError(f"adjusted must be true or false, got {self.adjusted!r}")
        if self.adapt_steps < 0:
            raise ConfigError(f"adapt_steps must be >= 0, got {self.adapt_steps}")

    @property
    def recordable(self) -> bool:
        return True  # once it no longer adapts

    def adapting_in(self, steps: int) -> MCLMC:
        """The transition for a trial, without a test: tested chains are further from agreement after so few steps."""
        return replace(self, adapt_steps=steps, adjusted=False) if self.adapt_steps else self

    def init(self, theta: Tensor) -> Microcanonical:
        d = theta.shape[-1]
        if d < 2:
            raise ConfigError(f"MCLMC needs at least 2 parameters, got {d}: a unit vector in one dimension cannot turn")
        gradient, direction, mean, square = (torch.zeros_like(theta) for _ in range(4))
        one = torch.ones_like(theta[..., 0], dtype=widest(theta.device))
        return Microcanonical(
            theta, gradient, direction, mean, square,
            potential=one * math.nan,
            length=one * (self.length or math.sqrt(d)),
            log_factor=0 * one,
            errors=0 * one, weights=0 * one,
            error=0 * one,
            undone=0 * one,
            level=0 * one,
        )  # fmt: skip

    def kernel(
        self, s: Microcanonical, evaluate: Evaluate, lr: Scalar, tau: Scalar, z: Tensor, log_u: Tensor
    ) -> Microcanonical:
        d = z.shape[-1]
        step = (2 * lr * tau * d * s.log_factor.exp()[..., None]).sqrt()  # (..., 1) ε
        nu = (torch.expm1(2 * step / s.length[..., None]) / d).sqrt()
        before = unit(s.direction + nu.to(z) * z)
        u, theta, gradient, potential = before, s.theta, s.gradient, s.potential[..., None]
        scale = (1 / tau).to(z) if isinstance(tau, Tensor) else 1 / tau  # ∇S = ∇(U/N) / tau
        kicks, drifts = STAGES[self.integrator]
        u, kinetic = kick(u, scale * gradient, kicks[0] * step)
        for share, h in zip(drifts, kicks[1:], strict=True):
            theta = theta + (share * step).to(z) * u
            potential, gradient = evaluate(theta)
            u, change = kick(u, scale * gradient, h * step)
            kinetic = kinetic + change
        error = (potential - s.potential[..., None]) / tau + kinetic  # (..., 1) ΔE, nats
        done = torch.isfinite(error) & torch.isfinite(gradient).all(-1, keepdim=True)
        if self.adjusted and s.steps >= self.adapt_steps:
            level = s.level[..., None] + DRIFT
            level = torch.where(level > 1, level - 2, level)
            done = done & (level.abs() < torch.exp(-error))
            s.level.copy_(torch.where(done, level * torch.exp(error), level).squeeze(-1))
        s.theta.copy_(torch.where(done, theta, s.theta))
        s.gradient.copy_(torch.where(done, gradient, s.gradient))
        s.direction.copy_(torch.where(done, u, -before))
        s.potential.copy_(torch.where(done, potential, s.potential[..., None]).squeeze(-1))
        s.steps += 1
        self._learn(s, torch.where(done, error, 0).squeeze(-1).square() / d, done.squeeze(-1))
        return s

    def energy_error(self, s: Microcanonical) -> Tensor:
        after = s.steps - self.adapt_steps
        return s.error / (after * self.energy_var) if after > 0 else torch.full_like(s.error, math.nan)

    def acceptance(self, s: Microcanonical) -> Tensor | None:
        """(...,) share of the steps that were kept since adaptation ended; NaN before. None if not adjusted."""
        after = s.steps - self.adapt_steps
        if not self.adjusted:
            return None
        return 1 - s.undone / after if after > 0 else torch.full_like(s.undone, math.nan)

    def describe_noise(self, s: Microcanonical, lr: Scalar, tau: Scalar) -> str:
        after = s.steps - self.adapt_steps
        adapted, length = mean(lr * s.log_factor.exp()), mean(s.length)
        error = f"{mean(s.error) / after:.2g}" if after > 0 else "not measured yet"
        law = "accept/reject on all the data: exact at any lr"
        if not self.adjusted:
            law = "no test of acceptance: an error of first order in lr"
        return (
            f"{law}; lr adapted to {adapted:.3g}, L to {length:.3g}, "
            f"squared energy error per step and coordinate {error}, {mean(s.undone):.3g} steps undone"
        )

    def _learn(self, s: Microcanonical, square: Tensor, done: Tensor) -> None:
        """Tune lr and L, in the first `adapt_steps` steps; then only count. square (...): ΔE²/d; done (...)."""
        s.undone.add_(~done)
        if s.steps > self.adapt_steps:
            s.error.add_(square)
            return
        if s.steps == self.adapt_steps:
            s.undone.zero_()
        self._tune_lr(s, square, done)
        first, last = (int(share * self.adapt_steps) for share in SPREAD)
        if first < s.steps <= last:
            change = s.theta - s.mean
            s.mean.add_(change, alpha=1 / (s.steps - first))
            s.square.addcmul_(change, s.theta - s.mean)
        if s.steps == last and last > first and self.length is None:
            spread = (s.square.to(s.length.dtype).sum(-1) / (last - first)).sqrt()
            s.length = torch.where(spread > 0, spread, s.length)  # 0: one state only, or a chain that did not move

    def _tune_lr(self, s: Microcanonical, square: Tensor, done: Tensor) -> None:
        """ΔE² ~ lr³, so that the factor³ at which ΔE²/d would be its target is target / mean(ΔE²/d / factor³).

        A mean over the last steps decides, and in the second half one over ever more of them: rare steps hold most of
        the error. A step whose error is far from the target counts less. A step raises lr by 4 at most.
        """
        half = int(SPREAD[0] * self.adapt_steps)
        start = self.energy_var_start or self.energy_var
        target = start + (self.energy_var - start) * min(1.0, s.steps / max(half, 1))
        memory = max(MEMORY, 1 - 1 / max(s.steps - half, 1))
        xi = square / target + 1e-20  # keeps ln ξ finite
        weight = torch.exp(-0.5 * (xi.log() / WIDTH).square())
        s.errors = memory * s.errors + weight * target * xi * torch.exp(-3 * s.log_factor)
        s.weights = memory * s.weights + weight
        shrunk, raised = s.log_factor - math.log(4), s.log_factor + math.log(4)
        s.log_factor = torch.where(done, torch.minimum((target * s.weights / s.errors).log() / 3, raised), shrunk)
        s.errors = torch.where(done, s.errors, target * torch.exp(-3 * shrunk))  # forget the steps before one undone
        s.weights = torch.where(done, s.weights, 1)


def kick(u: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """The unit vectors u (..., d) after a kick by the gradient g of S for a length h (..., 1), double; and ΔK (..., 1).

    Numerator and denominator are multiplied by 2 e^(-δ), so that a steep S does not overflow.
    """
    norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
    e = -g / norm.clamp_min(torch.finfo(g.dtype).tiny)
    c = (e * u).sum(-1, keepdim=True).clamp(-1, 1)
    delta = h * norm / (g.shape[-1] - 1)  # double
    q = torch.exp(-delta)
    along, kept = (1 - q) * (1 + q + c * (1 - q)), 2 * q
    energy = (g.shape[-1] - 1) * (delta - math.log(2) + torch.log(1 + c + (1 - c) * q.square()))
    return unit(along.to(g) * e + kept.to(g) * u), energy


def unit(x: Tensor) -> Tensor:
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
