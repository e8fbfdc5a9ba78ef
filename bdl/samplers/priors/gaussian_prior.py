"""GaussianPrior: a normal distribution with covariances over named parameters, such as that of a run's samples."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bdl.errors import BdlWarning, ConfigError
from bdl.samplers.priors.base import Prior
from bdl.samplers.priors.scales import Shapes

LEAST = 0.05  # share of a coordinate's variance that stays its own, beside what the factors explain
APART = 9.0  # variance of the chains' means over that within chains: three standard deviations


class SampledNetworks(Protocol):
    """A `bdl.Posterior`, as a prior sees it."""

    net: nn.Module

    @property
    def records(self) -> Sequence[Any]: ...

    def stream(self) -> Iterator[Any]: ...


@dataclass(frozen=True, eq=False)
class GaussianPrior(Prior):
    """N(mean, diag(variance) + VᵀV) over named parameters; V are the `factors`, whose number is the rank.

    The posterior of one part of the data is the prior of the next part (Bayes' rule, one part after another): with
    `GaussianPrior.of(posterior)` in the place of the first part's loss and prior, the next run samples the posterior of
    both parts, as far as the first one is normal. It remembers what the first part said, and forgets the rest.

    Args:
        names, shapes: the parameters, in the order of the coordinates.
        mean, variance: (d,), the variance > 0.
        factors: (k, d).

    Raises ConfigError for a variance that is not > 0.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    mean: Tensor = field(repr=False)
    variance: Tensor = field(repr=False)
    factors: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        d = sum(map(math.prod, self.shapes))
        if self.mean.shape != (d,) or self.variance.shape != (d,) or self.factors.shape != (len(self.factors), d):
            raise ConfigError(
                f"a GaussianPrior of {d} coordinates needs mean and variance ({d},) and factors (k, {d}), got "
                f"{tuple(self.mean.shape)}, {tuple(self.variance.shape)} and {tuple(self.factors.shape)}"
            )
        if not bool((self.variance > 0).all() & self.variance.isfinite().all() & self.mean.isfinite().all()):
            raise ConfigError("a GaussianPrior needs finite means and variances > 0")

    @classmethod
    def of(cls, posterior: SampledNetworks, rank: int = 0) -> GaussianPrior:
        """The normal distribution with the mean and the variances of a run's samples, as the prior of the next run.

        Samples of a posterior at temperature T have T times its covariance, which is taken out: -log of the prior is U
        of the first run, and the next run has a temperature of its own.

        Args:
            posterior: a `bdl.Posterior`, whose samples have equal weights.
            rank: the number of principal directions whose covariance is kept. 0 keeps variances alone. Every coordinate
                keeps its variance. The samples are in memory together.

        Raises ConfigError for a rank that the samples do not have, for samples at several temperatures, at 0, or under
        a weighting, and for parameters that do not vary. Warns with BdlWarning where the chains lie in different modes:
        the mean of such networks is none of them.
        """
        temperature = _temperature(posterior.records)
        shapes = {name: tuple(p.shape) for name, p in posterior.net.named_parameters()}
        x, chains, names = _samples(posterior, list(shapes))
        most = min(len(x) - 2, x.shape[1])
        if not 0 <= rank <= most:
            raise ConfigError(
                f"rank must be from 0 to {most} for {len(x)} samples of {x.shape[1]:,} numbers, got {rank}"
            )
        mean = x.mean(0)
        x -= mean
        variance = x.square().sum(0) / (len(x) - 1)
        if not bool((variance > 0).all()):
            raise ConfigError(
                f"{_first(variance == 0, names, shapes)} is the same in all samples: sample it, or freeze it"
            )
        _warn_of_modes(x, chains)
        factors = _principal(x, rank) / math.sqrt(temperature)
        variance = variance / temperature
        own = (variance - factors.square().sum(0)).maximum(LEAST * variance)
        return cls(tuple(names), tuple(shapes[name] for name in names), mean, own, factors)

    @property
    def means(self) -> dict[str, Tensor]:
        """The mean by name: `net.load_state_dict(prior.means, strict=False)` lets the next run begin there."""
        sizes = [math.prod(shape) for shape in self.shapes]
        parts = zip(self.names, self.shapes, self.mean.split(sizes), strict=True)
        return {name: part.view(shape).clone() for name, shape, part in parts}

    def centred(self, names: Sequence[str], shapes: Shapes, start: Tensor) -> GaussianPrior:
        """The marginal distribution of these parameters, in their order."""
        sizes = [math.prod(shape) for shape in self.shapes]
        ends = dict(zip(self.names, torch.tensor(sizes).cumsum(0).tolist(), strict=True))
        places = []
        for name, shape in zip(names, shapes, strict=True):
            known = self.shapes[self.names.index(name)] if name in ends else None
            if known != tuple(shape):
                what = "no place" if known is None else f"the shape {known}"
                raise ConfigError(
                    f"{name} has {what} in the GaussianPrior, and {tuple(shape)} here: give it a prior "
                    "of its own by blocks"
                )
            places.append(torch.arange(ends[name] - math.prod(shape), ends[name], device=self.mean.device))
        chosen = torch.cat(places)
        mean, variance, factors = (t[..., chosen].to(start) for t in (self.mean, self.variance, self.factors))
        return replace(
            self, names=tuple(names), shapes=tuple(map(tuple, shapes)), mean=mean, variance=variance, factors=factors
        )

    def offset(self, theta: Tensor) -> Tensor:
        return theta - self.mean.to(theta)

    def energy(self, theta: Tensor) -> Tensor:
        x = self.offset(theta)
        energy = x.square() @ self._precision.to(x)
        return 0.5 * (energy - (x @ self._whitened.to(x).T).square().sum(-1) if len(self.factors) else energy)

    def add_grad_(self, g: Tensor, theta: Tensor, num_data: int) -> None:
        x = self.offset(theta)
        g.addcmul_(x, self._precision.to(x), value=1 / num_data)
        if len(self.factors):
            w = self._whitened.to(x)
            g.sub_((x @ w.T) @ w, alpha=1 / num_data)

    def constant(self, d: int) -> float:
        v = self.factors.double()
        explained = torch.linalg.slogdet(torch.eye(len(v), dtype=v.dtype, device=v.device) + v / self.variance @ v.T)[1]
        return 0.5 * (d * math.log(2 * math.pi) + float(self.variance.double().log().sum() + explained))

    def identity(self) -> Any:
        flat = torch.cat([self.mean, self.variance, self.factors.flatten()]).double().cpu()
        checksum = hashlib.sha256(flat.numpy().tobytes()).hexdigest()
        return {"type": "bdl.GaussianPrior", "numbers": len(self.mean), "rank": len(self.factors), "sha256": checksum}

    def __str__(self) -> str:
        rank = f", rank {len(self.factors)}" if len(self.factors) else ""
        return f"Gaussian of {len(self.mean):,} means and variances{rank}"

    @cached_property
    def _precision(self) -> Tensor:
        return 1 / self.variance

    @cached_property
    def _whitened(self) -> Tensor:
        """W (k, d) in (D + VᵀV)⁻¹ = D⁻¹ - WᵀW (Woodbury), with W = L⁻¹ V D⁻¹ and L Lᵀ = 1 + V D⁻¹ Vᵀ."""
        v = self.factors.double()
        scaled = v / self.variance
        inner = torch.eye(len(v), dtype=v.dtype, device=v.device) + scaled @ v.T
        return torch.linalg.solve_triangular(torch.linalg.cholesky(inner), scaled, upper=False).to(self.mean)


def _samples(posterior: SampledNetworks, known: Sequence[str]) -> tuple[Tensor, Tensor, list[str]]:
    """The samples (n, d) in double, the chain (n,) of each, and the names of the parameters that were sampled."""
    rows, chains, names = [], [], []
    for draw in posterior.stream():
        names = [name for name in known if name in draw.tensors]
        rows.append(torch.cat([draw.tensors[name].detach().cpu().flatten() for name in names]).double())
        chains.append(draw.chain)
    return torch.stack(rows), torch.tensor(chains), names


def _principal(x: Tensor, rank: int) -> Tensor:
    """(k, d) the first principal directions of centred samples (n, d), times their standard deviations."""
    if rank == 0:
        return x[:0]
    if len(x) > x.shape[1]:
        values, vectors = torch.linalg.eigh(x.T @ x / (len(x) - 1))
        return (vectors[:, -rank:] * values[-rank:].clamp_min(0).sqrt()).T
    values, vectors = torch.linalg.eigh(x @ x.T)
    return vectors[:, -rank:].T @ x / math.sqrt(len(x) - 1)


def _temperature(records: Sequence[Any]) -> float:
    """The one temperature of all samples. Raises ConfigError where there are several, or none above 0."""
    lists = [r.temperature if isinstance(r.temperature, list) else [r.temperature] for r in records]
    every = sorted({value for values in lists for value in values})
    if len(every) > 1 or every[0] <= 0:
        shown = ", ".join(f"{t:g}" for t in every[:3])
        raise ConfigError(f"a GaussianPrior needs samples at one temperature > 0, these have {shown}: keep them at one")
    if any(r.zeta for r in records):
        raise ConfigError(
            "a GaussianPrior needs samples of exp(-U/T), these were kept under a weighting: use bdl.Flat()"
        )
    return every[0]


def _warn_of_modes(x: Tensor, chains: Tensor) -> None:
    """Warn where most coordinates of centred samples (n, d) differ far more between chains than within them."""
    groups = [x[chains == c] for c in chains.unique()]
    if len(groups) < 2 or min(map(len, groups)) < 2:
        return
    within = torch.stack([group.var(0) for group in groups]).mean(0)
    between = torch.stack([group.mean(0) for group in groups]).var(0)
    ratio = float((between / within.clamp_min(torch.finfo(x.dtype).tiny)).median())
    if ratio > APART:
        warnings.warn(
            f"the chains lie apart: the variance between them is {ratio:.3g} times that within a chain, and the mean "
            "of networks in different modes is none of them; begin all chains at one trained network "
            '(start="given", start=checkpoint)',
            BdlWarning,
            stacklevel=3,
        )


def _first(wrong: Tensor, names: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The name of the parameter with the first coordinate (d,) that is wrong."""
    ends = torch.tensor([math.prod(shapes[name]) for name in names]).cumsum(0)
    return names[int((ends <= int(wrong.nonzero()[0])).sum())]
