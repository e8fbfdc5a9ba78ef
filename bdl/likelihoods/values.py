"""Likelihoods of numbers: normal and Student-t."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal, StudentT
from torch.nn.functional import softplus

from bdl.errors import ConfigError
from bdl.likelihoods.base import Likelihood, Outputs, as_columns, halves
from bdl.likelihoods.contaminated import ContaminatedNormal, loss_of_squares, precision_of
from bdl.likelihoods.per_target import check_each, number, one_or_each, positive_or_none

QUADRATURE_NODES = 2**17
REACH = 25.0  # the table ends at z = sinh(25), beyond which the tails hold less than 1e-20


@functools.cache
def _student_table(df: float) -> Tensor:
    """(QUADRATURE_NODES,) Student's distribution function at z = sinh(u), for evenly spaced u from -REACH to REACH."""
    from scipy.special import stdtr  # scipy is slow to import, and training does not need it

    return torch.from_numpy(
        stdtr(df, torch.linspace(-REACH, REACH, QUADRATURE_NODES, dtype=torch.float64).sinh().numpy())
    )


@dataclass(frozen=True)
class GaussianNLL(Likelihood):
    """-log N(y; outputs, std²), summed over the k outputs of an item: outputs and y (..., B, k) -> (..., B) nats.

    >>> import torch
    >>> GaussianNLL(std=2.0)(torch.tensor([[0.0]]), torch.tensor([[2.0]]))  # 1/2 + log 2 + log(2 pi) / 2
    tensor([2.1121])

    Args:
        std: known standard deviation of y around the outputs, in the units of y, or one for each output. A mean squared
            error as the loss would mean std = sqrt(1/2). Where it is not known, `HeteroscedasticNLL` reads it from the
            network's outputs, or from one learned constant: see `bdl.with_constant_scale`.

    Raises ConfigError unless std > 0.
    """

    std: float | Sequence[float]
    outputs: ClassVar[Outputs] = "values"

    def __post_init__(self) -> None:
        object.__setattr__(self, "std", one_or_each("std", self.std))
        if not all(std > 0 for std in np.atleast_1d(self.std)):
            raise ConfigError(f"std must be > 0, got {self.std}")

    def num_targets(self, outputs: int) -> int:
        return check_each("std", self.std, outputs)

    def distribution(self, outputs: Tensor) -> Distribution:
        return Independent(Normal(outputs, self._of_each(outputs), validate_args=False), 1, validate_args=False)

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        z, k = (outputs - as_columns(y, outputs.shape)) / self._of_each(outputs), outputs.shape[-1]
        logs = k * math.log(self.std) if isinstance(self.std, int | float) else sum(map(math.log, self.std))
        return 0.5 * z.square().sum(-1) + (logs + 0.5 * k * math.log(2 * math.pi))

    def mean_and_gradient(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        by = 1 / (self._of_each(outputs) ** 2 * outputs.shape[-2])
        return self(outputs, y).mean(-1), (outputs - as_columns(y, outputs.shape)).mul_(by)

    def _of_each(self, outputs: Tensor) -> float | Tensor:  # a number costs a GPU nothing
        if isinstance(self.std, int | float):
            return self.std
        self.num_targets(outputs.shape[-1])
        return outputs.new_tensor(self.std)


@dataclass(frozen=True)
class HeteroscedasticNLL(Likelihood):
    """-log N(y; mean, std²): outputs (..., B, 2k) = mean and s, which tells std; y (..., B, k) -> (..., B) nats.

    The scale depends on the input, or not, as the network decides; see `bdl.with_constant_scale`.

    >>> import torch
    >>> HeteroscedasticNLL()(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0]]))  # log(2 pi) / 2
    tensor([0.9189])

    Args:
        link: "log_var": s is the log variance. "softplus": std = log(1 + e^s), which takes outputs half as large for a
            small std, and grows no faster than s for a large one. Under the same prior on the weights it is another law
            over functions: at s = 0 std is 0.69 instead of 1.
        min_std: the standard deviation of noise that y has in any case, in its units; or one for each target. Its
            square is added to the predicted variance. Rounding to steps of h leaves h / sqrt(12) at least. A density
            without this bound has no limit where rows repeat: it rewards networks that are certain of a rounded number,
            and they err without limit on other rows.
        outliers: the share of the items whose errors have WIDER times the standard deviation (the contaminated normal
            law of Tukey 1960). Under a normal law one item far from a certain prediction costs any number of nats.

    Raises ConfigError for another link, for min_std < 0, and unless 0 <= outliers < 1/2.
    """

    link: Literal["log_var", "softplus"] = "log_var"
    min_std: float | Sequence[float] = 0.0
    outliers: float = field(default=0.0, metadata={"in identity": "unless default"})
    outputs: ClassVar[Outputs] = "values"

    def __post_init__(self) -> None:
        if self.link not in ("log_var", "softplus"):
            raise ConfigError(f"link must be log_var or softplus, got {self.link!r}")
        object.__setattr__(self, "min_std", one_or_each("min_std", self.min_std))
        if not all(0 <= least < math.inf for least in np.atleast_1d(self.min_std)):
            raise ConfigError(f"min_std must be >= 0, got {self.min_std}")
        object.__setattr__(self, "outliers", number("outliers", self.outliers))
        if not 0 <= self.outliers < 0.5:
            raise ConfigError(f"outliers must be a share from 0 to below 1/2, got {self.outliers}")

    @property
    def per_target(self) -> int:
        return 2

    def num_targets(self, outputs: int) -> int:
        return check_each("min_std", self.min_std, super().num_targets(outputs))

    def distribution(self, outputs: Tensor) -> Distribution:
        mean, s = halves(self, outputs)
        std = softplus(s) if self.link == "softplus" else (0.5 * s).exp()
        if self.min_std:
            std = torch.hypot(std, std.new_tensor(self.min_std))  # () or (k,)
        law = ContaminatedNormal(mean, std, self.outliers) if self.outliers else Normal(mean, std, validate_args=False)
        return Independent(law, 1, validate_args=False)

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        mean, s = halves(self, outputs)
        log_var = self._with_min_std(2 * softplus(s).log() if self.link == "softplus" else s)
        squares = (as_columns(y, mean.shape) - mean).square() * (-log_var).exp()
        if self.outliers:
            squares = 2 * loss_of_squares(squares, self.outliers)
        return 0.5 * (squares + log_var + math.log(2 * math.pi)).sum(-1)

    def mean_and_gradient(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """With r = mean - y and e = 1/std²: the loss is ½ Σ (r² e - log e + log 2π), its gradient r e and ½ (1 - r² e).

        The last is that by log std². By s it is multiplied by the derivative of log std²: 2 sigmoid(s) / std for
        std = softplus(s), and with min_std by the predicted share of std².
        """
        gradient = torch.empty_like(outputs)  # keeps the order in memory of the outputs
        mean, s = halves(self, outputs)
        by_mean, by_s = gradient.chunk(2, -1)
        std = softplus(s) if self.link == "softplus" else None
        predicted = s if std is None else 2 * std.log()
        log_var = self._with_min_std(predicted)
        r = mean - as_columns(y, mean.shape)
        torch.mul(r, (-log_var).exp_(), out=by_mean)
        squares = pulled = r.mul_(by_mean)
        if self.outliers:
            pull = precision_of(squares, self.outliers)
            by_mean.mul_(pull)
            squares, pulled = 2 * loss_of_squares(squares, self.outliers), squares * pull
        loss = (squares + log_var).sum(-1).mean(-1).mul_(0.5).add_(0.5 * math.log(2 * math.pi) * mean.shape[-1])
        items = outputs.shape[-2]
        by_mean.mul_(1 / items)
        torch.mul(pulled, -0.5 / items, out=by_s).add_(0.5 / items)
        if std is not None:
            by_s.mul_(s.sigmoid().div_(std).mul_(2))
        if self.min_std:
            by_s.mul_((predicted - log_var).exp_())
        return loss, gradient

    def _with_min_std(self, log_var: Tensor) -> Tensor:
        """The log variance with the least one added to it."""
        return torch.logaddexp(log_var, 2 * log_var.new_tensor(self.min_std).log()) if self.min_std else log_var


@dataclass(frozen=True)
class StudentTNLL(Likelihood):
    """-log t(y; location, scale) with df degrees of freedom, for data with outliers: y (..., B, k) -> (..., B) nats.

    Outputs (..., B, k) are the locations, of a given scale; or outputs (..., B, 2k) are location and log scale.

    >>> import torch
    >>> StudentTNLL(df=4.0, scale=1.0)(torch.tensor([[0.0]]), torch.tensor([[0.0]]))  # log(8/3)
    tensor([0.9808])

    Args:
        df: degrees of freedom > 2, so that the law has a variance, df / (df - 2) scale².
        scale: known scale, in the units of y, or one for each output; None means that the network predicts its
            logarithm.

    Raises ConfigError unless df > 2 and scale > 0.
    """

    df: float = 4.0
    scale: float | Sequence[float] | None = None
    outputs: ClassVar[Outputs] = "values"

    def __post_init__(self) -> None:
        object.__setattr__(self, "df", number("df", self.df))
        if not self.df > 2:
            raise ConfigError(f"df must be > 2, because the distribution has no variance otherwise; got {self.df}")
        object.__setattr__(self, "scale", positive_or_none("scale", self.scale))

    def num_targets(self, outputs: int) -> int:
        return check_each("scale", self.scale, super().num_targets(outputs))

    @property
    def per_target(self) -> int:
        return 2 if self.scale is None else 1

    def distribution(self, outputs: Tensor) -> Distribution:
        location, scale = self._parameters(outputs)
        return Independent(StudentT(self.df, location, scale, validate_args=False), 1, validate_args=False)

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(..., B, k) probabilities that each target is at most y, from a table, 20 times as fast as scipy.

        The error is at most 1e-8 for outputs in double precision, and 1e-5 for those in float32.
        """
        location, scale = self._parameters(outputs)
        z = (y - location) / scale
        table = _student_table(self.df).to(z)
        place = ((z.asinh() + REACH) * ((len(table) - 1) / (2 * REACH))).clamp_(0, len(table) - 1)
        below = place.long().clamp_(0, len(table) - 2)  # NaN has no place; the difference below keeps it
        return torch.lerp(table[below], table[below + 1], place - below)

    def _parameters(self, outputs: Tensor) -> tuple[Tensor, Tensor | float]:
        if self.scale is not None:
            self.num_targets(outputs.shape[-1])
            return outputs, outputs.new_tensor(self.scale) if isinstance(self.scale, tuple) else self.scale  # type: ignore[return-value]
        location, log_scale = halves(self, outputs)
        return location, log_scale.exp()
