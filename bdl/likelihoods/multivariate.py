"""MultivariateNormalNLL: normal errors of several targets that belong together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal

from bdl.errors import ConfigError
from bdl.likelihoods.base import Likelihood, Outputs, as_columns
from bdl.likelihoods.per_target import check_each
from bdl.likelihoods.values import HeteroscedasticNLL


@dataclass(frozen=True)
class MultivariateNormalNLL(Likelihood):
    """-log N(y; mean, Σ) of k targets whose errors are correlated: y (..., B, k) -> (..., B) nats.

    Σ = D C Cᵀ D. D holds the standard deviations, which the network predicts as for `HeteroscedasticNLL`. C is the
    Cholesky factor of the correlation matrix: row i is (a_i1, ..., a_i(i-1), 1, 0, ...) over its length. So each target
    by itself has exactly the law of `HeteroscedasticNLL`, whatever the a are, and a = 0 is that likelihood. The outputs
    (..., B, 2k + k(k-1)/2) are the k means, the k outputs that tell D, and the a, row by row.

    >>> import torch
    >>> outputs = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]])  # correlation 1 / sqrt(2)
    >>> MultivariateNormalNLL().distribution(outputs).covariance_matrix
    tensor([[[1.0000, 0.7071],
             [0.7071, 1.0000]]])

    Args:
        link, min_std: see `HeteroscedasticNLL`. The least noise has the correlation of the rest.

    Raises ConfigError as `HeteroscedasticNLL` does.
    """

    link: Literal["log_var", "softplus"] = "log_var"
    min_std: float | Sequence[float] = 0.0
    outputs: ClassVar[Outputs] = "values"

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_std", self.single.min_std)

    @property
    def single(self) -> HeteroscedasticNLL:
        """The likelihood of each target by itself."""
        return HeteroscedasticNLL(self.link, self.min_std)

    def num_outputs(self, targets: int) -> int:
        return 2 * targets + targets * (targets - 1) // 2

    def num_targets(self, outputs: int) -> int:
        targets = (math.isqrt(9 + 8 * outputs) - 3) // 2
        if targets < 1 or self.num_outputs(targets) != outputs:
            raise ConfigError(
                "MultivariateNormalNLL needs 2k + k(k-1)/2 outputs for k targets, such as 5 for 2 and 9 for 3, and the "
                f"network has {outputs}"
            )
        return check_each("min_std", self.min_std, targets)

    def distribution(self, outputs: Tensor) -> Distribution:
        law = self.marginals(outputs)
        factor = law.stddev.unsqueeze(-1) * self.correlation_factor(outputs)
        return MultivariateNormal(law.mean, scale_tril=factor, validate_args=False)

    def marginals(self, outputs: Tensor) -> Distribution:
        return self.single.marginals(outputs[..., : 2 * self.num_targets(outputs.shape[-1])])

    def correlation_factor(self, outputs: Tensor) -> Tensor:
        """C (..., B, k, k), lower triangular with rows of length 1."""
        k = self.num_targets(outputs.shape[-1])
        below = torch.tril_indices(k, k, -1, device=outputs.device)
        factor = torch.eye(k, dtype=outputs.dtype, device=outputs.device).repeat(*outputs.shape[:-1], 1, 1)
        factor[..., below[0], below[1]] = outputs[..., 2 * k :]
        return factor / factor.norm(dim=-1, keepdim=True)

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """With z = (y - mean) / std, C u = z row by row: 2 loss = Σ u² + 2 Σ log std + 2 Σ log C_ii + k log 2π."""
        law = self.marginals(outputs)
        z = (as_columns(y, law.mean.shape) - law.mean) / law.stddev
        k = z.shape[-1]
        a, u, begin = outputs[..., 2 * k :], [z[..., 0]], 0
        loss = 0.5 * z[..., 0].square() + law.stddev.log().sum(-1) + 0.5 * k * math.log(2 * math.pi)
        for i in range(1, k):
            row = a[..., begin : begin + i]
            squares = 1 + row.square().sum(-1)  # the square of the length
            each = squares.sqrt() * z[..., i] - (row * torch.stack(u, -1)).sum(-1)
            loss = loss + 0.5 * each.square() - 0.5 * squares.log()
            u.append(each)
            begin += i
        return loss

    def seen_log_density(self, outputs: Tensor, y: Tensor, seen: Tensor) -> Tensor:
        """Of the targets that were seen: their rows and columns of Σ, the others being independent of them.

        Σ / (std stdᵀ) = L Lᵀ and L u = z, entry by entry, because LAPACK takes 10 times as long for so small matrices.
        """
        law, factor, k = self.marginals(outputs), self.correlation_factor(outputs), seen.shape[-1]
        z = torch.where(seen, (y - law.mean) / law.stddev, 0)
        root: list[list[Tensor]] = []  # L
        u: list[Tensor] = []
        for i in range(k):
            row: list[Tensor] = []
            for j in range(i):
                r = torch.where(seen[..., i] & seen[..., j], (factor[..., i, :] * factor[..., j, :]).sum(-1), 0)
                row.append((r - sum(a * b for a, b in zip(row, root[j], strict=False))) / root[j][j])
            row.append((1 - sum(a.square() for a in row)) ** 0.5 if row else torch.ones_like(z[..., 0]))
            u.append((z[..., i] - sum(a * b for a, b in zip(row, u, strict=False))) / row[i])
            root.append(row)
        squares, logs = sum(each.square() for each in u), sum(row[-1].log() for row in root)
        of_std = torch.where(seen, law.stddev.log() + 0.5 * math.log(2 * math.pi), 0).sum(-1)
        return -0.5 * squares - logs - of_std
