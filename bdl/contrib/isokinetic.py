"""SMILE: isokinetic Langevin dynamics on mini-batches. It finds masses and step size in its first steps, then stops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bdl.errors import ConfigError, check_fraction
from bdl.samplers.dynamics import base
from bdl.samplers.dynamics.base import Dynamics, Scalar, mean
from bdl.samplers.dynamics.mass import DAMPING, window

STAY = 4  # one of so many steps stays where it is while the sampler adapts: two batches then show Var(g) at one θ
BRIEFEST = 10 * STAY  # steps of a window in which masses are learnt
MASSES, TUNING = 0.6, 0.75  # shares of the adaptation after which the masses and lr are fixed
MEMORY = 0.95  # decay per step of the mean curvature from which lr is tuned
RATE = 0.02  # most by which ln lr rises in a step of its tuning; it falls at most FALL times as fast
FALL = 5.0
MARGIN = 2.0  # lr is tuned on steps so many times as large: a direction too stiff for them shows, and is safe then
NEGLIGIBLE = 1e-6  # Var(g) / g² below which batch noise says nothing about masses
GUARD = 3.0  # a gradient is shortened to so many times the root mean square of those met while adapting
WIDEST = 0.9  # tangent of half of the largest angle by which one gradient turns u


@dataclass
class Isokinetic:
    """State of SMILE. `direction` is u, the unit vector of the velocity of θ / sqrt(P); zero before the first step."""

    theta: Tensor  # (..., d)
    direction: Tensor  # (..., d) u
    root: Tensor  # (..., d) sqrt(P)
    variance: Tensor  # (..., d) Var(g), by batches; a running mean while it is learnt
    previous: Tensor  # (..., d) gradient of the last step of the adaptation
    difference: Tensor  # (..., d) difference of the last two gradients at one θ
    log_factor: Tensor  # (...) log of the factor of lr
    log_mean: Tensor  # (...) mean of log_factor over the last steps of its tuning
    curvature: Tensor  # (...) running mean of lr h along the path, over the factor of lr
    square: Tensor  # (...) mean of |sqrt(P) g|²
    overlap: Tensor  # (...) tr C², C = covariance of sqrt(P) g by batches
    excess: Tensor  # (...) ρ - 1 of the mean direction of C, by what its coordinates have in common
    steps: int = 0


@dataclass(frozen=True)
class SMILE(Dynamics):
    """Stochastic microcanonical Langevin: isokinetic dynamics on mini-batches (after Sommer et al. 2026), S = U/T.

        turn:    u <- ((1 - t²) u + 2 t (1 + t c) e) / (1 + 2 t c + t²),    e = -sqrt(P) g / |sqrt(P) g|,  c = e·u,
                 t = sqrt(lr) |sqrt(P) g| / (2 sqrt(tau (d - 1)))
        move:    θ <- θ + sqrt(lr tau (d - 1) P) u / 2
        refresh: u <- (u + ν z) / |u + ν z|,    ν_i² = max(0, (1 - a)^-2 - 1 - lr P_i V_i / tau) / (d - 1)
        move

    |u| = 1, a = friction, P = inverse masses, V = variance that batches give to g. The momentum sqrt(lr tau d P) u has
    the size of SGHMC's, and lr its unit. A step moves by one length whatever the gradient, so that no gradient throws
    the chain out.

    Which refresh is right. du = -(1 - uu') ∇S ds / (d - 1) leaves exp(-S) x (u uniform) as it is. Noise of covariance C
    per length adds Σ C_ij X_i X_j / 2, X_i = (1 - uu')_i, whose adjoint makes (d - 1) (d u'Cu - tr C) / 2 of the
    uniform density: 0 for all u if and only if C is a multiple of the identity in the coordinates θ / sqrt(P). So batch
    noise of one variance in all directions turns u as a refresh does. It heats nothing, however large it is and however
    it varies with θ. Else a direction has the temperature T_j = T C_jj / mean(C), at any lr where nothing else
    refreshes, as in the paper's form. Two things make C even here. mass="noise" gives P in proportion to 1/V, so that
    the noise of all coordinates is alike; and z adds what is left up to one level in every coordinate.

    What is left. Batch noise that is correlated between coordinates: a direction with ρ_j times the mean noise has
    T_j = T (1 + n (ρ_j - 1)), where n = noise_ratio is the share of the level that batches bring. n is in proportion to
    lr / batch size, and lr is tuned so that n is `noise_share` at most. V is known to sqrt(20 / adapt_steps). The
    error of the scheme is that of BAOAB, none on a Gaussian for d -> ∞ (P g is one kick, the refresh halves the move);
    n times the energy of batch noise enters with the kick and has the error of SGHMC, 1 / (1 - lr P h / 4) at curvature
    h. With t = tanh(δ/2), δ/2 as t above, the turn would be the exact flow, which noise heats to T (1 + δ²/12).

    Two gradients of one batch, which McLachlan's scheme takes in a step, have the same noise. It turns u twice as
    much per length as two batches do. So a step takes one.

    In the first `adapt_steps` steps each chain learns, and then all is fixed. P: in windows up to 60 %, from pairs of
    batches at one θ, for which every fourth step stays. lr: up to 75 %, so that lr P h has the mean `stiffness` along
    the path and n is `noise_share` at most. V: to the end. Then a gradient longer than 3 times the root mean square of
    these steps is shortened to that. At tau = 0 a step is that of SGD, lr P g.

    Raises ConfigError for friction outside (0, 1), shares outside (0, 1] and fewer than 2 parameters.
    """

    friction: float = 0.1
    mass: Literal["noise", "unit"] = "noise"
    heat: float = 0.1
    noise_share: float = 0.5
    stiffness: float = 0.25
    adapt_steps: int = 0
    travels = ("theta", "direction", "previous")  # two gradients at one θ stay together
    every_gradient = True  # u has unit length over all parameters
    per_coordinate = True
    tunable = frozenset()
    caveat = (
        "batch noise heats directions in which it is stronger than in others and cools these; masses and injected "
        "noise even out its variance per parameter, not what parameters have in common"
    )

    def __post_init__(self) -> None:
        check_fraction("friction", self.friction)
        if self.mass not in ("noise", "unit"):
            raise ConfigError(f'mass must be "noise" or "unit", got {self.mass!r}')
        if not self.heat > 0:
            raise ConfigError(f"heat must be > 0, got {self.heat} (the share by which batches may heat)")
        for name in ("noise_share", "stiffness"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be in (0, 1], got {getattr(self, name)}")
        if self.adapt_steps < 0:
            raise ConfigError(f"adapt_steps must be >= 0, got {self.adapt_steps}")

    @property
    def level(self) -> float:
        """(d - 1) times the variance of the noise that turns a coordinate of u in a step; 2 a for a small friction."""
        return (1 - self.friction) ** -2 - 1

    def init(self, theta: Tensor) -> Isokinetic:
        if theta.shape[-1] < 2:
            raise ConfigError(f"SMILE needs at least 2 parameters, got {theta.shape[-1]}: a number cannot turn")
        direction, variance, previous, difference = (torch.zeros_like(theta) for _ in range(4))
        factor, mean, curvature, square, overlap, excess = (torch.zeros_like(theta[..., 0]) for _ in range(6))
        return Isokinetic(
            theta, direction, torch.ones_like(theta), variance, previous, difference, factor, mean, curvature, square,
            overlap, excess,
        )  # fmt: skip

    def step(self, s: Isokinetic, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor) -> Isokinetic:
        s.steps += 1
        if s.steps == 1:
            normalise_(s.direction.copy_(z))
        w, down, cold = self.step_sizes(s, lr), None, tau <= 0
        if isinstance(cold, Tensor) or cold:  # some chains, or all, are at T = 0: they move by SGD, others as ever
            cold = torch.as_tensor(cold, device=g.device)
            down, tau = s.theta - w.square() * g, torch.where(cold, 1, tau)
        if not (s.steps <= self.adapt_steps and self._learn(s, g, w, lr, tau, cold)):
            self._move(s, g, w, lr, tau, z)
        if down is not None:
            s.theta.copy_(torch.where(torch.as_tensor(cold), down, s.theta))
        return s

    def step_sizes(self, s: Isokinetic, lr: Scalar) -> Tensor:
        """(..., d) sqrt(lr P), with the factor of lr that the chain has found."""
        return s.root * base.root(lr * s.log_factor.exp().unsqueeze(-1))

    def noise_ratio(self, s: Isokinetic, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        """(..., d) the share n of the noise that turns u which batches bring; the rest is injected."""
        return self.step_sizes(s, lr).square() * grad_var / (self.level * tau)

    def heating(self, s: Isokinetic, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        """(..., d) n (ρ - 1), by which the directions of batch noise are too hot, each weighted by its noise."""
        return self.noise_ratio(s, grad_var, lr, tau) * s.excess.unsqueeze(-1)

    def describe_noise(self, s: Isokinetic, lr: Scalar, tau: Scalar) -> str:
        found = mean(lr * s.log_factor.exp())
        return (
            f"injected noise: turns the velocity by what batches leave of friction {self.friction}; "
            f"lr adapted to {found:.3g}"
        )

    def _move(self, s: Isokinetic, g: Tensor, w: Tensor, lr: Scalar, tau: Scalar, z: Tensor) -> None:
        speed, d = base.root(tau * (g.shape[-1] - 1)), g.shape[-1] - 1
        turn_(s.direction, g.mul_(w), speed, self._limit(s, lr, speed))
        s.theta.addcmul_(w, s.direction * (speed / 2))
        normalise_(s.direction.add_(z.mul_(base.root(self._injected(s, w, tau) / d))))
        s.theta.addcmul_(w, s.direction * (speed / 2))

    def _injected(self, s: Isokinetic, w: Tensor, tau: Scalar) -> Scalar:
        """(..., d) or a float, (d - 1) ν²: what batches leave of the level, once V is known."""
        if s.steps <= self.adapt_steps or not self.adapt_steps:
            return self.level
        return (self.level - w.square().mul_(s.variance) / tau).clamp_min_(0)

    def _limit(self, s: Isokinetic, lr: Scalar, speed: Scalar) -> Scalar:
        """The largest t, a float or (..., 1)."""
        if s.steps <= self.adapt_steps or not self.adapt_steps:
            return WIDEST
        usual = (common(lr) * (s.log_factor.exp() * s.square).unsqueeze(-1)).sqrt()  # the usual |sqrt(lr P) g|
        return (GUARD * usual / (2 * speed)).clamp_max(WIDEST)

    def _learn(self, s: Isokinetic, g: Tensor, w: Tensor, lr: Scalar, tau: Scalar, cold: Tensor | bool) -> bool:
        """Learn from a gradient of the adaptation; returns whether θ stays where it is for another one."""
        change, (first, last) = g - s.previous, self._window(s.steps)
        s.previous.copy_(g)
        if s.steps % STAY == 2:
            self._learn_noise(s, change, (s.steps + 2) // STAY - (first + 2) // STAY)
        elif 2 < s.steps <= int(TUNING * self.adapt_steps):
            along = torch.linalg.vecdot(change.mul_(w), s.direction).unsqueeze(-1) / base.root(tau * (g.shape[-1] - 1))
            self._tune(s, along.squeeze(-1), self._room(s, w, tau), cold)
        norm = torch.linalg.vector_norm(w * g, dim=-1, keepdim=True)
        s.square.lerp_((norm.square() / common(lr)).squeeze(-1) / s.log_factor.exp(), 1 / (s.steps - first))
        if s.steps == last < self.adapt_steps and self.mass == "noise":
            s.root.copy_(masses(s.variance, g).rsqrt())
        self._settle(s, w, tau)
        return s.steps % STAY == 1

    def _learn_noise(self, s: Isokinetic, change: Tensor, pairs: int) -> None:
        """V and C from the difference (..., d) of two gradients at one θ, the so many-th of the window."""
        if pairs > 1:  # E (x·y)² = 4 tr C² for independent x and y of covariance 2 C
            overlap = torch.linalg.vecdot(s.root.square().mul_(change), s.difference)
            s.overlap.lerp_(overlap.square() / 4, 1 / (pairs - 1))
        s.difference.copy_(change)
        s.variance.lerp_(change.square_().mul_(0.5), 1 / pairs)
        own = s.root.square().mul_(s.variance)  # C_ii
        trace = own.sum(-1).clamp_min(torch.finfo(own.dtype).tiny)
        shared = (s.overlap / trace - (own / trace.unsqueeze(-1)).mul_(own).sum(-1)).clamp_min(0)  # over tr C
        s.excess.copy_(shared / trace * own.shape[-1])

    def _settle(self, s: Isokinetic, w: Tensor, tau: Scalar) -> None:
        """Average ln lr over the last steps of its tuning, and fix lr, MARGIN times smaller, after them.

        At the end, when most is known of the noise, lr falls to what the noise allows, if that is less.
        """
        first, last = int(MASSES * self.adapt_steps), int(TUNING * self.adapt_steps)
        if first < s.steps <= last:
            s.log_mean.lerp_(s.log_factor, 1 / (s.steps - first))
        if s.steps == last:
            s.log_factor.copy_(s.log_mean - math.log(MARGIN))
        if s.steps == self.adapt_steps:
            s.log_factor.add_(self._room(s, w, tau).log().clamp_max(0))

    def _window(self, step: int) -> tuple[int, int]:
        """The step before the first one of the window in which V is averaged, and its last step or 0."""
        fixed = int(MASSES * self.adapt_steps)
        if step > fixed:
            return fixed, self.adapt_steps
        return window(step, int(TUNING * self.adapt_steps), BRIEFEST)

    def _room(self, s: Isokinetic, w: Tensor, tau: Scalar) -> Tensor:
        """(...) the factor by which lr could be larger, as far as batch noise goes."""
        share = (w.square() * s.variance / tau).mean(-1) / self.level
        tiny = torch.finfo(share.dtype).tiny
        room = self.noise_share / share.clamp_min(tiny)
        return torch.minimum(room, self.heat / (share * s.excess).clamp_min(tiny))

    def _tune(self, s: Isokinetic, along: Tensor, room: Tensor, cold: Tensor | bool) -> None:
        """along (...): lr P h on the last way. room (...): as `_room`."""
        s.curvature.lerp_(along / s.log_factor.exp(), max(1 - MEMORY, 1 / (s.steps - 2)))
        lr_h = (s.curvature * s.log_factor.exp()).clamp_min(torch.finfo(along.dtype).tiny)
        room = MARGIN * torch.minimum(room, self.stiffness / lr_h)
        rise = room.log().clamp(-FALL, 1) * max(RATE, 10 / self.adapt_steps)
        s.log_factor.add_(torch.where(torch.as_tensor(cold).squeeze(-1), 0, rise))


def masses(variance: Tensor, g: Tensor) -> Tensor:
    """(..., d) 1/P in proportion to the variance of batches, and some more for all, with the mean 1."""
    usual, negligible = variance.mean(-1, keepdim=True), NEGLIGIBLE * g.square().mean(-1, keepdim=True)
    mass = variance + DAMPING * usual + negligible
    return mass / mass.mean(-1, keepdim=True)


def common(lr: Scalar) -> Scalar:
    """One lr for all coordinates: a float or (..., 1)."""
    return lr.mean(-1, keepdim=True) if isinstance(lr, Tensor) and lr.ndim else lr


def turn_(u: Tensor, f: Tensor, speed: Scalar, limit: Scalar) -> None:
    """u turns against f (..., d) in place, see `SMILE`; t = |f| / (2 speed), at most `limit`."""
    norm = torch.linalg.vector_norm(f, dim=-1, keepdim=True).clamp_min(torch.finfo(f.dtype).tiny)
    t = norm / (2 * speed)
    t = torch.minimum(t, limit) if isinstance(limit, Tensor) else t.clamp_max(limit)
    c = -torch.linalg.vecdot(f, u).unsqueeze(-1) / norm
    normalise_(u.mul_(1 - t.square()).addcmul_(f, -2 * t * (1 + t * c) / norm))


def normalise_(u: Tensor) -> None:
    """u <- u / |u| in place; 0 stays 0."""
    u.div_(torch.linalg.vector_norm(u, dim=-1, keepdim=True).clamp_min(torch.finfo(u.dtype).tiny))
