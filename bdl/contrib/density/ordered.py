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
    """x_1 = u_1,  x_k = x_(k-1) + exp(u_k)."""

    domain, codomain, bijective = constraints.real_vector, ordered, True

    def _call(self, u: Tensor) -> Tensor:
        return torch.cat([u[..., :1], u[..., 1:].exp()], -1).cumsum(-1)

    def _inverse(self, x: Tensor) -> Tensor:
        return torch.cat([x[..., :1], x.diff(dim=-1).log()], -1)

    def log_abs_det_jacobian(self, u: Tensor, x: Tensor) -> Tensor:
        return u[..., 1:].sum(-1)


biject_to.register(Ordered, lambda constraint: OrderedBijection())
