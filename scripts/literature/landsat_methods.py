"""The rows of the Landsat table: each method with the settings that are tried for it, the same number for all."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import bdl
from bdl.samplers.dynamics.base import Dynamics
from bdl.samplers.weighting.base import Weighting

FLAT = bdl.Flat()


@dataclass(frozen=True)
class Setting:
    """A point of a tuning grid: lr at the first step, in SGD's units; T; the power of the decrease, 0 = constant lr."""

    lr: float
    temperature: float = 0.0
    gamma: float = 0.0
    weighting: Weighting = FLAT

    def __str__(self) -> str:
        parts = [f"lr {self.lr:g}"]
        parts += [f"T {self.temperature:g}"] * (self.temperature > 0) + [f"γ {self.gamma:g}"] * (self.gamma > 0)
        w = self.weighting
        if isinstance(w, bdl.AdaptiveWeight):
            parts += [f"ζ {w.zeta:g}", f"{w.energy} energies", "author's form" if w.form == "code" else "slides' form"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Method:
    name: str
    dynamics: Dynamics
    grid: tuple[Setting, ...]
    published: tuple[float, float] | None = None  # fit error and prediction error, %


def grid(
    lrs: Sequence[float],
    temperatures: Sequence[float] = (0,),
    gammas: Sequence[float] = (0,),
    weightings: Sequence[Weighting] = (FLAT,),
) -> tuple[Setting, ...]:
    return tuple(Setting(*point) for point in product(lrs, temperatures, gammas, weightings))


def slides(zeta: float, energy: str = "batch") -> Weighting:
    """Bounded rises (eq. 6), θ = 1 at first, and a floor that descends from the pilot's."""
    return bdl.AdaptiveWeight(zeta, energy=energy)


def author(zeta: float) -> Weighting:
    """The form of the author's code: differences of log θ, θ_i = i/m at first, bins of 20 nats from 0 to 2,500."""
    return bdl.AdaptiveWeight(zeta, 0.0, 2500.0, 125, form="code")


WEIGHTINGS = (slides(100.0), slides(300.0), author(100.0), author(300.0))
STRONG = (slides(300.0), author(300.0))
LRS = (0.02, 0.05, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1, 1.2, 1.6, 2.4, 3.2)
COLD = (0.1, 0.2, 0.4, 0.7)  # temperatures
WARM = (0.25, 1, 2)
ADAPTIVE = grid((0.1, 0.2, 0.4), (1,), (0,), WEIGHTINGS)
MOMENTUM = grid((0.02, 0.05, 0.1), (1,), (0,), WEIGHTINGS)


def weak(lrs: Sequence[float], temperature: float) -> tuple[Setting, ...]:
    return grid(lrs, (temperature,), (0,), (slides(1.0), slides(100.0)))


def smooth(lrs: Sequence[float]) -> tuple[Setting, ...]:
    return grid(lrs, (1,), (0,), (slides(30.0, "ema"), slides(100.0, "ema")))


METHODS = (
    Method("SGLD, T = 1", bdl.SGLD(), grid(LRS, (1,)), (4.08, 9.00)),
    Method("AWSGLD, T = 1", bdl.SGLD(), ADAPTIVE + smooth((0.1, 0.2)), (1.87, 7.65)),
    Method("SGHMC, T = 1", bdl.SGHMC(), grid([lr / 4 for lr in LRS], (1,))),
    Method("AWSGHMC, T = 1", bdl.SGHMC(), MOMENTUM + smooth((0.02, 0.05))),
    Method("SGLD, T tuned", bdl.SGLD(), grid((0.2, 0.4, 0.8, 1.6), COLD), (4.08, 9.00)),
    Method(
        "AWSGLD, T tuned",
        bdl.SGLD(),
        grid((0.2, 0.4), WARM, (0,), STRONG) + weak((0.2, 0.8), 0.1),
        (1.87, 7.65),
    ),
    Method("SGHMC, T tuned", bdl.SGHMC(), grid((0.05, 0.1, 0.15, 0.2), COLD)),
    Method(
        "AWSGHMC, T tuned",
        bdl.SGHMC(),
        grid((0.02, 0.05), WARM, (0,), STRONG) + weak((0.05, 0.15), 0.2),
    ),
    Method("dsSGLD", bdl.SGLD(), grid((0.4, 0.8, 1.6, 3.2), COLD, (0.55,)), (9.76, 12.35)),
    Method("csSGD", bdl.SGD(0), grid(LRS), (5.68, 9.90)),
    Method("dsSGD", bdl.SGD(0), grid((0.2, 0.4, 0.8, 1.6), (0,), (0.33, 0.55, 0.75, 1)), (11.79, 14.60)),
    Method("M-SGD", bdl.SGD(0.9), grid([lr / 4 for lr in LRS])),
)  # fmt: skip
