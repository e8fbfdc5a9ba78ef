"""OrdinalNLL: one of a few levels that have an order, such as marks or ratings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution, Independent

from bdl.advice import override, takes
from bdl.errors import ConfigError
from bdl.likelihoods.base import Likelihood, Outputs, as_columns, refuse_targets


class LevelsLaw(Distribution):
    """P(y = levels[j]) = exp(log_p[..., j]).

    levels: (K,) ascending. log_p: (..., K), which the batch shape (...) leaves out.
    """

    def __init__(self, levels: Tensor, log_p: Tensor):
        self.levels, self.log_p = levels, log_p
        super().__init__(log_p.shape[:-1], validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        at = (value.unsqueeze(-1) == self.levels).expand(*torch.broadcast_shapes((*value.shape, 1), self.log_p.shape))
        return torch.where(at, self.log_p, -torch.inf).amax(-1)

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y <= value)."""
        return (self.log_p.exp() * (self.levels <= value.unsqueeze(-1))).sum(-1)

    @property
    def mean(self) -> Tensor:
        return (self.log_p.exp() * self.levels).sum(-1)

    @property
    def variance(self) -> Tensor:
        return (self.log_p.exp() * (self.levels - self.mean.unsqueeze(-1)).square()).sum(-1)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        return self.levels[torch.distributions.Categorical(logits=self.log_p).sample(sample_shape)]

    def mixture(self, weights: Tensor) -> LevelsLaw:
        """The mixture by weights (S,), which sum to 1, over the first axis of the batch shape."""
        return LevelsLaw(self.levels, (self.log_p + weights.log().view(-1, *[1] * (self.log_p.ndim - 1))).logsumexp(0))

    def quantile(self, q: float) -> Tensor:
        """(...) the smallest level with P(Y <= level) >= q."""
        reached = self.log_p.exp().cumsum(-1) >= q - 1e-9  # probabilities are sums of rounded numbers
        reached[..., -1] = True
        return self.levels[reached.int().argmax(-1)]

    def crps(self, y: Tensor) -> Tensor:
        """(...) ∫ (P(Y <= x) - 1{x >= y})² dx, the ranked probability score for levels 1 apart (Epstein 1969)."""
        gap = self.log_p.exp().cumsum(-1) - (self.levels >= y.unsqueeze(-1)).to(self.log_p.dtype)
        return (gap[..., :-1].square() * self.levels.diff()).sum(-1)


