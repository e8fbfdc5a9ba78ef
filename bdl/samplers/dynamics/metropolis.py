"""Accept/reject kernels on the energy of all the data: exact at any step size, with one test of acceptance a step.

A step calls the closure several times. `lr` is in SGD's units here too: MALA proposes the step that SGLD takes at this
lr. During its first `adapt_steps` steps, each chain adapts a factor that multiplies its lr.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bdl.devices import widest
from bdl.errors import ConfigError, check_fraction
from bdl.samplers.dynamics.base import Evaluate, FullBatch, Scalar, mean
from bdl.samplers.dynamics.mass import Mass, check_mass, window

PRIOR = 5  # steps for which the harmonic mean of all variances counts, against chance in short windows
GOLDEN = 0.6180339887498949  # no other number's multiples fill [0, 1) as evenly, modulo 1


@dataclass
class Accepted:
    """State of an accept/reject kernel."""

    theta: Tensor  # (..., d)
    gradient: Tensor  # (..., d) ∇(U/N) at theta
    potential: Tensor  # (...) U/N at theta, double; NaN before the first step
    log_factor: Tensor  # (...) log of the factor of lr, double
    accepted: Tensor  # (...) sum of acceptance probabilities since adaptation ended, double
    steps: int = 0
    changed: int = 0  # the step after which the masses changed last


@dataclass
class AcceptedByMass(Accepted):
    """State of HMC with masses that it learns; see `bdl.samplers.dynamics.mass`."""

    inverse_mass: Tensor = field(kw_only=True)  # (..., d) P
    mean: Tensor = field(kw_only=True)  # (..., d) running mean of θ in the present window
    square: Tensor = field(kw_only=True)  # (..., d) sum of squared deviations from it


class AcceptReject(FullBatch):
    """A kernel that proposes a state and accepts or rejects it by the energy of all the data: exact at any step size.

    Its state is an `Accepted`. `target` is the acceptance rate that the first `adapt_steps` steps adapt lr to.
    """

    target: float

    def __post_init__(self) -> None:
        check_fraction("target acceptance", self.target)
        if (self.adapt_steps or 0) < 0:
            raise ConfigError(f"adapt_steps must be >= 0, got {self.adapt_steps}")

    def init(self, theta: Tensor) -> Accepted:
        """The state at θ before its energy is known: NaN."""
        zero = torch.zeros_like(theta[..., 0], dtype=widest(theta.device))
        return Accepted(theta, torch.zeros_like(theta), zero * float("nan"), zero.clone(), zero.clone())

    def acceptance(self, s: Any) -> Tensor:
        """(...,) mean acceptance probability since adaptation ended; NaN before."""
        return s.accepted / max(s.steps - (self.adapt_steps or 0), 0)

    def describe_noise(self, s: Any, lr: Scalar, tau: Scalar) -> str:
        rate, adapted = mean(self.acceptance(s)), mean(lr * s.log_factor.exp())
        known = "not measured yet" if math.isnan(rate) else f"{rate:.2f}"
        return f"accept/reject on all the data: exact at any lr; lr adapted to {adapted:.3g}, acceptance {known}"


@dataclass(frozen=True)
class Metropolis(AcceptReject):
    """Random-walk Metropolis (Metropolis et al. 1953).

        θ' = θ + sqrt(2 lr tau) z,    accepted with probability min(1, exp(-(V(θ') - V(θ)) / tau)),    V = U/N

    Needs no gradient. target: the acceptance rate that the first `adapt_steps` steps adapt lr to (0.234, Roberts et al.
    1997). Keep samples after these steps. Law: exp(-U/T), at any lr.
    """

    target: float = 0.234
    adapt_steps: int = 0

    def kernel(self, s: Accepted, evaluate: Evaluate, lr: Scalar, tau: Scalar, z: Tensor, log_u: Tensor) -> Accepted:
        proposal = s.theta + _root(2 * _factor(s) * lr * tau, z) * z
        potential, gradient = evaluate(proposal)
        return accept(self, s, proposal, gradient, potential, (s.potential[..., None] - potential) / tau, log_u)


@dataclass(frozen=True)
class MALA(AcceptReject):
    """Metropolis-adjusted Langevin algorithm (Roberts & Tweedie 1996): the step of SGLD, accepted or rejected.

        θ' = θ - lr ∇V(θ) + sqrt(2 lr tau) z,    V = U/N,
        accepted with probability min(1, exp(-(V(θ') - V(θ)) / tau) q(θ|θ') / q(θ'|θ)),    q the law of the proposal

    target: the acceptance rate that the first `adapt_steps` steps adapt lr to (0.574, Roberts & Rosenthal 1998). MALA
    is HMC with one leapfrog step. Law: exp(-U/T), at any lr.
    """

    target: float = 0.574
    adapt_steps: int = 0

    def kernel(self, s: Accepted, evaluate: Evaluate, lr: Scalar, tau: Scalar, z: Tensor, log_u: Tensor) -> Accepted:
        step = lr * _factor(s)  # (..., 1)
        proposal = s.theta - step.to(z) * s.gradient + _root(2 * step * tau, z) * z
        potential, gradient = evaluate(proposal)
        forth = proposal - s.theta + step.to(z) * s.gradient
        back = s.theta - proposal + step.to(z) * gradient
        log_q = (_square(forth) - _square(back)) / (4 * step * tau)  # log q(θ|θ') - log q(θ'|θ)
        log_ratio = (s.potential[..., None] - potential) / tau + log_q
        return accept(self, s, proposal, gradient, potential, log_ratio, log_u)


@dataclass(frozen=True)
class HMC(AcceptReject):
    """Hamiltonian Monte Carlo (Duane et al. 1987; Neal 2011, section 5.3) with fresh momenta at every step.

        p ~ N(0, tau);  l times: p <- p - h/2 R ∇V(θ); θ <- θ + h R p; p <- p - h/2 R ∇V(θ),    h = sqrt(2 lr)
        accepted with probability min(1, exp((H(θ, p) - H(θ', p')) / tau)),    H = V + |p|²/2,    V = U/N

    The number l of leapfrog steps differs from step to step, by half of its mean `leapfrog` at most. A path of one
    length is a whole period for some curvatures: the chain then returns to where it was, and never forgets its start.

    R² = P is the inverse of the masses, and R p the velocity. P = 1 under mass="unit". Under mass="diagonal" each chain
    measures P, the variance of each coordinate, in the first 80 % of `adapt_steps`; then it is fixed.

    target: the acceptance rate that the first `adapt_steps` steps adapt lr to (0.8; 0.651 is optimal in the limit of
    many dimensions, Beskos et al. 2013). A step takes `leapfrog` gradients in the mean. Law: exp(-U/T), at any lr.
    """

    leapfrog: int = 10
    target: float = 0.8
    adapt_steps: int = 0
    mass: Mass = "unit"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_mass(self.mass, self.adapt_steps, "adapt_steps")
        if self.leapfrog < 1:
            raise ConfigError(f"leapfrog must be at least 1 step, got {self.leapfrog}")

    def init(self, theta: Tensor) -> Accepted:
        s = super().init(theta)
        if self.mass == "unit":
            return s
        zero = torch.zeros_like(theta)
        return AcceptedByMass(**vars(s), inverse_mass=torch.ones_like(theta), mean=zero, square=zero.clone())

    def kernel(self, s: Accepted, evaluate: Evaluate, lr: Scalar, tau: Scalar, z: Tensor, log_u: Tensor) -> Accepted:
        h = _root(2 * lr * _factor(s), z)  # (..., 1)
        h = h * s.inverse_mass.sqrt() if isinstance(s, AcceptedByMass) else h  # h R
        p = _root(tau * torch.ones_like(_factor(s)), z) * z
        kinetic = _square(p) / 2
        theta, gradient, potential = s.theta, s.gradient, s.potential[..., None]
        for _ in range(path_length(self.leapfrog, s.steps)):
            p = p - h / 2 * gradient
            theta = theta + h * p
            potential, gradient = evaluate(theta)
            p = p - h / 2 * gradient
        log_ratio = (s.potential[..., None] + kinetic - potential - _square(p) / 2) / tau
        s = accept(self, s, theta, gradient, potential, log_ratio, log_u)
        if isinstance(s, AcceptedByMass) and learn_from_spread(s, self.adapt_steps):
            s.changed = s.steps  # lr adapts anew
        return s


def path_length(mean: int, step: int) -> int:
    """Leapfrog steps of the step after `step` steps, from mean - mean // 2 to mean + mean // 2, equally often.

    They follow the fractional parts of k times the golden ratio, as Hoffman et al. 2021 take those of a Halton
    sequence. No state and no random number decides a length, so that each step is reversible and leaves exp(-U/T) as it
    is, and a resumed chain takes the same lengths. Neighbouring lengths are whole periods together for no curvature
    that the leapfrog scheme can stand.
    """
    half = mean // 2
    return mean - half + int((2 * half + 1) * ((step + 1) * GOLDEN % 1))


def accept(
    kernel: AcceptReject,
    s: Accepted,
    theta: Tensor,
    gradient: Tensor,
    potential: Tensor,
    log_ratio: Tensor,
    log_u: Tensor,
) -> Accepted:
    """The state after the test: for each chain the proposal, or the old state.

    A proposal whose energy or gradient is not finite is rejected. While it adapts, the factor of lr follows
    log lr += (α - target) / k^.6 (Robbins & Monro 1951), with α the acceptance probability and k the steps so far, or
    since the masses changed.
    """
    alpha = log_ratio.nan_to_num(nan=-torch.inf).clamp_max(0).exp()
    alpha = torch.where(torch.isfinite(potential) & torch.isfinite(gradient).all(-1, keepdim=True), alpha, 0)
    taken = (log_u < alpha.log()) & (alpha > 0)
    s.theta.copy_(torch.where(taken, theta, s.theta))
    s.gradient.copy_(torch.where(taken, gradient, s.gradient))
    s.potential = torch.where(taken, potential, s.potential[..., None]).squeeze(-1)
    s.steps += 1
    alpha = alpha.squeeze(-1)
    if s.steps <= (kernel.adapt_steps or 0):
        s.log_factor = s.log_factor + (alpha - kernel.target) / (s.steps - s.changed) ** 0.6
    else:
        s.accepted = s.accepted + alpha
    return s


def learn_from_spread(s: AcceptedByMass, adapt_steps: int) -> bool:
    """Let the masses learn from the present θ; True where they have just changed, at the end of a window."""
    first, last = window(s.steps, adapt_steps)
    if last == 0:
        return False
    n = s.steps - first
    if n == 1:
        s.mean.zero_()
        s.square.zero_()
    change = s.theta - s.mean
    s.mean.add_(change, alpha=1 / n)
    s.square.addcmul_(change, s.theta - s.mean)
    if s.steps == last:
        s.inverse_mass.copy_(from_variance(s.square / (n - 1), n, s.inverse_mass))
    return s.steps == last


def from_variance(variance: Tensor, n: int, old: Tensor) -> Tensor:
    """(..., d) P in proportion to the variances of n steps, with masses of mean 1; old where a chain has not moved."""
    moved = variance > 0
    usual = moved.sum(-1, keepdim=True) / torch.where(moved, 1 / variance, 0).sum(-1, keepdim=True)
    shrunk = (n * variance + PRIOR * usual) / (n + PRIOR)
    return torch.where(moved.any(-1, keepdim=True), shrunk * (1 / shrunk).mean(-1, keepdim=True), old)


def _factor(s: Accepted) -> Tensor:
    """(..., 1) factor of lr."""
    return s.log_factor.exp()[..., None]


def _root(c: Tensor, like: Tensor) -> Tensor:
    return c.sqrt().to(like.dtype)


def _square(x: Tensor) -> Tensor:
    """(..., 1) squared norm, double."""
    return x.to(widest(x.device)).square().sum(-1, keepdim=True)
