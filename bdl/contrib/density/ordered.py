"""ordered: a constraint that torch.distributions lacks, on vectors whose numbers rise, such as means of a mixture."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Transform, biject_to, constraints
from torch.distributions.constraints import Constraint


class Ordered(Constraint):
    """Vectors with x_1 < x_2 < ..."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value.diff(dim=-1) > 0).all(-1)


ordered = Ordered()


class OrderedBijection(Transform):
    """y_1 = x_1,  y_k = y_(k-1) + exp(x_k)."""

    domain, codomain, bijective = constraints.real_vector, ordered, True  # type: ignore[assignment]

    def _call(self, x: Tensor) -> Tensor:
        return torch.cat([x[..., :1], x[..., 1:].exp()], -1).cumsum(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return torch.cat([y[..., :1], y.diff(dim=-1).log()], -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x[..., 1:].sum(-1)


biject_to.register(Ordered, lambda constraint: OrderedBijection())
