"""Blocks: parameters, named by a pattern, whose prior or step size differs from that of the others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.frozen import matching
from bdl.samplers.priors.base import Prior, Scalar
from bdl.samplers.priors.scales import Shapes


@dataclass(frozen=True)
class Block:
    """What differs for the parameters of one pattern, in `Sampler(blocks={"head.*": Block(...)})`.

    lr_factor multiplies the sampler's lr, and so acts as a fixed diagonal preconditioner: the law stays. A
    schedule moves lr; the factor stays.

    Raises ConfigError for a factor that is not > 0.
    """

    prior: Any = None  # None: the sampler's
    lr_factor: float = 1.0

    def __post_init__(self) -> None:
        factor: Any = self.lr_factor
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
            raise ConfigError(f"lr_factor of a block must be a number > 0, got {factor!r}")

    def __str__(self) -> str:
        parts = [] if self.lr_factor == 1 else [f"lr x {self.lr_factor:g}"]
        return ", ".join(parts + ([] if self.prior is None else [f"prior {self.prior}"])) or "as the others"


Blocks = Mapping[str, Block]


@dataclass(frozen=True, eq=False)
class Blockwise(Prior):
    """A prior for every parameter tensor. `parts` are those of its bound form: (start, stop, prior) in coordinates."""

    priors: tuple[Prior, ...]
    parts: tuple[tuple[int, int, Prior], ...] = field(default=())

    def bind(self, shapes: Shapes, like: Tensor) -> Blockwise:
        parts, start = [], 0
        for prior, tensors in self._runs():
            of_run = shapes[tensors]
            stop = start + sum(map(math.prod, of_run))
            parts.append((start, stop, prior.bind(of_run, like)))
            start = stop
        return replace(self, parts=tuple(parts))

    @property
    def needs_start(self) -> bool:
        return any(prior.needs_start for prior in self.priors)

    def centred(self, names: Sequence[str], shapes: Shapes, start: Tensor) -> Blockwise:
        priors: list[Prior] = []
        of_each = start.split([math.prod(shape) for shape in shapes], -1)
        for prior, tensors in self._runs():
            one = prior.centred(names[tensors], shapes[tensors], torch.cat(of_each[tensors], -1))
            priors += [one] * (tensors.stop - tensors.start)
        return replace(self, priors=tuple(priors))

    def offset(self, theta: Tensor) -> Tensor:
        return torch.cat([prior.offset(theta[..., start:stop]) for start, stop, prior in self.parts], -1)

    def _runs(self) -> Iterator[tuple[Prior, slice]]:
        """Every prior with the neighbouring tensors that have it."""
        start = 0
        for _, run in itertools.groupby(self.priors, key=id):
            same = list(run)
            yield same[0], slice(start, start + len(same))
            start += len(same)

    def to(self, like: Tensor) -> Blockwise:
        return replace(self, parts=tuple((start, stop, prior.to(like)) for start, stop, prior in self.parts))

    @property
    def learns(self) -> bool:
        return any(prior.learns for prior in self.priors)

    def learned(self) -> list[Tensor]:
        return [values for _, _, prior in self.parts for values in prior.learned()]

    def learn(self, values: Sequence[Tensor]) -> None:
        left = list(values)
        for _, _, prior in self.parts:
            count = len(prior.learned())
            prior.learn(left[:count])
            left = left[count:]

    def renew(self, theta: Tensor, temperature: Scalar, step: int, random: torch.Generator) -> None:
        for start, stop, prior in self.parts:
            prior.renew(theta[..., start:stop], temperature, step, random)

    def energy(self, theta: Tensor) -> Any:
        return sum(prior.energy(theta[..., start:stop]) for start, stop, prior in self.parts)

    def add_grad_(self, g: Tensor, theta: Tensor, num_data: int) -> None:
        for start, stop, prior in self.parts:
            prior.add_grad_(g[..., start:stop], theta[..., start:stop], num_data)

    def constant(self, d: int) -> float:
        return sum(prior.constant(stop - start) for start, stop, prior in self.parts)

    def identity(self) -> Any:
        parts = [{"stop": stop, "prior": prior.identity()} for _, stop, prior in self.parts]
        return {"type": "by block", "parts": parts}

    def __str__(self) -> str:
        return "; ".join(dict.fromkeys(str(prior) for _, _, prior in self.parts))


def chosen_blocks(blocks: Blocks | None, names: Sequence[str]) -> list[Block]:
    """The block of every parameter: the first whose pattern matches, or one that changes nothing."""
    default, chosen = Block(), {}
    for pattern, block in (blocks or {}).items():
        if not isinstance(block, Block):
            raise ConfigError(f"blocks[{pattern!r}] must be a bdl.Block, got {type(block).__name__}")
        for name in matching(names, pattern, "blocks"):
            chosen.setdefault(name, block)
    return [chosen.get(name, default) for name in names]


def prior_of(prior: Prior, blocks: Sequence[Block]) -> Prior:
    """The sampler's prior, with those of the blocks in its place where they have one."""
    if all(block.prior is None for block in blocks):
        return prior
    return Blockwise(tuple(prior if block.prior is None else block.prior for block in blocks))


def lr_factors(blocks: Sequence[Block], sizes: Sequence[int], like: Tensor) -> Tensor | None:
    """(d,) factors of lr; None where all are 1. sizes: numbers per parameter tensor and chain."""
    values = [block.lr_factor for block in blocks]
    if all(value == 1 for value in values):
        return None
    factors = like.new_empty(sum(sizes))
    for part, value in zip(factors.split(list(sizes)), values, strict=True):
        part.fill_(value)
    return factors
