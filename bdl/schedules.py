"""Schedules: functions of the sampler's step that give lr, temperature and zeta, and rules for the steps to keep.

A schedule is a frozen dataclass. It is called with the number of steps done so far, k >= 0. A cycle exists once, as a
`Cycle`; every schedule that depends on its phase holds that object.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from bdl.errors import ConfigError

Function = Callable[[int], float]  # step -> value


@dataclass(frozen=True)
class Constant:
    """`value` at every step."""

    value: float

    def __call__(self, step: int) -> float:
        return self.value


@dataclass(frozen=True)
class Polynomial:
    """max(a (b + k)^-gamma, floor) (Welling & Teh 2011).

    A gamma in (0.5, 1] satisfies the conditions of Robbins and Monro. Karagiannis 2023, Remark 32, keeps the step
    constant once it has fallen below a critical level: the floor.
    """

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
    """initial factor^(number of milestones passed); a milestone is a step."""

    initial: float
    milestones: Sequence[int]
    factor: float = 0.1

    def __call__(self, step: int) -> float:
        return self.initial * self.factor ** sum(step >= m for m in self.milestones)


@dataclass(frozen=True)
class Exponential:
    """initial rate^((k - start) / every) from step `start` to step `stop`, constant outside, never below `floor`."""

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
            raise ConfigError(f"steps of a cosine must be at least 1, got {self.steps}")

    def __call__(self, step: int) -> float:
        phase = min(step / self.steps, 1.0)
        return self.final + (self.initial - self.final) / 2 * (1 + math.cos(math.pi * phase))


@dataclass(frozen=True)
class Warmup:
    """From `start` to the value of `schedule`, linearly over the first `steps` steps."""

    schedule: Function
    steps: int
    start: float = 0.0

    def __call__(self, step: int) -> float:
        done = min(1.0, (step + 1) / self.steps) if self.steps else 1.0
        return self.start + done * (self.schedule(step) - self.start)


@dataclass(frozen=True)
class Ramp:
    """`start` until step `begin`, then linearly to `end` over `steps` steps, then constant.

    Liang 2024 suggests to increase zeta gradually to a constant.
    """

    end: float
    steps: int
    start: float = 0.0
    begin: int = 0

    def __call__(self, step: int) -> float:
        done = min(max(step - self.begin, 0) / self.steps, 1.0) if self.steps else float(step >= self.begin)
        return self.start + done * (self.end - self.start)


@dataclass(frozen=True)
class Cycle:
    """M = `cycles` equal cycles over K = `steps` steps. The share `explore` of a cycle explores, the rest samples.

        r_k = mod(k, ceil(K/M)) / ceil(K/M)

    is the phase of step k (Zhang et al. 2020, with k counted from 0).

        >>> cycle = Cycle(steps=100, cycles=4, explore=0.8)
        >>> cycle.length, cycle.index(30), cycle.phase(30), [k for k in range(25) if cycle.sampling(k)]
        (25, 1, 0.2, [20, 21, 22, 23, 24])

    Raises ConfigError for more cycles than steps, and for a share outside [0, 1).
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
        """Number of the cycle that the step belongs to, counted from 0."""
        return step // self.length

    def phase(self, step: int) -> float:
        """r_k in [0, 1)."""
        return step % self.length / self.length

    def sampling(self, step: int) -> bool:
        """Whether the step belongs to the sampling part of its cycle."""
        return self.phase(step) >= self.explore

    @property
    def sampling_steps(self) -> int:
        """Number of steps in the sampling part of a cycle."""
        return self.length - self.first_sampling

    @cached_property
    def first_sampling(self) -> int:
        """First step of the sampling part, counted from the beginning of the cycle: phase >= `explore`."""
        return bisect_left(range(self.length), self.explore, key=lambda k: k / self.length)


