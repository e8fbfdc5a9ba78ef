"""What a target is: a law exp(-U/T) on R^d, given by its energy U in nats, batched over leading axes."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from bdl.errors import ConfigError

T = TypeVar("T")


class Target(ABC):
    """A law exp(-U/T). A concrete target is a frozen dataclass with `dim` and `energy`; the rest follows by autograd.

    Where exact answers exist they are methods: `mean()` (d,), `covariance()` (d, d), `sample(n, generator)` (n, d) and
    `log_prob(x)` (...,), at T = 1 unless they take a temperature. Constants are held in double precision and follow x.
    """

    dim: Any  # d, a field or a property

    @abstractmethod
    def energy(self, x: Tensor) -> Tensor:
        """(..., d) -> (...,) U in nats, differentiable."""

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(..., d) -> (...,), (..., d). Targets with a simple gradient write it out."""
        return value_and_grad(self.energy, x)

    def grad(self, x: Tensor) -> Tensor:
        """(..., d) -> (..., d) gradient of U."""
        return self.energy_and_grad(x)[1]


class DataTarget(Target):
    """A posterior of `num_data` = N items: U(x) = N loss(x).

    loss(x, index) is the mean over the items `index` of -log p(item | x), less log prior(x) / N. index is (B,), one
    batch for all, or (..., B), a batch for each leading axis of x; None means all items.
    """

    num_data: Any  # N, a field or a property

    @abstractmethod
    def loss(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """(..., d) -> (...,) nats per item."""

    def loss_and_grad(self, x: Tensor, index: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(..., d) -> (...,), (..., d)."""
        return value_and_grad(lambda y: self.loss(y, index), x)

    def energy(self, x: Tensor) -> Tensor:
        return self.num_data * self.loss(x)

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        loss, grad = self.loss_and_grad(x)
        return self.num_data * loss, self.num_data * grad


def gradient(target: Any, x: Tensor) -> Tensor:
    """(..., d) gradient of U by autograd, whatever the target's own `grad` does."""
    return value_and_grad(target.energy, x)[1]


def value_and_grad(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """(...,) values of a function of the last axis, and their (..., d) gradients."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        value = function(x)
        (grad,) = torch.autograd.grad(value.sum(), x)
    return value.detach(), grad


def curvature(target: Any, x: Tensor) -> Tensor:
    """(..., d) diagonal of the second derivative of U, by d passes of autograd."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(target.energy(x).sum(), x, create_graph=True)
        columns = [torch.autograd.grad(slope[..., i].sum(), x, retain_graph=True)[0][..., i] for i in range(target.dim)]
    return torch.stack(columns, -1)


def cast(target: T, like: Tensor) -> T:
    """The target with its tensors in the dtype and on the device of `like`, so that no step need convert them."""
    made = copy.copy(target)
    for name, value in getattr(target, "__dict__", {}).items():
        if isinstance(value, Tensor):
            object.__setattr__(made, name, value.to(like) if value.is_floating_point() else value.to(like.device))
    return made


def double(value: Any) -> Tensor:
    """Numbers, lists or tensors as a tensor in double precision."""
    return torch.as_tensor(value, dtype=torch.float64).detach()


def factor(name: str, matrix: Tensor) -> Tensor:
    """(..., d, d) lower Cholesky factor; ConfigError unless symmetric positive definite."""
    square = matrix.ndim >= 2 and matrix.shape[-1] == matrix.shape[-2]
    root, info = torch.linalg.cholesky_ex(matrix) if square else (matrix, torch.ones(1))
    if not square or not torch.allclose(matrix, matrix.mT) or bool(info.any()):
        raise ConfigError(
            f"{name} must be symmetric and positive definite, got {matrix.tolist()}: use (S + S') / 2, eigenvalues > 0"
        )
    return root
