"""Schedules: functions of the sampler's step for lr, temperature, zeta, and which steps are kept.

A cycle exists once, as a `Cycle`; what depends on its phase holds that one object. Every schedule is a frozen dataclass
called with the number of steps done so far, k >= 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bdl.errors import ConfigError

Function = Callable[[int], float]  # of the step


@dataclass(frozen=True)
class Constant:
    value: float

    def __call__(self, step: int) -> float:
        return self.value


@dataclass(frozen=True)
class Polynomial:
    """max(a (b + k)^-gamma, floor): Welling & Teh 2011. gamma in (.5, 1] satisfies Robbins and Monro; 000, Remark 32
    allows a floor once the step is small."""

    a: float
    b: float = 1.0
    gamma: float = 0.55
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.b <= 0:
            raise ConfigError(f"b must be > 0, got {self.b}")

    def __call__(self, step: int) -> float:
        return max(self.a * (self.b + step) ** -self.gamma, self.floor)


@dataclass(frozen=True)
class StepDecay:
    """initial factor^(number of milestones passed); milestones are steps."""

    initial: float
    milestones: Sequence[int]
    factor: float = 0.1

    def __call__(self, step: int) -> float:
        return self.initial * self.factor ** sum(step >= m for m in self.milestones)


@dataclass(frozen=True)
class Exponential:
    """initial rate^((k - start) / every) from step `start` to step `stop`, not below `floor`."""

    initial: float
    rate: float
    every: float = 1.0
    start: int = 0
    stop: int | None = None
    floor: float = 0.0

    def __post_init__(self) -> None:
        if not self.every > 0:
            raise ConfigError(f"every must be > 0 steps, got {self.every}")

    def __call__(self, step: int) -> float:
        last = step if self.stop is None else min(step, self.stop)
        return max(self.initial * self.rate ** (max(0, last - self.start) / self.every), self.floor)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from `initial` at step 0 to `final` at step `steps`, constant after."""

    initial: float
    steps: int
    final: float = 0.0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"a cosine needs at least 1 step, got {self.steps}")

    def __call__(self, step: int) -> float:
        phase = min(step / self.steps, 1.0)
        return self.final + (self.initial - self.final) / 2 * (1 + math.cos(math.pi * phase))


@dataclass(frozen=True)
class Warmup:
    """`start` to the schedule's own value, linearly over the first `steps` steps."""

    schedule: Function
    steps: int
    start: float = 0.0

    def __call__(self, step: int) -> float:
        done = min(1.0, (step + 1) / self.steps) if self.steps else 1.0
        return self.start + done * (self.schedule(step) - self.start)


@dataclass(frozen=True)
class Ramp:
    """`start` until step `begin`, linearly to `end` over `steps` steps, constant after: "gradually increased", 002."""

    end: float
    steps: int
    start: float = 0.0
    begin: int = 0

    def __call__(self, step: int) -> float:
        done = min(max(step - self.begin, 0) / self.steps, 1.0) if self.steps else float(step >= self.begin)
        return self.start + done * (self.end - self.start)


@dataclass(frozen=True)
class Cycle:
    """`cycles` equal cycles over `steps` steps; the first part `explore` of each explores, the rest samples.

    r_k = mod(k, ceil(K/M)) / ceil(K/M) as in Zhang et al. 2020, with k counted from 0.
    """

    steps: int
    cycles: int = 4
    explore: float = 0.8

    def __post_init__(self) -> None:
        if self.cycles < 1 or self.steps < self.cycles:
            raise ConfigError(f"{self.cycles} cycles do not fit into {self.steps} steps")
        if not 0 <= self.explore < 1:
            raise ConfigError(f"explore must be in [0, 1), the part of a cycle without sampling, got {self.explore}")

    @property
    def length(self) -> int:
        """Steps per cycle, ceil(K/M)."""
        return -(-self.steps // self.cycles)

    def index(self, step: int) -> int:
        return step // self.length

    def phase(self, step: int) -> float:
        """r in [0, 1)."""
        return step % self.length / self.length

    def sampling(self, step: int) -> bool:
        return self.phase(step) >= self.explore

    @property
    def sampling_steps(self) -> int:
        """Steps of a cycle that sample: the r from `explore` on."""
        return self.length - self.first_sampling

    @property
    def first_sampling(self) -> int:
        """The first step of a cycle, counted from its beginning, that samples."""
        k = math.ceil(self.explore * self.length)  # the product may be off by a rounding either way
        while k > 0 and (k - 1) / self.length >= self.explore:
            k -= 1
        while k < self.length and k / self.length < self.explore:
            k += 1
        return k


@dataclass(frozen=True)
class CyclicalCosine:
    """initial/2 (cos(pi r) + 1) for the phase r of the cycle (Zhang et al. 2020, eq. 1), not below `floor`."""

    initial: float
    cycle: Cycle
    floor: float = 0.0

    def __call__(self, step: int) -> float:
        return max(self.initial / 2 * (math.cos(math.pi * self.cycle.phase(step)) + 1), self.floor)


@dataclass(frozen=True)
class WhileSampling:
    """`value` in the sampling part of each cycle, `otherwise` in the exploring part (temperature: no noise there)."""

    value: float
    cycle: Cycle
    otherwise: float = 0.0

    def __call__(self, step: int) -> float:
        return self.value if self.cycle.sampling(step) else self.otherwise


class Keep(Protocol):
    """Which states are samples: called with the number of steps done, k >= 1."""

    def __call__(self, step: int) -> bool: ...

    def cycle_of(self, step: int) -> int: ...

    def count(self, steps: int) -> int: ...


@dataclass(frozen=True)
class EveryStep:
    """Keep the state after every `every` steps once `burn_in` steps are done."""

    burn_in: int
    every: int

    def __post_init__(self) -> None:
        if self.burn_in < 0 or self.every < 1:
            raise ConfigError(f"burn_in must be >= 0 and every >= 1, got {self.burn_in} and {self.every}")

    def __call__(self, step: int) -> bool:
        return step > self.burn_in and (step - self.burn_in) % self.every == 0

    def cycle_of(self, step: int) -> int:
        return 0

    def count(self, steps: int) -> int:
        """Samples that a run of this many steps keeps."""
        return max(0, steps - self.burn_in) // self.every


@dataclass(frozen=True)
class PerCycle:
    """Keep `samples` states of every cycle, evenly spaced over its sampling part, the last at its end."""

    cycle: Cycle
    samples: int = 3

    def __post_init__(self) -> None:
        if not 1 <= self.samples <= self.cycle.sampling_steps:
            raise ConfigError(
                f"{self.samples} samples do not fit into the {self.cycle.sampling_steps} sampling steps of a cycle"
            )

    def __call__(self, step: int) -> bool:
        # `step` steps are done, so the last of them was number step - 1 of the run
        done = (step - 1) % self.cycle.length + 1 - self.cycle.first_sampling
        spacing = self.cycle.sampling_steps // self.samples
        left = self.cycle.sampling_steps - done
        return done > 0 and left % spacing == 0 and left // spacing < self.samples

    def cycle_of(self, step: int) -> int:
        return self.cycle.index(step - 1)

    def count(self, steps: int) -> int:
        whole, rest = divmod(steps, self.cycle.length)
        return whole * self.samples + sum(self(k) for k in range(1, rest + 1))


def keep_rule(cycle: Cycle | None, burn_in: int, every: int, samples_per_cycle: int) -> Keep:
    """PerCycle where there is a cycle, EveryStep otherwise: the rule a configuration means."""
    return EveryStep(burn_in, every) if cycle is None else PerCycle(cycle, samples_per_cycle)
