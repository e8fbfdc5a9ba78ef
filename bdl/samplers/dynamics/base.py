"""What every dynamics is: its state, its step, and what it says of itself.

A dynamics is a discretised stochastic differential equation, a function `(state, g, lr, tau, z) -> state` on flat
arrays `(..., d)` whose leading axes are chains. g is the gradient of U/N, lr a step in SGD's units, tau = T/N, z
standard normal; see the module docstring of `bdl.samplers`. lr and tau are floats or `(C, 1)` tensors. A dynamics owns
its state and may overwrite state, g and z in place. It never draws random numbers.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bdl.identity import identity

Scalar = float | Tensor  # a float, or a tensor with one value per chain: (C,) in the shell, (C, 1) in a dynamics
Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]  # θ (..., d) -> U/N (..., 1) in double, its gradient (..., d)


@dataclass
class Position:
    """State of a first-order dynamics."""

    theta: Tensor  # (..., d)


@dataclass
class Kinetic:
    """State of a second-order dynamics. Each dynamics says in which unit its momentum `m` is."""

    theta: Tensor  # (..., d)
    m: Tensor  # (..., d)


@dataclass
class Thermostatted:
    """State of a second-order dynamics whose friction adapts, one friction per chain."""

    theta: Tensor  # (..., d)
    m: Tensor  # (..., d)
    xi: Tensor  # (...)


class Transition(ABC):
    """One step of a Markov chain: what gradient dynamics and full-batch kernels have in common.

    Concrete transitions are frozen dataclasses. All but `init` has a default; override what differs.

    Attributes:
        noisy: False for an optimiser, whose step ignores temperature and injected noise.
        friction: the a of momentum form, 1 for a first-order dynamics.
        needs: names of the quantities that a step needs besides a gradient. The step then takes a last argument
            `extra`, a dict that holds them (see `Sampler.extras`).
        adapt_steps: number of first steps in which the transition adapts itself; no sample may be kept in them. None
            where it adapts for ever, or never.
        caveat: one line, for `Sampler.explain`, that says how its law differs from exp(-U/T). None where it does not.
        travels: fields of the state that two replicas swap. The other fields are what a chain has learnt at its
            temperature, and stay.
        every_gradient: True where a parameter without a gradient would falsify the step of the others.
        variational: True where the kept states are draws from a fitted approximation.
        per_coordinate: True where `step` takes lr as a tensor (..., d) too, with one number per coordinate.
        reads_variances: True where `heating` compares the variance of each coordinate with a given one.
        full_batch: True for a kernel that evaluates U over all the data, once or several times a step.
        linear: True where `step` maps each coordinate's m, g and z to m and to the change of θ by a matrix of lr and
            tau alone. The state is then a `Position` or a `Kinetic`, and compiled code may make the step.
        tunable: which of "lr" and "friction" `tune=auto` finds. "lr" where one lr holds for every coordinate, so that
            curvature and batch noise bound it; "friction" where it is an argument.
        thermostat: True where a step holds a mean over directions at T whatever batches do. That mean, such as the
            kinetic temperature, is then no evidence of T.
        scale_free: True where a constant factor on all gradients leaves the steps as they are, so that a weighting
            needs no smaller lr.
    """

    noisy: bool = True
    friction: float = 1.0
    needs: frozenset[str] = frozenset()
    adapt_steps: int | None = None
    caveat: str | None = None
    travels: tuple[str, ...] = ("theta",)
    every_gradient: bool = False
    variational: bool = False
    per_coordinate: bool = False
    full_batch: bool = False
    reads_variances: bool = False
    linear: bool = False
    tunable: frozenset[str] = frozenset()
    thermostat: bool = False
    scale_free: bool = False

    @abstractmethod
    def init(self, theta: Tensor) -> Any:
        """The state, a dataclass with a field `theta`, at the start `theta` (..., d)."""

    @property
    def recordable(self) -> bool:
        """Whether a CUDA graph may hold a step: it takes lr and tau as () tensors, and no number from Python changes.

        On a GPU all its steps have such tensors, so that a step in a graph is one outside of it, to the bit. Outside
        they lie on the host, whose sums, products, quotients and roots are the device's.
        """
        return self.linear

    def identity(self) -> dict[str, Any]:
        """Plain values that a chain must share to continue this one; compared when a checkpoint is loaded."""
        return identity(self)

    def describe_noise(self, s: Any, lr: Scalar, tau: Scalar) -> str:
        """The sentence of `Sampler.explain` on the noise that one step injects; lr and tau may be (C,)."""
        std = math.sqrt(2 * self.friction * mean(lr) * mean(tau))
        return f"injected noise: std {std:.3g} per step and coordinate"

    def noise_numbers(self, d: int) -> int:
        """How many standard normal numbers z a step of one chain takes, d of them unless variables besides θ have some.

        A `Dynamics` with another number receives z (..., n) instead of (..., d).
        """
        return d

    def batch_of(self, items: int, wanted: int | None) -> int:
        """How many of so many items a batch has, where so many are wanted; None wants all."""
        return items if wanted is None else min(wanted, items)

    @property
    def fits_trials(self) -> bool:
        """Whether `tune` may try settings with it; another dynamics stands for one whose lr has a scale of its own, or
        that needs what trials do not gather."""
        return "lr" in self.tunable and "noise_draws" not in self.needs

    def adapting_in(self, steps: int) -> Transition:
        """The transition for a trial in which it has so many steps to adapt."""
        return self

    def reads_extra(self, s: Any) -> bool:
        """Whether the next step still reads what `needs` names; the shell then gathers it."""
        return True

    def noise_ratio(self, s: Any, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        """(..., d) variance that batch noise adds to a step, over the variance that the step injects.

        grad_var (..., d): the variance of g that mini-batches bring.
        """
        return lr * grad_var / (2 * self.friction * tau)

    def heating(self, s: Any, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        """(..., d) terms whose mean is T_eff/T - 1: the noise ratio, less what the dynamics subtracts or absorbs."""
        return self.noise_ratio(s, grad_var, lr, tau)

    def heat_along(self, c: Scalar, mean: Scalar, lr: Scalar, tau: Scalar) -> Any:
        """Temperature over T of a direction v with v' Cov(g) v = c, once chains have it; of the type of the arguments.

        mean: what batches bring in the mean over directions, of which some dynamics free all of them. To first order in
        lr, on a Gaussian for which v is an axis.
        """
        return 1 + lr * c / (2 * self.friction * tau)

    def entropy(self, s: Any) -> Tensor | None:
        """(...,) entropy of a variational approximation, nats; None for every other dynamics."""
        return None

    def kinetic_tau(self, s: Any, lr: Scalar) -> Tensor:
        """(...,) the tau that the momenta show, whose expectation is tau as lr -> 0; NaN without momenta."""
        return s.theta.new_full(s.theta.shape[:-1], math.nan)

    def acceptance(self, s: Any) -> Tensor | None:
        """(...,) mean acceptance probability of an accept/reject kernel; None for every other transition."""
        return None

    def energy_error(self, s: Any) -> Tensor | None:
        """(...,) mean square of the energy errors of steps over the one that the transition tunes itself to, or None.

        None for a transition that has no such aim; NaN before it has ended its adaptation.
        """
        return None

    def after_swap(  # noqa: B027, a default that does nothing
        self, s: Any, order: Tensor, g: Tensor, lr: Scalar, temperature: Tensor
    ) -> None:
        """Adjust the state, in place, to the lr and T of the chains that have just received it in a swap.

        order (C,): the chain from which each state came. g (C, d): its gradient, swapped too. temperature (C,). A
        graph may hold its kernels on an accelerator: it uses its arguments alone.
        """


class Dynamics(Transition):
    """A dynamics that moves by one gradient a step. Subclass it with a frozen dataclass to add a sampler.

    >>> import torch, bdl
    >>> @dataclass(frozen=True)
    ... class Langevin(bdl.Dynamics):
    ...     def init(self, theta):
    ...         return bdl.Position(theta)
    ...
    ...     def step(self, s, g, lr, tau, z):
    ...         s.theta.sub_(lr * g).add_((2 * lr * tau) ** 0.5 * z)
    ...         return s
    >>> theta = torch.zeros(4096, 1, requires_grad=True)  # 4,096 chains of one number, without data
    >>> sampler = bdl.Sampler([theta], Langevin(), num_data=1, lr=0.1, prior=bdl.Gaussian(1.0), chains=4096)
    >>> for _ in range(100):
    ...     theta.grad = torch.zeros_like(theta)
    ...     sampler.step()
    >>> bool(0.95 < theta.var() < 1.16)  # the prior, N(0, 1), and the error of a step of this size
    True
    """

    tunable: frozenset[str] = frozenset(["lr"])

    @abstractmethod
    def step(self, s: Any, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor) -> Any:
        """The state after one step. With `needs` it takes a last argument `extra`, a dict of those quantities."""


class FullBatch(Transition):
    """A kernel that evaluates the energy of all the data and its gradient, wherever and as often as it likes in a step.

    Its state has the fields `gradient` (..., d) and `potential` (...) in double: ∇(U/N) and U/N at θ. `potential` is
    NaN at the start; the shell evaluates both before the first step, and after a change of the parameters by hand.
    """

    full_batch = True
    travels: tuple[str, ...] = ("theta", "gradient", "potential")

    def batch_of(self, items: int, wanted: int | None) -> int:
        return items

    @property
    def fits_trials(self) -> bool:
        return True  # it finds its lr itself

    def adapting_in(self, steps: int) -> Transition:
        return replace(self, adapt_steps=steps) if self.adapt_steps else self  # type: ignore[type-var]

    @abstractmethod
    def kernel(self, s: Any, evaluate: Evaluate, lr: Scalar, tau: Scalar, z: Tensor, log_u: Tensor) -> Any:
        """The state after one step, which must leave `s` as it is until the last evaluation.

        z (..., d) is standard normal. log_u (..., 1) is the log of a uniform, for a test of acceptance.
        """


def mean(value: Scalar) -> float:
    """A number itself, or the mean of a tensor over chains."""
    return float(value.cpu().double().mean()) if isinstance(value, Tensor) else float(value)


def varies(c: Scalar) -> bool:
    """Whether coordinates may have different values: c is (..., d), not a float or (C, 1)."""
    return isinstance(c, Tensor) and c.ndim > 0 and c.shape[-1] > 1


def add_(x: Tensor, c: Scalar, y: Tensor) -> Tensor:
    """x += c y in place, in one kernel for a float c, and for () c on the host."""
    if not isinstance(c, Tensor):
        return x.add_(y, alpha=c)
    if c.device != x.device:  # addcmul_ rounds otherwise where a factor is on the host
        c = _on_gpu(c.item(), c.dtype, x.device, torch.cuda.current_stream(x.device))
    return x.addcmul_(y, c)


@functools.lru_cache(64)
def _on_gpu(value: float, dtype: torch.dtype, device: torch.device, stream: Any) -> Tensor:
    """() the number, for kernels of the stream, which has filled it."""
    return torch.full((), value, dtype=dtype, device=device)


def root(c: Scalar) -> Scalar:
    return c.sqrt() if isinstance(c, Tensor) else math.sqrt(c)


def inject_(x: Tensor, variance: Scalar, z: Tensor, batch_variance: Tensor | None = None) -> Tensor:
    """x += sqrt(variance - batch_variance) z in place: batches have already added batch_variance, if it is known."""
    if batch_variance is None:
        return add_(x, root(variance), z)
    return x.addcmul_(z, (variance - batch_variance).clamp_min_(0).sqrt_())
