"""The conjugate law of a linear regression, over its weights and its log noise variance."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class NormalInverseGamma:
    """b | s² ~ N(m, s² V), s² ~ IG(a, r), as a law of (b, c) with c = log s².

    Marginally b_j is Student-t with 2a degrees of freedom, centre m_j and scale sqrt(V_jj r / a), and s² is IG(a, r).
    """

    location: Tensor  # m (p,)
    scale: Tensor  # V (p, p)
    shape: float  # a
    rate: float  # r

    def mean(self) -> Tensor:
        """(p + 1,) E b = m, E c = log r - digamma(a)."""
        log_variance = math.log(self.rate) - torch.digamma(self._a()).item()
        return torch.cat([self.location, self.location.new_tensor([log_variance])])

    def covariance(self) -> Tensor:
        """(p + 1, p + 1): Cov b = V r / (a - 1), infinite for a <= 1, Var c = trigamma(a); uncorrelated."""
        weights = self.scale * (self.rate / (self.shape - 1) if self.shape > 1 else math.inf)
        return torch.block_diag(weights, torch.polygamma(1, self._a()).reshape(1, 1))

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(n, p + 1)."""
        # torch.distributions.Gamma takes no generator
        gamma = torch._standard_gamma(self._a().expand(n), generator=generator)  # type: ignore
        c = math.log(self.rate) - gamma.log()
        z = torch.randn(n, len(self.location), generator=generator, dtype=torch.float64)
        b = self.location + (c / 2).exp()[:, None] * z @ torch.linalg.cholesky(self.scale).T
        return torch.cat([b, c[:, None]], 1)

    def marginal_log_prob(self, x: Tensor) -> Tensor:
        """(..., p + 1) marginal log density of each coordinate, at x (..., p + 1)."""
        a, c = self.shape, x[..., -1:]
        scale = (self.scale.diagonal() * self.rate / a).sqrt()
        weights = torch.distributions.StudentT(2 * a, self.location.to(x), scale.to(x)).log_prob(x[..., :-1])
        log_variance = a * math.log(self.rate) - math.lgamma(a) - a * c - self.rate * (-c).exp()
        return torch.cat([weights, log_variance], -1)

    def _a(self) -> Tensor:
        return torch.tensor(self.shape, dtype=torch.float64)
