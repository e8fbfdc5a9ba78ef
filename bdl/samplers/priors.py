"""Priors over flat parameters `(..., d)`: their energy -log p(θ) in nats, constants dropped, and its gradient."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from bdl.errors import ConfigError


class Prior(Protocol):
    def bind(self, sizes: Sequence[int], like: Tensor) -> Prior:
        """The same prior with a scale per tensor spread over its coordinates; sizes = numbers per tensor."""
        ...

    def energy(self, theta: Tensor) -> Tensor | float:
        """(...,) -log p(θ), nats, constants dropped."""
        ...

    def add_grad_(self, g: Tensor, theta: Tensor, num_data: int) -> None:
        """g += ∇(-log p(θ)) / num_data, in place."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Improper flat prior, p(θ) ∝ 1."""

    def bind(self, sizes: Sequence[int], like: Tensor) -> Uniform:
        return self

    def energy(self, theta: Tensor) -> float:
        return 0.0

    def add_grad_(self, g: Tensor, theta: Tensor, num_data: int) -> None:
        pass

    def __str__(self) -> str:
        return "uniform (improper)"


@dataclass(frozen=True, eq=False)
class Gaussian:
    """N(0, 1/precision) on every coordinate; precision: one number >= 0, or one per parameter tensor.

    At T = 0 it is SGD's weight decay, with weight_decay = precision / N.
    """

    precision: Any = 1.0  # a number, or one per tensor; per coordinate (d,) once bound

    def __post_init__(self) -> None:
        values = [self.precision] if isinstance(self.precision, int | float) else self.precision
        if not all(float(p) >= 0 for p in values):
            raise ConfigError(f"prior precision must be >= 0, got {self.precision} (0 is bdl.Uniform())")

    def bind(self, sizes: Sequence[int], like: Tensor) -> Gaussian:
        if isinstance(self.precision, int | float):
            return self
        return replace(self, precision=per_coordinate(self.precision, sizes, like))

    def energy(self, theta: Tensor) -> Tensor:
        if isinstance(self.precision, int | float):
            square = torch.dot(theta, theta) if theta.ndim == 1 else torch.linalg.vecdot(theta, theta)
            return 0.5 * self.precision * square
        return 0.5 * (theta.square() @ self.precision.to(theta))

    def add_grad_(self, g: Tensor, theta: Tensor, num_data: int) -> None:
        if isinstance(self.precision, int | float):
            g.add_(theta, alpha=self.precision / num_data)
        else:
            g.addcmul_(theta, self.precision.to(theta), value=1 / num_data)

    def __str__(self) -> str:
        if isinstance(self.precision, int | float):
            return f"Gaussian, precision {self.precision:g}"
        values = [float(p) for p in self.precision]
        name = hashlib.sha256(repr(values).encode()).hexdigest()[:8]  # so that other precisions have another name
        return f"Gaussian, precisions {min(values):g} to {max(values):g} ({name})"


def per_coordinate(scales: Sequence[float] | Tensor, sizes: Sequence[int], like: Tensor) -> Tensor:
    """(d,) the scale of every coordinate, from one scale per tensor."""
    if len(scales) != len(sizes):
        raise ConfigError(
            f"the prior has {len(scales)} scales for {len(sizes)} parameter tensors: give one, or one each"
        )
    scales = torch.as_tensor([float(s) for s in scales], dtype=like.dtype, device=like.device)
    return scales.repeat_interleave(torch.as_tensor(list(sizes), device=like.device))
