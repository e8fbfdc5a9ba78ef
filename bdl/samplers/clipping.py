"""Gradient clipping (Karagiannis 2023, Remark 36). It changes the law: it is off by default and `explain` names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from bdl.errors import ConfigError


class Clip(Protocol):
    """A function that clips g (..., d), the gradient of U/N, in place and returns it."""

    def __call__(self, g: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class ClipNorm:
    """g <- g min(1, c / |g|), in place, with one norm per chain; g (..., d) is the gradient of U/N."""

    c: float

    def __post_init__(self) -> None:
        if not self.c > 0:
            raise ConfigError(f"clip norm must be > 0, got {self.c}: leave clip null for none")

    def __call__(self, g: Tensor) -> Tensor:
        norm = g.norm(dim=-1, keepdim=True).clamp_min(1e-30)
        return g.mul_((self.c / norm).clamp_max(1.0))


@dataclass(frozen=True)
class ClipValue:
    """g <- max(-c, min(c, g)), in place, per coordinate; g (..., d) is the gradient of U/N."""

    c: float

    def __post_init__(self) -> None:
        if not self.c > 0:
            raise ConfigError(f"clip value must be > 0, got {self.c}: leave clip null for none")

    def __call__(self, g: Tensor) -> Tensor:
        return g.clamp_(-self.c, self.c)
