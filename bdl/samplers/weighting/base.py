"""What a weighting is, none at all, and the step of the recursion by which one learns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from bdl.identity import type_name

AUTO = "auto"  # zeta that tuning is to find


@dataclass(frozen=True)
class RobbinsMonro:
    """Step of the stochastic approximation, min(1, scale / (k^power + offset)); Liang's code has scale 100."""

    scale: float = 10.0
    power: float = 0.75
    offset: float = 1000.0

    def __call__(self, k: int) -> float:
        return min(1.0, self.scale / (k**self.power + self.offset))


class Weighting(ABC):
    """How the law depends on energy besides exp(-U/T)."""

    zeta: Any = 0.0  # power of psi in the law, a number; or AUTO, with which there is no sampler yet
    energy: str = "batch"  # kind of energy that psi reads: "batch", "ema", "full" or "control"
    needs_energy: bool = True  # False where a step needs no energy; only `identity` and `describe` are then called

    def identity(self) -> dict[str, Any]:
        """Plain values that two runs of one law share: bins and rate of the recursion do not matter."""
        return {"type": type_name(type(self)), "zeta": self.zeta}

    @abstractmethod
    def describe(self, zeta: float) -> str:
        """What `Sampler.explain` adds to the target distribution."""


@dataclass(frozen=True)
class Flat(Weighting):
    """No weighting: the law is exp(-U/T), the multiplier 1, the log weight 0."""

    needs_energy = False

    def describe(self, zeta: float) -> str:
        return ""
