"""A target T0 other than the temperature T at which weighted chains move: the way of the weights from T to T0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from bdl.devices import moved
from bdl.errors import ConfigError
from bdl.psi import Array, lean
from bdl.samplers.dynamics.base import Scalar
from bdl.samplers.weighting.histogram import Histogram

REACHED = 0.02  # effective share of the recent energies from which weights to a target mean something


def check_target(target: float | None, units: str) -> None:
    """Raise ConfigError for a target that is no temperature, and beside energies that are not in nats."""
    if target is None:
        return
    if isinstance(target, bool) or not isinstance(target, Real) or not 0 < target < math.inf:
        raise ConfigError(f"target must be a temperature above 0, or null for that of the sampler; got {target!r}")
    if units != "nats":
        raise ConfigError(f'target = {target} takes energies in nats, got units = "{units}": set units="nats"')


@dataclass(frozen=True)
class Toward:
    """The way from the temperature T of one number, or of (C,) chains, to the target T0, for energies in nats.

    The log weight to exp(-U/T0) is that to exp(-U/T) less U (1/T0 - 1/T). Where T is 0 nothing leads back, and it is
    that to exp(-U/T).
    """

    target: float
    temperature: Scalar

    @property
    def tilt(self) -> Scalar:
        """1/T0 - 1/T."""
        t = self.temperature
        if isinstance(t, Tensor):
            return torch.where(t > 0, 1 / self.target - 1 / t, 0.0)
        return 1 / self.target - 1 / t if t > 0 else 0.0

    def log_weight(self, log_weight: Array, u: Array) -> Array:
        """(C,) to exp(-U/T0), from the one to exp(-U/T), at the energies u (C,)."""
        tilt = self.tilt
        if not isinstance(tilt, Tensor):
            return log_weight - u * tilt
        return log_weight - u * (moved(tilt, u.device) if isinstance(u, Tensor) else lean(tilt))

    def weights(self, energies: Tensor, h: Histogram, zeta: float) -> Tensor:
        """(n, C) the weights, up to a factor, at energies (n, C) of the weighted distribution."""
        logs = self.log_weight(zeta * h.log_psi_of(energies), energies)
        return (logs - logs.max()).exp()

    def share_below(self, h: Histogram, zeta: float) -> float:
        """The share of the target distribution in the lowest bin and below it, by the recent energies.

        A floor above the target's energies would leave them to few samples of large weights.
        """
        assert h.edges is not None
        recent = h.recent(min(h.seen, h.pilot))
        weights = self.weights(recent, h, zeta)
        return float(weights[recent < h.edges[:, 1]].sum() / weights.sum())

    def is_reached(self, h: Histogram, zeta: float) -> bool:
        """Whether the recent energies overlap those of the target, so that weights mean something."""
        if not h.seen:
            return False
        weights = self.weights(h.recent(min(h.seen, h.pilot)), h, zeta)
        return float(weights.sum()) ** 2 > REACHED * weights.numel() * float(weights.square().sum())
