"""The numbers of one step: learning rate, temperature and zeta, as the user or a schedule has set them."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.dynamics.base import Scalar


class Defaults(dict[str, Any]):
    """The defaults of the parameter group. Schedulers that cycle a momentum look for it here.

    Raises ConfigError when asked for one, where torch's CyclicLR and OneCycleLR would say less.
    """

    def __contains__(self, name: object) -> bool:
        if name == "momentum" and not super().__contains__(name):
            raise ConfigError(
                "a Sampler has no momentum that a scheduler may cycle, because its dynamics keeps the target "
                "distribution for a fixed friction: pass cycle_momentum=False"
            )
        return super().__contains__(name)


@dataclass(frozen=True)
class StepSettings:
    """lr and temperature are floats or (C,) tensors; under replica exchange the temperature is that of every rung."""

    lr: Scalar
    temperature: Scalar
    zeta: float

    @property
    def pair(self) -> tuple[Scalar, Scalar]:
        """lr and temperature."""
        return self.lr, self.temperature

    @classmethod
    def of(cls, group: Mapping[str, Any], step: int) -> StepSettings:
        """The settings of a parameter group. Raises ConfigError for a float that is negative or NaN."""
        for name in ("lr", "temperature", "zeta"):
            value = group[name]
            if not isinstance(value, Tensor) and not value >= 0:
                raise ConfigError(f"{name} must be >= 0, got {value} at step {step}")
        return cls(group["lr"], group["temperature"], group["zeta"])

    @property
    def samples(self) -> bool:
        """False at T = 0 in every chain, where a step only optimises."""
        return any_positive(self.temperature)

    @property
    def all_sample(self) -> bool:
        """False at T = 0 in any chain."""
        t = self.temperature
        return bool((t > 0).all()) if isinstance(t, Tensor) else t > 0


def any_positive(value: Scalar) -> bool:
    return bool((value > 0).any()) if isinstance(value, Tensor) else value > 0


def checked_numbers(
    num_data: int, chains: int | None, lr: Scalar, temperature: Scalar, **streams: int
) -> tuple[Scalar, Scalar]:
    """lr and temperature, of which numbers of NumPy's are made floats: a schedule would round to float32 in theirs.

    Raises ConfigError for an argument of `Sampler` that is out of range, or neither a number nor one per chain.

    streams: whole numbers that name the random stream.
    """
    for name, value in streams.items():
        if not isinstance(value, numbers.Integral) or isinstance(value, bool):
            raise ConfigError(f"{name} must be a whole number, got {value!r}")
    for name, value, kind in (("num_data", num_data, numbers.Real), ("chains", chains, numbers.Integral | None)):
        whole = (
            value is None or isinstance(value, kind) and not isinstance(value, bool) and value >= 1 and not value % 1
        )
        if not whole:
            raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
    for name, value, strict in (("lr", lr, True), ("temperature", temperature, False)):
        if not isinstance(value, Tensor | numbers.Real):
            raise ConfigError(f"{name} must be a number or a tensor with one per chain, got {value!r}")
        if isinstance(value, Tensor) and value.ndim > 0 and value.shape != (chains,):
            shape = tuple(value.shape)
            raise ConfigError(f"{name} must be a number or have one per chain ({chains}), got shape {shape}")
        ok = (value > 0) & (value < math.inf) if strict else (value >= 0) & (value < math.inf)
        if not (bool(ok.all()) if isinstance(ok, Tensor) else ok):
            raise ConfigError(f"{name} must be {'>' if strict else '>='} 0 and finite, got {value}")
    lr = lr if isinstance(lr, Tensor) else float(lr)
    return lr, temperature if isinstance(temperature, Tensor) else float(temperature)
