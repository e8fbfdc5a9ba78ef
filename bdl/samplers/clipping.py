"""Clipping of the gradient of U/N, by its norm or by value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from bdl.errors import ConfigError


@dataclass(frozen=True)
class Clip(ABC):
    """Clips g (..., d), the gradient of U/N. Raises ConfigError unless c > 0."""

    c: float

    def __post_init__(self) -> None:
        if not self.c > 0:
            raise ConfigError(f"c of {type(self).__name__} must be > 0, got {self.c}: leave clip null for none")

    @abstractmethod
    def __call__(self, g: Tensor) -> Tensor:
        """g, clipped in place."""


class ClipNorm(Clip):
    """g <- g min(1, c / |g|), in place, with one norm per chain; g (..., d) is the gradient of U/N."""

    def __call__(self, g: Tensor) -> Tensor:
        norm = g.norm(dim=-1, keepdim=True).clamp_min(1e-30)
        return g.mul_((self.c / norm).clamp_max(1.0))


class ClipValue(Clip):
    """g <- max(-c, min(c, g)), in place, per coordinate; g (..., d) is the gradient of U/N."""

    def __call__(self, g: Tensor) -> Tensor:
        return g.clamp_(-self.c, self.c)
