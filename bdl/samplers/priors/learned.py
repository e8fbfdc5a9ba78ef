"""Learned precisions of a normal prior: a Gamma hyperprior, from whose conditional law they are drawn inside the run.

    θ_g | τ_g ~ N(mean, 1/τ_g),    τ_g ~ Gamma(a, rate b),    for each group g of d_g coordinates

The run samples exp(-U/T) over θ and log τ together, with

    U = N loss + Σ_g [τ_g (b + |θ_g - mean|²/2) - (a + d_g/2) log τ_g]

in nats, constants dropped. The hyperprior is tempered as everything in U is. Between two steps of θ, with τ fixed, τ is
drawn from its conditional law, which is conjugate (Gibbs sampling; Neal 1996, section 3.3):

    τ_g | θ ~ Gamma((a + d_g/2)/T, rate (b + |θ_g - mean|²/2)/T)

At T = 1 that is the Bayes posterior. At any T the mean of that law is (a + d_g/2)/(b + |θ_g - mean|²/2), its value at
T = 0. In log τ the tempered law does not depend on whether the hyperprior is written for precision, variance or scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from bdl.devices import widest
from bdl.errors import ConfigError
from bdl.samplers.priors.base import Centred, Prior, Scalar, centre
from bdl.samplers.priors.centres import describe, fingerprint
from bdl.samplers.priors.scales import Shapes, in_type_of
from bdl.torch_private import standard_gamma

LEARNED = "learned"


@dataclass(frozen=True)
class Learned:
    """Gamma(shape, rate) on the precision of each parameter tensor, or of all tensors of the prior together.

    Args:
        shape: a > 0; it weighs as much as 2 a coordinates of θ do.
        rate: b > 0; the mean of the precision is a / b before any data.
        each: "tensor", or "block": one precision for all tensors under this prior, such as those of a `bdl.Block`.
        every: steps between two draws.

    Raises ConfigError for a value out of range.
    """

    shape: float = 1.0
    rate: float = 1.0
    each: Literal["tensor", "block"] = "tensor"
    every: int = 10

    def __post_init__(self) -> None:
        for name in ("shape", "rate"):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ConfigError(f"{name} of a learned precision must be a number > 0, got {value!r}")
        if self.each not in ("tensor", "block"):
            raise ConfigError(f"each of a learned precision must be tensor or block, got {self.each!r}")
        if type(self.every) is not int or self.every < 1:
            raise ConfigError(f"every of a learned precision must be a whole number of at least 1, got {self.every!r}")

    def __str__(self) -> str:
        return f"a learned precision for each {self.each}, Gamma({self.shape:g}, {self.rate:g})"


@dataclass(frozen=True, eq=False)
class LearnedGaussian(Centred):
    """N(mean, 1/τ) with the present precisions τ, which `renew` draws in place."""

    hyper: Learned
    sizes: tuple[int, ...]  # (G,) numbers of coordinates in each group
    values: Tensor  # (..., G) present precisions, in the widest type
    precision: Tensor  # (..., d) the same for each coordinate, in the type of θ
    mean: Any = centre()

    @classmethod
    def of(cls, hyper: Learned, mean: Any, shapes: Shapes, like: Tensor) -> LearnedGaussian:
        """At the mean of the hyperprior. like: θ (..., d), which may have more coordinates."""
        sizes = [math.prod(shape) for shape in shapes]
        sizes = sizes if hyper.each == "tensor" else [sum(sizes)]
        lead, start = like.shape[:-1], hyper.shape / hyper.rate
        values = like.new_full((*lead, len(sizes)), start, dtype=widest(like.device))
        return cls(hyper, tuple(sizes), values, like.new_full((*lead, sum(sizes)), start), mean)

    @property
    def learns(self) -> bool:
        return True

    def to(self, like: Tensor) -> LearnedGaussian:
        values = self.values.to(like.device, widest(like.device))
        return replace(self, values=values, precision=self.precision.to(like), mean=in_type_of(self.mean, like))

    def learned(self) -> list[Tensor]:
        return [self.values]

    def learn(self, values: Sequence[Tensor]) -> None:
        self.values.copy_(values[0])
        parts = [self.values[..., g : g + 1].expand(*self.values.shape[:-1], n) for g, n in enumerate(self.sizes)]
        self.precision.copy_(torch.cat(parts, -1))

    def renew(self, theta: Tensor, temperature: Scalar, step: int, random: torch.Generator) -> None:
        if step % self.hyper.every:
            return
        shape, rate = self._shape(), self.hyper.rate + self._squares(theta) / 2
        rate = torch.where(rate.isfinite(), rate, self.hyper.rate)  # a chain that has diverged, until it is replaced
        cold = shape / rate  # the value at T = 0
        t = torch.as_tensor(temperature).to(rate)
        t = t.unsqueeze(-1) if t.ndim else t  # (C, 1), or ()
        warm = standard_gamma((shape / t.clamp_min(1e-30)).expand_as(rate), random) * t / rate
        self.learn([torch.where(t > 0, warm, cold).clamp_min(torch.finfo(theta.dtype).tiny)])

    def energy(self, theta: Tensor) -> Tensor:
        rate = self.hyper.rate + self._squares(theta) / 2
        return (self.values * rate - self._shape() * self.values.log()).sum(-1)

    def add_grad_(self, g: Tensor, theta: Tensor, num_data: int) -> None:
        g.addcmul_(self.offset(theta), self.precision, value=1 / num_data)

    def constant(self, d: int) -> float:
        return math.nan  # only the evidence bound needs it, and it draws no precisions

    def identity(self) -> Any:
        hyper = {"type": "bdl.Learned", "shape": self.hyper.shape, "rate": self.hyper.rate, "numbers": list(self.sizes)}
        centred = {} if self.at_zero else {"mean": fingerprint(self.mean)}
        return {"type": "bdl.Gaussian", "precision": hyper, **centred}

    def __str__(self) -> str:
        low, high = self.values.aminmax()
        return f"Gaussian, {self.hyper}, now {float(low):.3g} to {float(high):.3g}{describe(self.mean)}"

    def _shape(self) -> Tensor:
        """(G,) a + d_g/2."""
        return self.hyper.shape + torch.tensor(self.sizes, dtype=self.values.dtype, device=self.values.device) / 2

    def _squares(self, theta: Tensor) -> Tensor:
        """(..., G) |θ_g - mean|²."""
        parts = self.offset(theta).to(self.values.dtype).split(list(self.sizes), -1)
        return torch.stack([part.square().sum(-1) for part in parts], -1)


def restore(prior: Prior, saved: Tensor | None) -> None:
    """Give a bound prior the precisions (..., G) of a checkpoint. Raises ConfigError if it learns others."""
    here = prior.learned()
    sizes, there = [values.shape[-1] for values in here], 0 if saved is None else saved.shape[-1]
    if saved is None or there != sum(sizes):
        line = f"the checkpoint has {there} learned precisions, and the prior learns {sum(sizes)}"
        raise ConfigError(f"{line}: restore prior.precision, or start afresh")
    prior.learn(saved.to(here[0]).split(sizes, -1))
