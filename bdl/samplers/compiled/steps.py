"""Steps of a chain in C, built once with the system's compiler and called through ctypes: what all of them share."""

from __future__ import annotations

import ctypes
import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from bdl import native
from bdl.errors import ConfigError
from bdl.samplers.chain import Chain
from bdl.samplers.dynamics.base import Scalar
from bdl.samplers.priors.base import Prior

FOLDER = Path(__file__).parents[1] / "c"
MOST = 2**22  # coordinates of all chains; beyond, torch's kernels gain from several threads
NUMBER, ADDRESS, DOUBLE = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double


def fields(kind: Any, *names: str) -> list[tuple[str, Any]]:
    """Fields of one type for a structure of ctypes."""
    return [(name, kind) for name in names]


class ChainFields(ctypes.Structure):
    """CHAIN_FIELDS of common.h, with which every structure there begins."""

    _fields_ = [
        *fields(NUMBER, "chains", "dim"),
        *fields(ADDRESS, "theta", "g", "precision", "centre"),
        *fields(DOUBLE, "one_precision", "one_centre", "items"),
        *fields(ADDRESS, "numbers", "key"),
        ("step", NUMBER),
        ("losses", ADDRESS),
    ]


class CompiledSteps(ABC):
    """Steps of a chain in compiled code, where it knows dynamics, prior and settings: see `takes`."""

    source: ClassVar[Path]
    prefix: ClassVar[str]  # of the names of the functions in `source`
    functions: ClassVar[Sequence[tuple[str, Any, list[Any]]]]  # name after the prefix, result, arguments
    structure: ClassVar[type[ChainFields]]
    width: ClassVar[int]  # how many numbers of a step the code reads: NUMBERS
    vectors: ClassVar[tuple[str, ...]]  # fields of the state, (..., d) in float32
    numbers: ClassVar[tuple[str, ...]]  # fields of the state, (...)
    number_type: ClassVar[torch.dtype]

    def __init__(self, chain: Chain):
        self.chain = chain
        self.fields: Any = self.structure()
        self.address = ctypes.addressof(self.fields)
        names = (*self.vectors, *self.numbers)
        self._names = [name for name in names if isinstance(getattr(chain.state, name, None), Tensor)]
        # The fields point to this prior, and to memory at these addresses
        self._prior: Prior | None = None
        self._places: list[int] = []
        self._usable = False
        self._held: Any = None  # what the fields point to in the steps under way

    @abstractmethod
    def knows_chain(self) -> bool:
        """Whether the code knows the dynamics, and the loop around the sampler lets it make the steps."""

    @abstractmethod
    def describe(self) -> None:
        """Fill the fields that are not those of every structure."""

    def takes(self, prior: Prior, num_data: int, lr: Scalar, temperature: Scalar) -> bool:
        """Whether the next step is made here: a matter of settings and machine, not of the state.

        That is so with one lr and one T, under a prior whose gradient is linear, in float32 on a CPU that has a C
        compiler.
        """
        if isinstance(lr, Tensor) or isinstance(temperature, Tensor) or not self.knows_chain():
            return False
        state = vars(self.chain.state)
        memory = [self.chain.theta, self.chain.g, *[state[name] for name in self._names]]
        places = [t.data_ptr() for t in memory]
        if prior is not self._prior or places != self._places:
            self._prior, self._places = prior, places
            self._usable = self._point(memory, prior, num_data)
        return self._usable

    @property
    def after(self) -> int:
        """The address of the function that follows a gradient in a walk, for `bdl.engine.gradient.Gradient.walk`."""
        return ctypes.cast(getattr(self.library, f"{self.prefix}after"), ctypes.c_void_p).value or 0

    @property
    def library(self) -> Any:
        return library_of(type(self))

    def hold(self, numbers: Any, losses: Tensor | None = None, *others: Any) -> None:
        """Point to the numbers of the next steps, and to their losses; keep these and what else the steps read."""
        self._held = (numbers, losses, *others)
        self.fields.numbers, self.fields.step = ctypes.addressof(numbers), self.chain.steps
        self.fields.losses = None if losses is None else losses.data_ptr()

    def _point(self, memory: Sequence[Tensor], prior: Prior, num_data: int) -> bool:
        """Point to the memory of chain and prior; False where compiled code cannot use it."""
        theta, linear = self.chain.theta, prior.linear()
        if linear is None or theta.numel() > MOST or self.library is None:
            return False
        kinds = dict.fromkeys(self.numbers, (self.number_type, theta.shape[:-1]))
        for name, tensor in zip(("theta", "g", *self._names), memory, strict=True):
            kind, shape = kinds.get(name, (torch.float32, theta.shape))
            if not _is_plain(tensor, kind) or tensor.shape != shape:
                return False
            setattr(self.fields, name, tensor.data_ptr())
        for name, value in zip(("precision", "centre"), linear, strict=True):
            of_each = isinstance(value, Tensor)
            if of_each and not (_is_plain(value, torch.float32) and value.shape == theta.shape[-1:]):
                return False
            setattr(self.fields, name, value.data_ptr() if of_each else None)
            setattr(self.fields, f"one_{name}", 0.0 if of_each else value)
        self.fields.chains, self.fields.dim, self.fields.items = self.chain.chains or 1, theta.shape[-1], num_data
        self.fields.key = self.chain.noise.address
        self.describe()
        return True


def doubles(values: Sequence[float]) -> Any:
    """The numbers as an array of C."""
    return (ctypes.c_double * len(values))(*values)


@functools.cache
def library_of(kind: type[CompiledSteps]) -> Any:
    """The compiled code; None on a machine without a compiler."""
    loaded = native.load(kind.source)
    if loaded is None:
        return None
    library = native.typed(loaded, kind.prefix, [*kind.functions, ("layout", None, [ADDRESS])])
    places = (NUMBER * 3)()
    getattr(library, f"{kind.prefix}layout")(places)
    last: str = kind.structure._fields_[-1][0]
    if tuple(places) != (ctypes.sizeof(kind.structure), getattr(kind.structure, last).offset, kind.width):
        raise ConfigError(f"{kind.source} is of another bdl than {__file__}: install bdl again, or set compile=false")
    return library


def _is_plain(tensor: Tensor, kind: torch.dtype) -> bool:
    return tensor.dtype == kind and tensor.device.type == "cpu" and tensor.is_contiguous()
