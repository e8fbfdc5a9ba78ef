"""The update of a chain in C: update_kernel.c, built once with the system's compiler and called through ctypes.

It makes one pass over the memory where torch makes six, with the numbers of `noise.Noise`, which never leave the cache.
It can make a step without returning to Python. A linear dynamics is described once, by its `step`: the numbers that the
C code multiplies with are what `step` makes of unit vectors. Its sums run in another order than torch's, so the two
equal each other to rounding, not to the bit.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bdl import native
from bdl.errors import ConfigError
from bdl.samplers.chain import Chain
from bdl.samplers.dynamics.base import Dynamics, Kinetic, Position, Scalar
from bdl.samplers.dynamics.underdamped import SGNHT
from bdl.samplers.priors import Prior

SOURCE = Path(__file__).with_name("update_kernel.c")
MOST = 2**22  # coordinates of all chains; beyond, torch's kernels gain from several threads
NUMBERS = 6  # how many numbers of a step update_kernel.c reads
KNOWN = 4096  # steps whose numbers are remembered
LINEAR, THERMOSTAT = 0, 1  # the forms in update_kernel.c
# m, g and z of the coordinates on which `step` is tried: the unit vectors, and two more that a linear step also maps so
_TRIED = ([1.0, 0, 0, 0.75, -3], [0, 1.0, 0, -1.5, 40], [0, 0, 1.0, 0.5, 2])


class _Update(ctypes.Structure):
    """`Update` of update_kernel.c."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("chains", "dim", "form")),
        *((name, ctypes.c_void_p) for name in ("theta", "m", "xi", "g", "precision", "centre")),
        *((name, ctypes.c_double) for name in ("one_precision", "one_centre", "per_item")),
        *((name, ctypes.c_void_p) for name in ("numbers", "multiplier", "draw", "key")),
        ("step", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("losses", "seen")),
    ]