@dataclass(frozen=True)
class CyclicalCosine:
    """initial/2 (cos(pi r) + 1) for the phase r of the cycle (Zhang et al. 2020, eq. 1), never below `floor`.

    >>> lr = CyclicalCosine(initial=0.5, cycle=Cycle(steps=100, cycles=4))
    >>> [round(lr(k), 3) for k in (0, 12, 24, 25)]
    [0.5, 0.266, 0.002, 0.5]
    """

    initial: float
    cycle: Cycle
    floor: float = 0.0

    def __call__(self, step: int) -> float:
        return max(self.initial / 2 * (math.cos(math.pi * self.cycle.phase(step)) + 1), self.floor)


@dataclass(frozen=True)
class WhileSampling:
    """`value` in the sampling part of each cycle, `otherwise` in the exploring part.

    As a temperature with `otherwise` = 0, it injects noise in the sampling part only.
    """

    value: float
    cycle: Cycle
    otherwise: float = 0.0

    def __call__(self, step: int) -> float:
        return self.value if self.cycle.sampling(step) else self.otherwise


class Keep(ABC):
    """A rule that says which states are samples, given the number of steps done, k >= 1."""

    @abstractmethod
    def __call__(self, step: int) -> bool:
        """Whether the state after `step` steps is a sample."""

    @abstractmethod
    def count(self, steps: int) -> int:
        """Number of samples that a run of `steps` steps keeps."""

    def cycle_of(self, step: int) -> int:
        """Number of the cycle in which that state was made; 0 without cycles."""
        return 0


@dataclass(frozen=True)
class EveryStep(Keep):
    """Keeps every `every`-th state after the first `burn_in` steps.

        >>> keep = EveryStep(burn_in=4, every=3)
        >>> [k for k in range(1, 15) if keep(k)], keep.count(14)
        ([7, 10, 13], 3)

    Raises ConfigError unless burn_in >= 0 and every >= 1.
    """

    burn_in: int
    every: int

    def __post_init__(self) -> None:
        if self.burn_in < 0 or self.every < 1:
            raise ConfigError(f"burn_in must be >= 0 and every >= 1, got {self.burn_in} and {self.every}")

    def __call__(self, step: int) -> bool:
        return step > self.burn_in and (step - self.burn_in) % self.every == 0

    def count(self, steps: int) -> int:
        return max(0, steps - self.burn_in) // self.every


@dataclass(frozen=True)
class PerCycle(Keep):
    """Keeps `samples` states of every cycle, evenly spaced over its sampling part. The last one is at its end.

        >>> keep = PerCycle(Cycle(steps=20, cycles=2, explore=0.5), samples=2)
        >>> [k for k in range(1, 21) if keep(k)]
        [8, 10, 18, 20]

    Raises ConfigError for more samples than the sampling part has steps.
    """

    cycle: Cycle
    samples: int = 3

    def __post_init__(self) -> None:
        if not 1 <= self.samples <= self.cycle.sampling_steps:
            raise ConfigError(
                f"{self.samples} samples do not fit into the {self.cycle.sampling_steps} sampling steps of a cycle"
            )

    def __call__(self, step: int) -> bool:
        # After `step` steps the last one made is step - 1, because steps count from 0
        done = (step - 1) % self.cycle.length + 1 - self.cycle.first_sampling
        spacing = self.cycle.sampling_steps // self.samples
        remaining = self.cycle.sampling_steps - done
        return done > 0 and remaining % spacing == 0 and remaining // spacing < self.samples

    def cycle_of(self, step: int) -> int:
        return self.cycle.index(step - 1)

    def count(self, steps: int) -> int:
        whole, rest = divmod(steps, self.cycle.length)
        return whole * self.samples + sum(self(k) for k in range(1, rest + 1))


def keep_rule(cycle: Cycle | None, burn_in: int, every: int, samples_per_cycle: int) -> Keep:
    """The rule of a configuration: PerCycle if it has a cycle, else EveryStep."""
    return EveryStep(burn_in, every) if cycle is None else PerCycle(cycle, samples_per_cycle)