@dataclass(frozen=True)
class OrdinalNLL(Likelihood):
    """-log P(y) of one of K levels in an order, by a cumulative logit (McCullagh 1980): y (..., B, 1) -> (..., B) nats.

        P(y <= levels[j]) = sigmoid(c_j - η),    j = 0 ... K-2
        c_0 = thresholds[0] + a_0,    c_j = c_(j-1) + (thresholds[j] - thresholds[j-1]) e^(a_j)

    Outputs (..., B, K): η, then the K-1 numbers a, under which the c keep their order whatever the a are. As constants
    behind the network, see `with_constant_scale`, they are the same for all inputs: the odds are proportional.

    >>> import torch
    >>> law = OrdinalNLL(levels=(1.0, 2.0, 3.0), thresholds=(-1.0, 1.0)).marginals(torch.zeros(1, 3))
    >>> law.log_p.exp(), law.mean
    (tensor([[[0.2689, 0.4621, 0.2689]]]), tensor([[2.]]))

    Args:
        levels: the K >= 2 values of y, ascending.
        thresholds: the K-1 values of c where all a are 0, ascending: those of the shares of the levels.

    Raises ConfigError for levels or thresholds that do not ascend, and for another number of thresholds.
    """

    levels: tuple[float, ...]
    thresholds: tuple[float, ...]
    outputs: ClassVar[Outputs] = "values"

    def __post_init__(self) -> None:
        for name in ("levels", "thresholds"):  # a configuration and a file hold lists
            object.__setattr__(self, name, values := tuple(map(float, getattr(self, name))))
            if not all(a < b for a, b in zip(values, values[1:], strict=False)):
                raise ConfigError(f"{name} must ascend, got {list(values)}")
        if len(self.levels) < 2 or len(self.thresholds) != len(self.levels) - 1:
            raise ConfigError(
                f"levels={list(self.levels)} need one threshold between each and the next, and two levels at least, "
                f"got thresholds={list(self.thresholds)}"
            )

    @property
    def per_target(self) -> int:
        return len(self.levels)

    def num_targets(self, outputs: int) -> int:
        if outputs != len(self.levels):
            raise ConfigError(f"OrdinalNLL needs {len(self.levels)} outputs, and the network has {outputs}")
        return 1

    @property
    def has_masses(self) -> bool:
        return True

    @property
    def bounds(self) -> tuple[float, float]:
        return self.levels[0], self.levels[-1]

    def has_density(self, y: Tensor) -> Tensor:
        return torch.zeros_like(y, dtype=torch.bool)

    def marginals(self, outputs: Tensor) -> LevelsLaw:
        every = torch.arange(len(self.levels), device=outputs.device)
        log_p = _log_probability(*self._between(outputs.unsqueeze(-2), every)[2])
        return LevelsLaw(outputs.new_tensor(self.levels), log_p.unsqueeze(-2))

    def distribution(self, outputs: Tensor) -> Distribution:
        return Independent(self.marginals(outputs), 1, validate_args=False)

    def mass(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.marginals(outputs).log_prob(y).exp()

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        return -_log_probability(*self._between(outputs, self._level(outputs, y))[2])

    def check(self, y: Tensor, outputs: int | None = None) -> None:
        super().check(y, outputs)
        known = (y.unsqueeze(-1) == y.new_tensor(self.levels)).any(-1)
        remedy = f"correct them, or {override('loss', 'normal')} takes all numbers" if takes("loss") else "correct them"
        refuse_targets(~known, y, "none of the levels", remedy)

    def constant(self, y: Tensor) -> Distribution:
        counts = (y.unsqueeze(-1) == y.new_tensor(self.levels)).sum(0).to(y.dtype) + 1  # (k, K)
        return LevelsLaw(y.new_tensor(self.levels), (counts / counts.sum(-1, keepdim=True)).log())

    def mean_and_gradient(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """By c_level: -sigmoid(-u), by c_(level-1): sigmoid(l), by the gap between them: -1 / (e^gap - 1)."""
        level, steps, (above, below, gap) = self._between(outputs, self._level(outputs, y))
        by_above, by_below = torch.sigmoid(-above).neg_(), torch.sigmoid(below)
        ends = torch.zeros_like(F.pad(outputs, (0, 1))).scatter_(-1, level + 1, by_above).scatter_(-1, level, by_below)
        by_c = ends[..., 1:-1].flip(-1).cumsum(-1).flip(-1)  # each a moves all c from its own on
        by_gap = torch.zeros_like(outputs).scatter_(-1, level, torch.where(gap.isinf(), 0, -1 / torch.expm1(gap)))
        by_steps = steps[..., 1:] * (by_c[..., 1:] + by_gap[..., 1:-1])
        gradient = torch.cat([-by_above - by_below, by_c[..., :1], by_steps], -1).mul_(1 / outputs.shape[-2])
        return -_log_probability(above, below, gap).mean(-1), gradient

    def _level(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(..., B) the numbers of the levels y."""
        y, levels = as_columns(y, torch.Size((*outputs.shape[:-1], 1))), outputs.new_tensor(self.levels)
        return torch.bucketize(y.squeeze(-1).to(outputs.dtype).contiguous(), (levels[1:] + levels[:-1]) / 2)

    def _between(self, outputs: Tensor, level: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
        """The numbers of levels (..., 1), which fit outputs (..., K) but for the last axis; all c_j - c_(j-1), with c_0
        for the first; and of each level c - η above and below it, and the gap between them.
        """
        eta, a, first = outputs[..., :1], outputs[..., 1:], self.thresholds[0]
        steps = torch.cat([first + a[..., :1], outputs.new_tensor(self.thresholds).diff() * a[..., 1:].exp()], -1)
        ends = F.pad(F.pad(steps.cumsum(-1) - eta, (1, 0), value=-math.inf), (0, 1), value=math.inf)  # (..., K+1)
        gaps = F.pad(steps[..., 1:].clamp_min(torch.finfo(steps.dtype).tiny), (1, 1), value=math.inf)  # (..., K)
        shape = torch.broadcast_shapes(level.shape, outputs.shape[:-1])
        level = level.expand(shape).unsqueeze(-1)
        ends, gaps = (values.expand(*shape, -1) for values in (ends, gaps))
        return level, steps, (ends.gather(-1, level + 1), ends.gather(-1, level), gaps.gather(-1, level))


def _log_probability(above: Tensor, below: Tensor, gap: Tensor) -> Tensor:
    """log(sigmoid(u) - sigmoid(l)), u above a level and l below it: the log of sigmoid(u) sigmoid(-l) (1 - e^(l-u))."""
    return (F.logsigmoid(above) + F.logsigmoid(-below) + torch.log(-torch.expm1(-gap))).squeeze(-1)
