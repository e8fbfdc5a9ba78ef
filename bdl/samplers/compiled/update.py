"""The update of a chain in C, by update_kernel.c.

It makes one pass over the memory where torch makes six, with the numbers of `noise.Noise`, which never leave the cache.
It can make a step without returning to Python. A linear dynamics is described once, by its `step`: the numbers that the
C code multiplies with are what `step` makes of unit vectors. Its sums run in another order than torch's, so the two
equal each other to rounding, not to the bit.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bdl.samplers.chain import Chain
from bdl.samplers.compiled.steps import ADDRESS, FOLDER, NUMBER, ChainFields, CompiledSteps, doubles, fields
from bdl.samplers.dynamics.base import Dynamics, Kinetic, Position, Scalar
from bdl.samplers.dynamics.underdamped import SGNHT
from bdl.samplers.priors.base import Prior

KNOWN = 4096  # steps whose numbers are remembered
LINEAR, THERMOSTAT = 0, 1  # the forms in update_kernel.c
# m, g and z of the coordinates on which `step` is tried: the unit vectors, and two more that a linear step also maps so
_TRIED = ([1.0, 0, 0, 0.75, -3], [0, 1.0, 0, -1.5, 40], [0, 0, 1.0, 0.5, 2])


class _Update(ChainFields):
    """`Update` of update_kernel.c."""

    _fields_ = [("form", NUMBER), *fields(ADDRESS, "m", "xi", "multiplier", "seen")]


class CompiledUpdate(CompiledSteps):
    """Prior and dynamics of a chain in compiled code: for `Dynamics.linear` and for SGNHT."""

    source, prefix, structure, width = FOLDER / "update_kernel.c", "bdl_update_", _Update, 6
    functions = [
        ("step", None, [ADDRESS, NUMBER]),
        ("prior", None, [ADDRESS]),
        ("after", NUMBER, [ADDRESS, NUMBER]),
    ]
    vectors, numbers, number_type = ("m",), ("xi",), torch.float32

    def __init__(self, chain: Chain):
        super().__init__(chain)
        plain = set(vars(chain.state)) == {"theta", *self._names}
        self.form = form_of(chain.dynamics) if plain else None
        self._known: dict[tuple[float, float], tuple[float, ...]] = {}
        self.at_once = False  # whether the step adds the prior, because nobody else reads the gradient of U/N
        self._multiplier: Tensor | None = None  # to which the fields point
        self._last: tuple[float, float] | None = None  # lr and tau of the numbers to which the fields point

    def knows_chain(self) -> bool:
        return self.form is not None and self.chain.lr_factors is None and self.chain.host.compiled

    def describe(self) -> None:
        self.fields.form = self.form

    def takes(self, prior: Prior, num_data: int, lr: Scalar, temperature: Scalar) -> bool:
        return super().takes(prior, num_data, lr, temperature) and self._knows([(lr, temperature / num_data)])  # type: ignore[list-item]

    def add_prior(self, g: Tensor) -> None:
        """Make g, which is chain.g, the gradient of U/N; `at_once` leaves that to the step, and g as it is."""
        self.fields.multiplier = None
        if not self.at_once:
            self.library.bdl_update_prior(self.address)

    def scale(self, g: Tensor, multiplier: Tensor) -> None:
        """Multiply the gradient of U/N by (..., 1), at once or in the step."""
        if self.at_once:
            self._multiplier, self.fields.multiplier = multiplier, multiplier.data_ptr()
        else:
            g.mul_(multiplier)

    def noise(self, temperature: Scalar) -> Tensor:
        """z, without the noise, which the step makes where it uses it."""
        self.chain.injects(temperature)
        return self.chain.z

    def step(self, s: Any, g: Tensor, lr: Any, tau: Any, z: Tensor) -> Any:
        """The state of the chain, s, after one step from g, which is chain.g."""
        if self._last != (lr, tau):
            self._last = (lr, tau)
            self.hold(doubles(self._known[lr, tau]))
        self.fields.step = self.chain.steps
        self.library.bdl_update_step(self.address, self.at_once)
        return s

    def prepare(self, settings: Sequence[tuple[float, float]], losses: Tensor, seen: Any) -> bool:
        """Point to what the steps of a walk need. False where compiled code does not make one of the steps.

        settings: lr and tau of each step. losses: (steps, C). seen: (steps) addresses at which the gradient of the loss
        is left, or 0.
        """
        if not self._knows(settings):
            return False
        self._last = None
        self.hold(doubles([x for each in settings for x in self._known[each]]), losses, seen)
        self.fields.seen, self.fields.multiplier = ctypes.addressof(seen), None
        return True

    def _knows(self, settings: Sequence[tuple[float, float]]) -> bool:
        """Find the numbers of steps with these lr and tau. False where a step is no linear map, now and for good."""
        new = [each for each in dict.fromkeys(settings) if each not in self._known]
        if new:
            if len(self._known) + len(new) > KNOWN:
                self._known.clear()
                new = list(dict.fromkeys(settings))
            dynamics: Any = self.chain.dynamics
            numbers = (thermostat_numbers if self.form == THERMOSTAT else linear_numbers)(dynamics, new)
            if numbers is None:
                self.form = None
                return False
            for each, row in zip(new, numbers, strict=True):
                self._known[each] = row if each[1] > 0 and dynamics.noisy else self._without_noise(row)
        return True

    def _without_noise(self, row: tuple[float, ...]) -> tuple[float, ...]:
        """The numbers of a step whose z is zero."""
        return row if self.form == THERMOSTAT else (*row[:2], 0.0, *row[3:5], 0.0)


def form_of(dynamics: Any) -> int | None:
    """The form of a dynamics in update_kernel.c, or None."""
    if type(dynamics) is SGNHT:
        return THERMOSTAT
    return LINEAR if isinstance(dynamics, Dynamics) and dynamics.linear else None


def linear_numbers(dynamics: Any, settings: Sequence[tuple[float, float]]) -> list[tuple[float, ...]] | None:
    """What steps with these lr and tau make of unit vectors: m' of m, g and z, and θ' - θ of m, g and z.

    None where `step` maps others than the unit vectors as no linear map does, in spite of what `linear` says.
    """
    rows = len(settings)
    m, g, z = (torch.tensor(row, dtype=torch.float64).expand(rows, -1).clone() for row in _TRIED)
    start = torch.tensor([0, 0, 0, 2.5, -7], dtype=torch.float64).expand(rows, -1)
    lr, tau = (torch.tensor(column, dtype=torch.float64).unsqueeze(1) for column in zip(*settings, strict=True))
    s = dynamics.init(start.clone())
    if type(s) not in (Position, Kinetic):
        return None
    m = m if isinstance(s, Kinetic) else torch.zeros_like(m)
    given = torch.stack([m, g, z])  # (3, rows, 5)
    if isinstance(s, Kinetic):
        s.m.copy_(m)
    s = dynamics.step(s, g.clone(), lr, tau, z.clone())
    maps = [s.m if isinstance(s, Kinetic) else torch.zeros_like(m), s.theta - start]  # (rows, 5) each
    for made in maps:
        expected = torch.einsum("rj,jri->ri", made[:, :3], given)
        size = torch.einsum("rj,jri->ri", made[:, :3].abs(), given.abs()) + start.abs()
        if not bool(((made - expected).abs() <= 1e-12 * size).all()):
            return None
    return [tuple(row) for row in torch.cat([made[:, :3] for made in maps], 1).tolist()]


def thermostat_numbers(dynamics: SGNHT, settings: Sequence[tuple[float, float]]) -> list[tuple[float, ...]]:
    """lr, the factor of z, lr tau, and the factor of SGNHT's excess of heat, for each lr and tau."""
    rows = []
    for lr, tau in settings:
        heat = lr * tau
        gain = 0.0 if tau == 0 else 1.0 if dynamics.rate is None else dynamics.rate / heat
        rows.append((lr, math.sqrt(2 * dynamics.friction * heat), heat, gain, 0.0, 0.0))
    return rows
