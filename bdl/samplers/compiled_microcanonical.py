"""Steps of MCLMC in C: microcanonical_kernel.c, built once with the system's compiler and called through ctypes.

What a step does between its gradients is some ninety of torch's kernels on few numbers, which take longer than the
gradients of the networks that tables get. The two forms equal each other to rounding, not to the bit.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bdl import native
from bdl.errors import ConfigError
from bdl.samplers.chain import Chain
from bdl.samplers.compiled import point_to_prior
from bdl.samplers.dynamics.base import Scalar
from bdl.samplers.dynamics.microcanonical import MCLMC, MEMORY, SPREAD, STAGES, WIDTH
from bdl.samplers.priors import Prior

SOURCE = Path(__file__).with_name("microcanonical_kernel.c")
MOST = 2**22  # coordinates of all chains; beyond, torch's kernels gain from several threads
_VECTORS = ("gradient", "direction", "mean", "square")  # float32 fields of the state, (..., d)
_NUMBERS = ("potential", "length", "log_factor", "errors", "weights", "error", "undone")  # double fields, (...)
_SCRATCH = ("start", "before", "u")

Evaluate = Callable[[], Tensor]  # leaves the gradient of the mean loss at θ in `chain.g`; returns the () or (C,) losses


class _Walk(ctypes.Structure):
    """`Walk` of microcanonical_kernel.c."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("chains", "dim", "stages", "steps")),
        *((name, ctypes.c_void_p) for name in ("theta", "g", *_VECTORS, *_NUMBERS, "precision", "centre")),
        *((name, ctypes.c_double) for name in ("one_precision", "one_centre", "items")),
        ("numbers", ctypes.c_void_p),
        ("kicks", ctypes.c_double * 3),
        ("drifts", ctypes.c_double * 2),
        *((name, ctypes.c_double) for name in ("energy_var", "energy_var_start", "width", "memory")),
        *((name, ctypes.c_int64) for name in ("adapt_steps", "first", "last", "finds_length")),
        *((name, ctypes.c_void_p) for name in ("draw", "key")),
        *((name, ctypes.c_int64) for name in ("step", "made")),
        *((name, ctypes.c_void_p) for name in ("losses", *_SCRATCH, "kinetic", "size")),
    ]


