"""Prior: what every prior over flat parameters knows; and Centred, for those of θ minus a mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bdl.identity import identity
from bdl.samplers.priors.centres import START, centre_of, fingerprint, offset
from bdl.samplers.priors.scales import Shapes, runs_of

Scalar = float | Tensor


def centre() -> Any:
    """The field of a mean: 0 by default, and then no part of the identity, as in runs from before there were means."""
    return field(default=0.0, metadata={"in identity": "unless default"})


class Prior(ABC):
    """A density over θ (..., d), whose leading axes are chains."""

    def bind(self, shapes: Shapes, like: Tensor) -> Prior:
        """The same prior with the scale of each tensor repeated for its coordinates; shapes of one chain's tensors."""
        return self

    @property
    def needs_start(self) -> bool:
        """Whether it is centred where the chains begin."""
        return False

    def centred(self, names: Sequence[str], shapes: Shapes, start: Tensor) -> Prior:
        """The same prior with its mean as a number or per coordinate (d,); `bind` may follow.

        names, shapes: one chain's parameter tensors. start: (d,) or (C, d) weights where the chains begin.

        Raises ConfigError for a mean that does not fit the parameters, and for "start" where chains begin apart.
        """
        return self

    def offset(self, theta: Tensor) -> Tensor:
        """θ minus the mean, (..., d); θ itself where the mean is 0."""
        return theta

    def to(self, like: Tensor) -> Prior:
        """The same bound prior with its tensors in the type and on the device of `like`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)} if is_dataclass(self) else {}
        tensors = {name: value.to(like) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **tensors) if tensors else self  # type: ignore[type-var]

    @property
    def learns(self) -> bool:
        """Whether a part of it is drawn inside the run, see `bdl.samplers.priors.learned`."""
        return False

    def learned(self) -> list[Tensor]:
        """What is drawn, for the bound prior: tensors (..., G) whose leading axes are chains."""
        return []

    def learn(self, values: Sequence[Tensor]) -> None:
        """Give it such values."""
        return

    def renew(self, theta: Tensor, temperature: Scalar, step: int, random: torch.Generator) -> None:
        """Draw them given θ (..., d) from their conditional law at T, if it is time after this step."""
        return

    @abstractmethod
    def energy(self, theta: Tensor) -> Tensor | float:
        """(...,) -log p(θ), nats, constants dropped."""

    @abstractmethod
    def add_grad_(self, g: Tensor, theta: Tensor, num_data: int) -> None:
        """g += ∇(-log p(θ)) / num_data, in place."""

    def linear(self) -> tuple[Any, Any] | None:
        """p and c, a number or (d,) each, of a bound prior with ∇(-log p(θ)) = p (θ - c); None for all others."""
        return None

    @abstractmethod
    def constant(self, d: int) -> float:
        """The constant that `energy` drops, for d coordinates: -log p(θ) = energy(θ) + constant. NaN if improper."""

    def identity(self) -> Any:
        """Plain values that are equal for bound priors with the same scale at every coordinate, however it was given.

        Scales per coordinate become the values and lengths of their runs of equal numbers.
        """
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        plain = identity(replace(self, **dict.fromkeys(tensors, 1.0)))  # type: ignore[type-var]
        return plain | {name: runs_of(value) for name, value in tensors.items()}


class Centred(Prior):
    """A prior of θ - mean; `mean` is a number or per coordinate (d,) once `centred`."""

    mean: Any

    @property
    def needs_start(self) -> bool:
        return isinstance(self.mean, str) and self.mean == START

    def centred(self, names: Sequence[str], shapes: Shapes, start: Tensor) -> Prior:
        return replace(self, mean=centre_of(self.mean, names, shapes, start))  # type: ignore[type-var]

    def offset(self, theta: Tensor) -> Tensor:
        return theta if self.at_zero else offset(theta, self.mean)

    @cached_property
    def at_zero(self) -> bool:
        """Whether the mean is 0, so that a step need not ask again."""
        return isinstance(self.mean, int | float) and self.mean == 0

    def identity(self) -> Any:
        if isinstance(self.mean, int | float):
            return super().identity()
        around_zero: Prior = replace(self, mean=0.0)  # type: ignore[type-var]
        return around_zero.identity() | {"mean": fingerprint(self.mean)}
