"""The interface of a target: a law exp(-U/T) on R^d, given by its energy U in nats and batched over leading axes."""

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from bdl.errors import ConfigError

T = TypeVar("T")


class Target:
    """A law exp(-U/T). A concrete target is a frozen dataclass with `dim` and `energy`; autograd supplies gradients.

    A target that writes its gradient has `energy_and_grad` in place of `energy`.

    Where exact answers exist they are methods: `mean()` (d,), `covariance()` (d, d), `sample(n, generator)` (n, d) and
    `log_prob(x)` (...,), at T = 1 unless they take a temperature. A target holds its constants in double precision and
    converts them to the dtype and device of x.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Quartic(Target):
    ...     dim: int = 2
    ...
    ...     def energy(self, x):
    ...         return x.pow(4).sum(-1)
    >>> energy, grad = Quartic().energy_and_grad(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))  # two points
    >>> energy
    tensor([ 1., 16.])
    >>> grad
    tensor([[ 4.,  0.],
            [ 0., 32.]])
    """

    dim: Any  # d, a field or a property

    def energy(self, x: Tensor) -> Tensor:
        """(..., d) -> (...,) U in nats, differentiable."""
        return self.energy_and_grad(x)[0]

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(..., d) -> (...,), (..., d) U and its gradient."""
        return value_and_grad(self.energy, x)

    def grad(self, x: Tensor) -> Tensor:
        """(..., d) -> (..., d) gradient of U."""
        return self.energy_and_grad(x)[1]


class DataTarget(Target):
    """A posterior of N items, by default those of `y`: U(x) = N loss(x). Targets write `loss`, or `loss_and_grad`.

    loss(x, index) is the mean of -log p(item | x) over the items `index`, minus log prior(x) / N. An index (B,) is one
    batch for all leading axes of x, an index (..., B) a batch for each; None means all items.
    """

    y: Any

    @property
    def num_data(self) -> int:
        return len(self.y)

    def loss(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """(..., d) -> (...,) nats per item."""
        return self.loss_and_grad(x, index)[0]

    def loss_and_grad(self, x: Tensor, index: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(..., d) -> (...,), (..., d) the loss and its gradient."""
        return value_and_grad(lambda y: self.loss(y, index), x)

    def energy(self, x: Tensor) -> Tensor:
        return self.num_data * self.loss(x)

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        loss, grad = self.loss_and_grad(x)
        return self.num_data * loss, self.num_data * grad


def value_and_grad(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """(...,) values of a function of the last axis, and their (..., d) gradients."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        value = function(x)
        (grad,) = torch.autograd.grad(value.sum(), x)
    return value.detach(), grad


def curvature(target: Any, x: Tensor) -> Tensor:
    """(..., d) diagonal of the Hessian of U, by d passes of autograd."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(target.energy(x).sum(), x, create_graph=True)
        columns = [torch.autograd.grad(slope[..., i].sum(), x, retain_graph=True)[0][..., i] for i in range(target.dim)]
    return torch.stack(columns, -1)


def cast(target: T, like: Tensor) -> T:
    """A copy of the target whose tensors have the dtype and device of `like`, which saves a conversion per step."""
    converted = copy.copy(target)
    for name, value in getattr(target, "__dict__", {}).items():
        if isinstance(value, Tensor):
            object.__setattr__(converted, name, value.to(like) if value.is_floating_point() else value.to(like.device))
    return converted


def freeze(target: Any, **values: Any) -> None:
    """Set fields of a frozen dataclass, in its `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(target, name, value)


def double(value: Any) -> Tensor:
    """Convert numbers, lists or tensors to a tensor in double precision."""
    return torch.as_tensor(value, dtype=torch.float64).detach()


def factor(name: str, matrix: Tensor) -> Tensor:
    """(..., d, d) lower Cholesky factor. Raises ConfigError unless `matrix` is symmetric and positive definite."""
    square = matrix.ndim >= 2 and matrix.shape[-1] == matrix.shape[-2]
    root, info = torch.linalg.cholesky_ex(matrix) if square else (matrix, torch.ones(1))
    if not square or not torch.allclose(matrix, matrix.mT) or bool(info.any()):
        raise ConfigError(
            f"{name} must be symmetric and positive definite, got {matrix.tolist()}: use (S + S') / 2 and "
            "check that its eigenvalues are > 0"
        )
    return root
