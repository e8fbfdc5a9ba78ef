"""PredictiveMixture: the predictive law of numbers, one component for each network of the posterior."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from bdl.errors import ConfigError
from bdl.likelihoods import LevelsLaw, Likelihood, MixedLaw
from bdl.likelihoods.contaminated import ContaminatedNormal
from bdl.posterior.mixed_mixture import MixedMixture
from bdl.posterior.normal_mixture import NormalMixture
from bdl.posterior.roots import CLOSE, ROOT_WIDTH, first_count, root
from bdl.posterior.stored_outputs import CHUNK_OF_OUTPUTS, NetworkOutputs

CRPS_DRAWS = 1000  # draws for each item, where CRPS has no closed form


@dataclass(frozen=True)
class Answers:
    """What a mixture has been asked while its outputs were at hand."""

    moments: tuple[Tensor, Tensor, Tensor]  # each (n, k)
    quantiles: Mapping[float, Tensor]  # q -> (n, k)


class PredictiveMixture:
    """Σ_s w_s p(y | outputs_s) for n items with k targets each; s runs over the networks of the posterior.

    Every method works on a chunk of the items at a time, so that memory beyond the outputs does not depend on n.

    weights: (S,) >= 0; they need not be normalised. answers: known already, not computed again.
    """

    def __init__(
        self, outputs: NetworkOutputs, likelihood: Likelihood, weights: Tensor, answers: Answers | None = None
    ):
        self.outputs, self.likelihood, self.answers = outputs, likelihood, answers
        used = weights > 0
        self._networks = None if bool(used.all()) else used.nonzero().squeeze(1)
        w = weights[used].double()
        self.weights = w / w.sum()  # (S,) the networks with a weight
        self.items, width = outputs.shape
        self.targets = likelihood.num_targets(width)

    def part(self, items: Tensor) -> PredictiveMixture:
        """The mixture for the items at these places (m,)."""
        part = copy.copy(self)
        part.outputs, part.items, part.answers = self.outputs.part(items), len(items), None
        return part

    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """(n, k) means, and variances by the law of total variance: E Var y, aleatoric, and Var E y, epistemic."""
        if self.answers is not None:
            return self.answers.moments
        each = [self._moments(outputs) for _, outputs in self._chunks()]
        mean, aleatoric, epistemic = (torch.cat(part) for part in zip(*each, strict=True))
        return mean, aleatoric, epistemic

    def log_density(self, y: Tensor) -> Tensor:
        """(n,) log densities of all targets of an item together, for y (n,) or (n, k), in nats."""
        y = self._columns(y)
        return torch.cat([self._log_density(outputs, y[items]) for items, outputs in self._chunks()])

    def log_density_of_each(self, y: Tensor) -> Tensor:
        """(n, k) log densities of each target by itself, in nats."""
        y, log_w, density = self._columns(y), self.weights.log().view(-1, 1, 1), self.likelihood.log_density
        return torch.cat([torch.logsumexp(log_w + density(o, y[items]), 0) for items, o in self._chunks()])

    def levels(self) -> dict[float, Tensor]:
        """(n,) the probability of each level of a target that has a few, by its value; {} for others."""
        every = [of_masses(self.likelihood.marginals(o), self.weights) for _, o in self._chunks()]
        laws = [law for law in every if isinstance(law, LevelsLaw)] or [LevelsLaw(torch.zeros(0), torch.zeros(0, 1, 0))]
        return dict(zip(laws[0].levels.tolist(), torch.cat([law.log_p[:, 0] for law in laws]).exp().T, strict=True))

    def has_density(self, y: Tensor) -> Tensor:
        """(n, k) whether there is a density at y (n,) or (n, k), and no probability."""
        return self.likelihood.has_density(self._columns(y))

    def cdf(self, y: Tensor) -> Tensor:
        """(n, k) probabilities that a target is at most y (n, k)."""
        y = self._columns(y)
        return torch.cat([self._cdf(outputs, y[items]) for items, outputs in self._chunks()])

    def below(self, y: Tensor) -> Tensor:
        """(n, k) probabilities that a target is smaller than y (n, k)."""
        y = self._columns(y)
        masses = [self._mean(self.likelihood.mass(outputs, y[items])) for items, outputs in self._chunks()]
        return self.cdf(y) - torch.cat(masses)

    def quantile(self, q: float) -> Tensor:
        """(n, k) quantiles, each target by itself; for counts the smallest whole number with cdf >= q.

        They invert the mixture's distribution function to 1e-6, and to q/1000 and (1 - q)/1000 in the tails.
        """
        if not 0 < q < 1:
            raise ConfigError(f"a quantile needs 0 < q < 1, got {q}")
        if self.answers is not None and q in self.answers.quantiles:
            return self.answers.quantiles[q]
        return torch.cat([self._quantile(outputs, q) for _, outputs in self._chunks()])

    def draw(self, n: int, seed: int = 0) -> Tensor:
        """(n, items, k) draws: each one from one network of the posterior, for all items. The global stream stays."""
        return torch.cat([draws for _, draws in self._draws(n, seed)], 1)

    def points(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """(items, n, k) points that stand for the mixture of each item, and (items, n) their log densities, in nats.

        They are draws from networks that are chosen for each item, shifted and scaled, so that the points of an item
        have exactly the mean and the standard deviation of each target. The global stream stays.
        """
        each: list[tuple[Tensor, Tensor]] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for _, outputs in self._chunks(n):
                items = torch.arange(outputs.shape[1])
                places = (torch.arange(n).unsqueeze(1) + torch.rand(n, len(items), dtype=torch.float64)) / n
                networks = torch.searchsorted(self.weights.cumsum(0)[:-1], places)  # evenly over all of them
                drawn = self.likelihood.distribution(outputs[networks, items]).sample()
                mean, aleatoric, epistemic = self._moments(outputs)
                scale = (aleatoric + epistemic).sqrt() / drawn.std(0, correction=0)
                points = mean + scale * (drawn - drawn.mean(0))
                each.append((points, torch.stack([self._log_density(outputs, y) for y in points])))
        points, log_p = (torch.cat(part, 1) for part in zip(*each, strict=True))
        return points.movedim(0, 1), log_p.T

    def crps(self, y: Tensor) -> Tensor:
        """(n, k) continuous ranked probability scores E|Y - y| - ½ E|Y - Y'|, in the units of y.

        For normal laws it is the closed form (Grimit et al. 2006, eq. 5); where a quadrature of the last term is
        cheaper than all pairs of networks it takes that, which is exact to 3e-5 standard deviations. For laws with
        masses see `MixedMixture.crps` and `LevelsLaw.crps`. For other laws it is the unbiased estimate from 1,000 draws
        (Zamo & Naveau 2018, eq. 2).
        """
        y, law = self._columns(y), self.likelihood.marginals(self.outputs.of(slice(0, 1)))
        if not isinstance(law, Normal | ContaminatedNormal | MixedLaw | LevelsLaw):
            return torch.cat([_crps_of_draws(draws, y[items]) for items, draws in self._draws(CRPS_DRAWS, seed=0)])
        return torch.cat([self._crps(outputs, y[items]) for items, outputs in self._chunks()])

    def _chunks(self, rows: int = 1) -> Iterator[tuple[slice, Tensor]]:
        """(items, outputs (S, n', K)) in double precision; `rows` numbers are needed for each item beside its own."""
        size = max(1, CHUNK_OF_OUTPUTS // (max(len(self.weights), rows) * self.outputs.shape[1]))
        for begin in range(0, max(self.items, 1), size):  # without items, one empty chunk
            items = slice(begin, begin + size)
            yield items, self.outputs.of(items, self._networks)

    def _columns(self, y: Tensor) -> Tensor:
        """(n, k) targets in double precision. Raises ConfigError if they do not fit."""
        shape = (self.items, self.targets)
        if y.shape != shape and not (self.targets == 1 and y.shape == (self.items,)):
            raise ConfigError(
                f"targets of shape {tuple(y.shape)} do not fit a prediction of shape {shape}: give y one row for each "
                "item and one column for each target"
            )
        return y.cpu().double().reshape(shape)

    def _log_density(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(n',) of y (n', k)."""
        log_w = self.weights.log().unsqueeze(1)
        return torch.logsumexp(log_w - self.likelihood(outputs, y), 0)

    def _moments(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        means = self.likelihood.mean(outputs)
        mean, variance = self._mean(means), self.likelihood.variance(outputs).expand_as(means)
        return mean, self._mean(variance), self._mean((means - mean).square())

    def _mean(self, values: Tensor) -> Tensor:
        """(n', k) weighted mean over the networks of values (S, n', k)."""
        return (self.weights.view(-1, 1, 1) * values).sum(0)

    def _cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(n', k) probabilities that a target is at most y (n', k)."""
        return self._mean(self.likelihood.cdf(outputs, y))

    def _fast_cdf(self, outputs: Tensor) -> Callable[[Tensor], Tensor]:
        """`_cdf`, several times as fast for normal laws."""
        mixture = NormalMixture.of(self.likelihood.marginals(outputs), self.weights)
        return (lambda y: self._cdf(outputs, y)) if mixture is None else mixture.cdf()

    def _quantile(self, outputs: Tensor, q: float) -> Tensor:
        """Between the bounds that Cantelli's inequality gives: P(Y <= mean - t) <= var / (var + t²)."""
        if (mixture := of_masses(self.likelihood.marginals(outputs), self.weights)) is not None:
            return mixture.quantile(q)
        mean, aleatoric, epistemic = self._moments(outputs)
        std = (aleatoric + epistemic).sqrt().clamp_min(torch.finfo(torch.float64).tiny)
        low, high = mean - std * math.sqrt((1 - q) / q), mean + std * math.sqrt(q / (1 - q))
        if self.likelihood.counts:
            return first_count(lambda y: self._cdf(outputs, y), q, low.floor() - 1, high.ceil())
        cdf = self._fast_cdf(outputs) if 1e-3 < q < 1 - 1e-3 else lambda y: self._cdf(outputs, y)
        return root(cdf, q, low, high, ROOT_WIDTH * std, min(CLOSE, 1e-3 * q, 1e-3 * (1 - q)))

    def _crps(self, outputs: Tensor, y: Tensor) -> Tensor:
        law = self.likelihood.marginals(outputs)
        mixture = of_masses(law, self.weights) or NormalMixture.of(law, self.weights)
        assert mixture is not None  # `crps` asks no other law
        return mixture.crps(y)

    def _draws(self, n: int, seed: int) -> Iterator[tuple[slice, Tensor]]:
        """(items, draws (n, n', k)) from the laws of n networks, the same networks for all items."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            chosen = torch.multinomial(self.weights, n, replacement=True)
            for items, outputs in self._chunks(n):
                yield items, self.likelihood.distribution(outputs[chosen]).sample()


def of_masses(law: Distribution, weights: Tensor) -> MixedMixture | LevelsLaw | None:
    """The mixture by weights (S,) of laws with masses at points, or of levels; None for others."""
    if isinstance(law, LevelsLaw):
        return law.mixture(weights)
    return MixedMixture(law, weights) if isinstance(law, MixedLaw) else None


def _crps_of_draws(draws: Tensor, y: Tensor) -> Tensor:
    """(n, k) E|Y - y| - ½ E|Y - Y'| of draws (D, n, k); sorted, the sum over all pairs is one over ranks."""
    count = len(draws)
    rank = torch.arange(1, count + 1, dtype=draws.dtype).view(-1, 1, 1)
    spread = 2 * ((2 * rank - count - 1) * draws.sort(0).values).sum(0) / (count * (count - 1))
    return (draws - y).abs().mean(0) - 0.5 * spread
