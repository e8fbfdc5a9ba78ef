"""The weighting's part of a chain: the energy it reads, psi, and the multiplier and log weight that they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bdl.samplers.dynamics.base import Scalar
from bdl.samplers.weighting.weightings import SETTLED, Histogram, Weighting


class Reweighting:
    """Runs a weighting along one stack of chains. Shapes (C,), C = 1 without chains; energies in nats."""

    def __init__(self, weighting: Weighting, chains: int, device: torch.device):
        self.weighting: Any = weighting
        self.multiplier = torch.ones(chains, dtype=torch.float64, device=device)
        self.log_weight = torch.zeros_like(self.multiplier)
        self.histogram: Histogram | None = None
        self.energy: Tensor | None = None  # the last one of the weighting's kind: batch, smoothed or full
        self._target: tuple[Any, float] | None = None  # (T, zeta) of the last step that sampled

    def step(
        self, batch_energy: Tensor, full_energy: Callable[[], Tensor], step: int, t: Scalar, zeta: float
    ) -> Tensor:
        """The multiplier of this step's gradient; psi learns from its energy."""
        u = self.energy = self._of_kind(batch_energy, full_energy, step)
        h = self.histogram = self.histogram or self.weighting.init(u)
        log_psi, slope = self.weighting.evaluate(h, u)
        at = t.to(u.device, non_blocking=True) if isinstance(t, Tensor) else t
        self.multiplier, self.log_weight = 1 + zeta * at * slope, zeta * log_psi
        if any_positive(t):  # at T = 0 nothing is sampled: psi has nothing to learn
            self._learn(h, u, t, zeta)
        return self.multiplier

    def log_weight_at(self, u: Tensor, zeta: float) -> Tensor:
        """(C,) zeta log psi(u) with psi as it stands; 0 without bins."""
        return torch.zeros_like(u) if self.histogram is None else zeta * self.weighting.log_psi(self.histogram, u)

    def freeze(self) -> bool:
        """Stop psi from learning if it has settled at the present T and zeta; returns whether it is frozen."""
        h = self.histogram
        if h is not None and h.low is not None and h.clock >= SETTLED:
            h.frozen = True
        return h is not None and h.frozen

    def state_dict(self) -> dict[str, Any]:
        target = self._target
        return {
            "multiplier": self.multiplier,
            "log_weight": self.log_weight,
            "energy": self.energy,
            "histogram": None if self.histogram is None else self.histogram.as_dict(),
            "target": None if target is None else {"temperature": target[0], "zeta": target[1]},
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self.multiplier, self.log_weight, self.energy = (
            to(state[k], device) for k in ("multiplier", "log_weight", "energy")
        )
        h, target = state["histogram"], state["target"]
        self.histogram = None if h is None else Histogram(**{k: to(v, device) for k, v in h.items()})
        self._target = None if target is None else (target["temperature"], target["zeta"])

    def _of_kind(self, batch_energy: Tensor, full_energy: Callable[[], Tensor], step: int) -> Tensor:
        kind, last = self.weighting.energy, self.energy
        if kind == "ema":
            return (
                batch_energy.clone() if last is None else torch.lerp(last, batch_energy, 1 - self.weighting.smoothing)
            )
        if kind == "full":
            return full_energy() if last is None or step % self.weighting.refresh == 0 else last
        return batch_energy

    def _learn(self, h: Histogram, u: Tensor, t: Scalar, zeta: float) -> None:
        target = (
            t.clone() if isinstance(t, Tensor) else t,
            zeta if h.low is not None else 0.0,
        )  # pilots are unweighted
        if self._target is not None and not _same(self._target, target):
            self.weighting.forget(h)
        self._target = target
        if h.low is not None:
            self.weighting.update(h, u, zeta)
        self.weighting.observe(h, u, pooled=not isinstance(t, Tensor))


def any_positive(value: Scalar) -> bool:
    return bool((value > 0).any()) if isinstance(value, Tensor) else value > 0


def to(value: Any, device: torch.device) -> Any:
    return value.to(device).clone() if isinstance(value, Tensor) else value


def _same(a: tuple[Any, float], b: tuple[Any, float]) -> bool:
    if isinstance(a[0], Tensor) or isinstance(b[0], Tensor):
        one, other = (torch.as_tensor(t).cpu() for t, _ in (a, b))
        return a[1] == b[1] and bool((one == other).all())
    return a == b