class CompiledMCLMC:
    """The steps of a chain under `MCLMC` in compiled code, where it knows prior and settings: see `takes`."""

    def __init__(self, chain: Chain):
        self.chain, self.dynamics = chain, chain.dynamics
        self._fields = _Walk()
        # The fields point to this prior, and to memory at these addresses
        self._prior: Prior | None = None
        self._places: list[int] = []
        self._usable = False
        self._scratch: list[Tensor] = []
        self.address = ctypes.addressof(self._fields)

    @property
    def stages(self) -> int:
        """Gradients of a step."""
        return len(STAGES[self.dynamics.integrator][1])  # type: ignore[attr-defined]

    @property
    def after(self) -> int:
        """The address of the function that follows a gradient, for `bdl.engine.gradient.Gradient.walk`."""
        return _address_after()

    def takes(self, prior: Prior, num_data: int, lr: Scalar, temperature: Scalar) -> bool:
        """Whether the next step is made here: a matter of settings and machine, not of the state.

        That is so for MCLMC with one lr and one T, under a prior whose gradient is linear, in float32 on a CPU that has
        a C compiler, where no other process shares the chain.
        """
        chain, host = self.chain, self.chain.host
        plain = host.compiled and host.group is None and host.loss_is_whole
        if type(self.dynamics) is not MCLMC or not plain or isinstance(lr, Tensor) or isinstance(temperature, Tensor):
            return False
        state = chain.state
        memory = [chain.theta, chain.g, *(getattr(state, name) for name in (*_VECTORS, *_NUMBERS))]
        places = [t.data_ptr() for t in memory]
        if prior is not self._prior or places != self._places:
            self._prior, self._places = prior, places
            self._usable = self._point(memory, prior, num_data)
        return self._usable

    def step(self, evaluate: Evaluate, lr: float, tau: float) -> Tensor:
        """One step from θ; returns the () or (C,) losses at which it ends."""
        losses = self.chain.theta.new_empty(self.stages, self.chain.chains or 1)
        held = self.prepare([(lr, tau)], losses)
        loss = losses[0]
        for number in range(self.stages):
            loss = evaluate()
            losses[number] = loss
            _library().bdl_microcanonical_after(self.address, number)
        del held
        self.chain.state.steps += 1
        return loss

    def prepare(self, settings: Sequence[tuple[float, float]], losses: Tensor) -> Any:
        """Begin the first of some steps: θ moves to where the first gradient is taken.

        The caller keeps `losses` and what this returns until the last step has ended. settings: lr and tau of each
        step. losses: (steps * stages, C), is read.
        """
        numbers = (ctypes.c_double * (2 * len(settings)))(*[x for each in settings for x in each])
        fields = self._fields
        fields.steps, fields.numbers, fields.losses = len(settings), ctypes.addressof(numbers), losses.data_ptr()
        fields.step, fields.made = self.chain.steps, self.chain.state.steps
        _library().bdl_microcanonical_begin(self.address)
        return numbers

    def put_back(self) -> None:
        """Return to where the step that is being made has begun."""
        self.chain.theta.copy_(self._scratch[0])

    def _point(self, memory: Sequence[Tensor], prior: Prior, num_data: int) -> bool:
        """Point to the memory of chain and prior; False where compiled code cannot use it."""
        chain, linear, theta = self.chain, prior.linear(), self.chain.theta
        each = [] if linear is None else [value for value in linear if isinstance(value, Tensor)]
        vectors, numbers = memory[: 2 + len(_VECTORS)], memory[2 + len(_VECTORS) :]
        if (
            linear is None
            or not all(t.dtype == torch.float32 for t in (*vectors, *each))
            or not all(t.dtype == torch.float64 for t in numbers)
            or not all(t.device.type == "cpu" and t.is_contiguous() for t in (*memory, *each))
            or any(value.shape != theta.shape[-1:] for value in each)
            or theta.numel() > MOST
            or _library() is None
            or not chain.noise.function
        ):
            return False
        fields, kernel = self._fields, self.dynamics
        fields.chains, fields.dim, fields.stages = chain.chains or 1, theta.shape[-1], self.stages
        for name, tensor in zip(("theta", "g", *_VECTORS, *_NUMBERS), memory, strict=True):
            setattr(fields, name, tensor.data_ptr())
        point_to_prior(fields, linear)
        fields.items, fields.draw, fields.key = num_data, chain.noise.function, chain.noise.address
        self._describe(kernel)
        self._scratch = [torch.empty_like(theta) for _ in _SCRATCH]
        self._scratch += [theta.new_empty(chain.chains or 1, dtype=torch.float64) for _ in range(2)]
        for name, tensor in zip((*_SCRATCH, "kinetic", "size"), self._scratch, strict=True):
            setattr(fields, name, tensor.data_ptr())
        return True

    def _describe(self, kernel: Any) -> None:
        """What the dynamics says of a step and of its tuning."""
        fields, (kicks, drifts) = self._fields, STAGES[kernel.integrator]
        fields.kicks[: len(kicks)], fields.drifts[: len(drifts)] = kicks, drifts
        fields.energy_var, fields.energy_var_start = kernel.energy_var, kernel.energy_var_start or kernel.energy_var
        fields.width, fields.memory, fields.adapt_steps = WIDTH, MEMORY, kernel.adapt_steps
        fields.first, fields.last = (int(share * kernel.adapt_steps) for share in SPREAD)
        fields.finds_length = kernel.length is None


@functools.cache
def _library() -> Any:
    """The compiled code; None on a machine without a compiler."""
    loaded = native.load(SOURCE)
    if loaded is None:
        return None
    address, number = ctypes.c_void_p, ctypes.c_int64
    functions = [("begin", None, [address]), ("after", number, [address, number]), ("layout", None, [address])]
    library = native.typed(loaded, "bdl_microcanonical_", functions)
    places = (number * 2)()
    library.bdl_microcanonical_layout(places)
    if tuple(places) != (ctypes.sizeof(_Walk), _Walk.size.offset):
        raise ConfigError(f"{SOURCE} is of another bdl than {__file__}: install bdl again, or set compile=false")
    return library


@functools.cache
def _address_after() -> int:
    return ctypes.cast(_library().bdl_microcanonical_after, ctypes.c_void_p).value or 0
