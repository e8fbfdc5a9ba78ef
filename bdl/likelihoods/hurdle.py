"""HurdleNLL: numbers of which a share sits exactly on one value, or on several."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from bdl.advice import override, takes
from bdl.errors import ConfigError
from bdl.likelihoods.base import Likelihood, Outputs, as_columns, moments_of, refuse_targets
from bdl.likelihoods.mixed import MixedLaw, is_point
from bdl.likelihoods.support import Support, Tail


@dataclass(frozen=True)
class HurdleNLL(Likelihood):
    """-log p(y) of a law with J masses at points and a density elsewhere (a hurdle model, Cragg 1971).

        P(y = points[j]) = softmax(0, logits[0] + c_0, logits[1] + c_1, ...)[j + 1]
        elsewhere u(y) ~ N(mean, std²), with the remaining probability, std² = e^s + min_std²

    Outputs (..., B, (2 + J)k): k means, k values of s, then k of each c; targets y (..., B, k) -> (..., B) nats. At a
    point the loss is -log of its mass, elsewhere that of the density: it compares with other laws that have these
    points, and not with a density alone, whose NLL has no lower bound where values repeat. For that use CRPS.

    >>> import torch
    >>> HurdleNLL()(torch.zeros(2, 3), torch.tensor([[0.0], [1.0]])).exp()  # 2, and 2 sqrt(2 pi e)
    tensor([2.0000, 8.2655])

    Args:
        points: the values with a mass, in the units of y.
        logits: what is added to each c, so that networks that put out 0 predict the shares of the training rows.
        low, high, tail, center, spread, limit: of the density, see `Support`. With low=0 it lies above 0.
        min_std: standard deviation that u has in any case, as in `HeteroscedasticNLL`.

    Raises ConfigError for no points, for another number of logits, and for what `Support` refuses.
    """

    points: tuple[float, ...] = (0.0,)
    logits: tuple[float, ...] = (0.0,)
    low: float | None = None
    high: float | None = None
    tail: Tail = "log"
    center: float = 0.0
    spread: float = 1.0
    limit: float | None = None
    min_std: float = 0.0
    outputs: ClassVar[Outputs] = "values"

    def __post_init__(self) -> None:
        for name in ("points", "logits"):  # a configuration and a file hold lists
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.points or len(self.logits) != len(self.points):
            raise ConfigError(
                f"points={list(self.points)} need one logit each, and at least one, got logits={list(self.logits)}"
            )
        if not 0 <= self.min_std < math.inf:
            raise ConfigError(f"min_std must be >= 0, got {self.min_std}")
        _ = self.support  # which checks its part

    @property
    def support(self) -> Support:
        return Support(self.low, self.high, self.tail, self.center, self.spread, self.limit)

    @property
    def per_target(self) -> int:
        return 2 + len(self.points)

    @property
    def has_masses(self) -> bool:
        return True

    @property
    def bounds(self) -> tuple[float, float]:
        low, high = self.support.bounds
        return min(low, *self.points), max(high, *self.points)

    def has_density(self, y: Tensor) -> Tensor:
        return self._chosen(y)[1]

    def marginals(self, outputs: Tensor) -> MixedLaw:
        mean, s, *logits = outputs.chunk(self.per_target, -1)
        log_p = self._log_shares(logits)
        std = (0.5 * self._log_var(s)).exp()
        return MixedLaw(self.support, mean, std, self.points, log_p[1:], log_p[0])

    def distribution(self, outputs: Tensor) -> Distribution:
        return Independent(self.marginals(outputs), 1, validate_args=False)

    def mass(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.marginals(outputs).mass(y)

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        mean, s, *logits = outputs.chunk(self.per_target, -1)
        y = as_columns(y, mean.shape).expand_as(mean)  # a mass has an axis of its own in front
        chosen, rest = self._chosen(y.to(outputs.dtype))
        log_var = self._log_var(s)
        squares = (self.support.to_line(y) - mean).square()
        normal = 0.5 * (squares * (-log_var).exp() + log_var + math.log(2 * math.pi)) - self.support.log_slope(y)
        return (torch.where(rest, normal, 0) - (self._log_shares(logits) * chosen).sum(0)).sum(-1)

    def mean_and_gradient(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """With r = mean - u, e = 1/std² and 1{rest}: 1{rest} r e, ½ 1{rest} (1 - r² e), and softmax - one-hot by c.

        The second is that by log std², see `HeteroscedasticNLL`.
        """
        gradient, items = torch.empty_like(outputs), outputs.shape[-2]
        mean, s, *logits = outputs.chunk(self.per_target, -1)
        by_mean, by_s, *by_logits = gradient.chunk(self.per_target, -1)
        y = as_columns(y, mean.shape).expand_as(mean)  # a mass has an axis of its own in front
        chosen, rest = self._chosen(y.to(outputs.dtype))
        log_p, log_var = self._log_shares(logits), self._log_var(s)
        r = mean - self.support.to_line(y)
        torch.mul(r, (-log_var).exp_(), out=by_mean)
        squares = r.mul_(by_mean)
        normal = 0.5 * (squares + log_var + math.log(2 * math.pi)) - self.support.log_slope(y)
        loss = (torch.where(rest, normal, 0) - (log_p * chosen).sum(0)).sum(-1).mean(-1)
        counted = rest.to(outputs.dtype).mul_(1 / items)
        by_mean.mul_(counted)
        torch.mul(1 - squares, 0.5 * counted, out=by_s)
        if self.min_std:
            by_s.mul_((s - log_var).exp_())
        for out, p, one in zip(by_logits, log_p[1:].exp(), chosen[1:], strict=True):
            torch.sub(p, one, out=out).mul_(1 / items)
        return loss, gradient

    def check(self, y: Tensor, outputs: int | None = None) -> None:
        super().check(y, outputs)
        _, rest = self._chosen(y)
        refuse_targets(rest & ~self.support.contains(y), y, *outside(self.support))

    def constant(self, y: Tensor) -> Distribution:
        chosen, rest = self._chosen(y)
        counts = chosen.masked_fill(y.isnan(), 0).sum(1)  # (1 + J, k); NaN: a target that is missing
        log_p = ((counts + 1) / (counts.sum(0) + len(counts))).log()
        mean, std = moments_on_line(self.support, torch.where(rest, y, torch.nan))
        return MixedLaw(self.support, mean, std, self.points, log_p[1:], log_p[0])

    def _log_shares(self, logits: list[Tensor]) -> Tensor:
        """(1 + J, ..., k) log probabilities: of the density, then of each point."""
        each = [torch.zeros_like(logits[0]), *(c + shift for c, shift in zip(logits, self.logits, strict=True))]
        return torch.stack(each).log_softmax(0)

    def _chosen(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """(1 + J, ..., k) ones where y is not at a point, then where it is at each; and the first as booleans."""
        at = torch.stack([is_point(y, point) for point in self.points])
        rest = ~at.any(0)
        return torch.cat([rest.unsqueeze(0), at]).to(y.dtype), rest

    def _log_var(self, s: Tensor) -> Tensor:
        return torch.logaddexp(s, s.new_tensor(2 * math.log(self.min_std))) if self.min_std else s


def outside(support: Support) -> tuple[str, str]:
    """What targets outside of a support are, and what helps; for messages."""
    low, high = support.bounds
    where = f"not between {low:g} and {high:g}" if math.isfinite(low) and math.isfinite(high) else (
        f"not above {low:g}" if math.isfinite(low) else f"not below {high:g}"
    )  # fmt: skip
    return where, f"{override('loss', 'normal')} takes all numbers" if takes("loss") else "correct them"


def moments_on_line(support: Support, y: Tensor) -> tuple[Tensor, Tensor]:
    """(k,) mean and standard deviation of u(y) over the items of y (n, k) that are not NaN; 1 in place of 0."""
    mean, variance = moments_of(support.to_line(y))
    return mean.nan_to_num(0), torch.where(variance > torch.finfo(y.dtype).tiny, variance, 1.0).sqrt()