class CompiledUpdate:
    """Prior and dynamics of a chain in compiled code, where these know each other: see `takes`."""

    def __init__(self, chain: Chain):
        self.chain = chain
        self.form = form_of(chain.dynamics)
        self._known: dict[tuple[float, float], tuple[float, ...]] = {}
        self._fields = _Update()
        # The fields point to this prior, and to memory at these addresses
        self._prior: Prior | None = None
        self._places: list[int] = []
        self._usable = False
        # Lr and tau of the last single step, and the numbers that they give
        self._last: tuple[float, float] | None = None
        self._numbers: Any = None
        self.address = ctypes.addressof(self._fields)

    def takes(self, prior: Prior, num_data: int, lr: Scalar, temperature: Scalar) -> bool:
        """Whether the next step is made here: a matter of settings and machine, not of the state.

        That is so for `Dynamics.linear` and for SGNHT with one lr and one T, under a prior whose gradient is linear, in
        float32 on a CPU that has a C compiler.
        """
        if self.form is None or isinstance(lr, Tensor) or isinstance(temperature, Tensor):
            return False
        chain = self.chain
        if chain.lr_factors is not None or not chain.host.compiled:
            return False
        memory = vars(chain.state).values()
        places = [chain.g.data_ptr(), *[t.data_ptr() for t in memory if isinstance(t, Tensor)]]
        if prior is not self._prior or places != self._places:
            self._prior, self._places = prior, places
            self._usable = self._point(prior, num_data)
        return self._usable and self._knows([(lr, temperature / num_data)])

    def add_prior(self) -> None:
        """Make chain.g, the gradient of the mean loss, that of U/N."""
        _library().bdl_update_prior(self.address)

    def step(self, lr: float, tau: float, adds_prior: bool, multiplier: Tensor | None = None) -> None:
        """One step from chain.g, with its noise.

        adds_prior: whether chain.g is the gradient of the mean loss, and stays it. multiplier: (C,) float32, of the
        gradient of U/N, if the prior is added here.
        """
        if self._last != (lr, tau):
            self._last, self._numbers = (lr, tau), self._numbers_of([(lr, tau)])
        fields = self._fields
        fields.numbers, fields.step = ctypes.addressof(self._numbers), self.chain.steps
        fields.multiplier = None if multiplier is None else multiplier.data_ptr()
        _library().bdl_update(self.address, adds_prior)

    def prepare(self, settings: Sequence[tuple[float, float]], losses: Tensor, seen: Any) -> Any:
        """Point to what the steps of a walk need. The caller keeps all of it, and the result, until the walk ends.

        settings: lr and tau of each step. losses: (steps, C). seen: (steps) addresses at which the gradient of the loss
        is left, or 0. Returns None where compiled code does not make one of the steps.
        """
        if not self._knows(settings):
            return None
        numbers, fields = self._numbers_of(settings), self._fields
        fields.numbers, fields.step, fields.multiplier = ctypes.addressof(numbers), self.chain.steps, None
        fields.losses, fields.seen = losses.data_ptr(), ctypes.addressof(seen)
        return numbers

    @property
    def after(self) -> int:
        """The address of the function that makes a step of a walk, for `bdl.engine.gradient.Gradient.walk`."""
        return _address_after()

    def _point(self, prior: Prior, num_data: int) -> bool:
        """Point to the memory of chain and prior; False where compiled code cannot use it."""
        chain, linear = self.chain, prior.linear()
        theta, state = chain.theta, {name: value for name, value in vars(chain.state).items() if name != "theta"}
        shapes = {"m": theta.shape, "xi": theta.shape[:-1]}
        each = [] if linear is None else [value for value in linear if isinstance(value, Tensor)]
        tensors = [theta, chain.g, *state.values(), *each]
        if (
            linear is None
            or set(state) - set(shapes)
            or not all(isinstance(t, Tensor) and t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
            or not all(t.is_contiguous() for t in tensors)
            or any(value.shape != shapes[name] for name, value in state.items())
            or any(value.shape != theta.shape[-1:] for value in each)
            or theta.numel() > MOST
            or _library() is None
            or not chain.noise.function
        ):
            return False
        fields = self._fields
        fields.chains, fields.dim, fields.form = chain.chains or 1, theta.shape[-1], self.form
        fields.theta, fields.g = theta.data_ptr(), chain.g.data_ptr()
        for name in shapes:
            setattr(fields, name, state[name].data_ptr() if name in state else None)
        point_to_prior(fields, linear)
        fields.per_item, fields.draw, fields.key = 1 / num_data, chain.noise.function, chain.noise.address
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

    def _numbers_of(self, settings: Sequence[tuple[float, float]]) -> Any:
        """(steps, NUMBERS) numbers of steps that are known, as a C array."""
        flat = [x for each in settings for x in self._known[each]]
        return (ctypes.c_double * len(flat))(*flat)


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


def point_to_prior(fields: Any, linear: tuple[float | Tensor, float | Tensor]) -> None:
    """Write where precision and centre of `Prior.linear` lie, or each as one number, into a structure of C."""
    for name, value in zip(("precision", "centre"), linear, strict=True):
        whole = isinstance(value, Tensor)
        setattr(fields, name, value.data_ptr() if whole else None)
        setattr(fields, f"one_{name}", 0.0 if whole else value)


def thermostat_numbers(dynamics: SGNHT, settings: Sequence[tuple[float, float]]) -> list[tuple[float, ...]]:
    """lr, the factor of z, lr tau, and the factor of SGNHT's excess of heat, for each lr and tau."""
    rows = []
    for lr, tau in settings:
        heat = lr * tau
        gain = 0.0 if tau == 0 else 1.0 if dynamics.rate is None else dynamics.rate / heat
        rows.append((lr, math.sqrt(2 * dynamics.friction * heat), heat, gain, 0.0, 0.0))
    return rows


@functools.cache
def _library() -> Any:
    """The compiled code; None on a machine without a compiler."""
    loaded = native.load(SOURCE)
    if loaded is None:
        return None
    address, number = ctypes.c_void_p, ctypes.c_int64
    functions = [
        ("", None, [address, number]),
        ("_prior", None, [address]),
        ("_after", number, [address, number]),
        ("_layout", None, [address]),
    ]
    library = native.typed(loaded, "bdl_update", functions)
    places = (number * 3)()
    library.bdl_update_layout(places)
    if tuple(places) != (ctypes.sizeof(_Update), _Update.seen.offset, NUMBERS):
        raise ConfigError(f"{SOURCE} is of another bdl than {__file__}: install bdl again, or set compile=false")
    return library


@functools.cache
def _address_after() -> int:
    return ctypes.cast(_library().bdl_update_after, ctypes.c_void_p).value or 0
