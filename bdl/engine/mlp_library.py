"""The library that mlp_kernel.c makes: how it reads the layers of MLPs, and the outputs of networks by it.

`mlp_kernel.py` takes gradients from it, and `forward.py` outputs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from bdl import native
from bdl.errors import ConfigError

MLP_SOURCE = Path(__file__).with_name("mlp_kernel.c")
# Numbers in a weight matrix; beyond, torch's products gain from threads and from packed operands
LARGEST_MATRIX = 2**16
LINE = 64  # bytes; the scratch starts at a line of the cache
_ACTIVATIONS = {nn.Tanh: 1, nn.ReLU: 2, nn.Sigmoid: 3, nn.SiLU: 4}  # the enum in mlp_kernel.c
_HEAD, _FIELDS = 2, 11  # numbers in a Plan before its layers, and in a Layer
_PLACES = (3, 5, 7, 9)  # a Layer's weight, bias and their gradients, each with its stride behind it
_evaluates = [True]  # of this process, as torch's number of threads is
Places = Sequence[tuple[int, int]]  # the addresses of tensors, with their strides between networks in numbers


def mlp_library(required: bool = False) -> ctypes.CDLL | None:
    """The library, built at the first call; None where that is not possible.

    Raises ConfigError where it is required and cannot be built, or is of another bdl than this file.
    """
    library = native.load(MLP_SOURCE, required)
    if library is None or library.bdl_mlp_outputs.argtypes is not None:  # none, or looked at before
        return library
    if layout_of(_typed(library)) != (_HEAD, _FIELDS, *_PLACES):
        raise ConfigError(f"{MLP_SOURCE} is of another bdl than {__file__}: install bdl again, or set compile=false")
    return library


def for_evaluation() -> ctypes.CDLL | None:
    """The library; None where `let_evaluate(False)` has forbidden it or it cannot be built. Raises as `mlp_library`."""
    return mlp_library() if _evaluates[0] else None


def let_evaluate(allowed: bool) -> None:
    """Say whether networks of this process are evaluated by the library. Under `compile=false` torch evaluates them."""
    _evaluates[0] = allowed


def layout_of(library: ctypes.CDLL) -> tuple[int, ...]:
    """Where the library reads the fields of a plan, in 8 bytes: its head, a layer, and the places in a layer."""
    places = (ctypes.c_int64 * (2 + len(_PLACES)))()
    library.bdl_mlp_layout(places)
    return tuple(places)


def pairs(layers: Sequence[nn.Module]) -> list[tuple[nn.Linear, int]]:
    """Linear layers, each with the code of the activation after it; empty where the library cannot run the layers.

    It runs Linear layers, each followed by at most one activation that it knows, and no weight matrix with more than
    `LARGEST_MATRIX` numbers, because it runs on one core.
    """
    found: list[tuple[nn.Linear, int]] = []
    for i, layer in enumerate(layers):
        if type(layer) is nn.Linear and layer.in_features * layer.out_features <= LARGEST_MATRIX:
            found.append((layer, 0))
        elif i > 0 and type(layers[i - 1]) is nn.Linear and type(layer) in _ACTIVATIONS:
            found[-1] = (found[-1][0], _ACTIVATIONS[type(layer)])
        else:
            return []
    return found


class MLPPlan:
    """The layers of so many networks as the library reads them: sizes, and where weights, biases and gradients lie."""

    def __init__(self, layers: Sequence[tuple[nn.Linear, int]], networks: int):
        self.inputs, self.outputs = layers[0][0].in_features, layers[-1][0].out_features
        self._biased = [linear.bias is not None for linear, _ in layers]
        rows = [[linear.in_features, linear.out_features, code, *[0] * (_FIELDS - 3)] for linear, code in layers]
        flat = [networks, len(layers), *[value for row in rows for value in row]]
        self._numbers = (ctypes.c_int64 * len(flat))(*flat)
        self.pointer = ctypes.addressof(self._numbers)

    def fill(self, params: Places, gradients: Places | None = None) -> None:
        """Write where the parameters lie, in the order of the layers, and the gradients, if there are any."""
        of_kind = [(iter(params), _PLACES[:2]), *([] if gradients is None else [(iter(gradients), _PLACES[2:])])]
        for i, biased in enumerate(self._biased):
            for tensors, places in of_kind:
                for place, has in zip(places, (True, biased), strict=True):
                    at = _HEAD + _FIELDS * i + place
                    self._numbers[at : at + 2] = next(tensors) if has else (0, 0)


def sizes(library: ctypes.CDLL, plan: MLPPlan, items: int) -> tuple[int, int]:
    """Floats of scratch that items need: for the values of one network, and for its work in a backward pass."""
    values, work = ctypes.c_int64(), ctypes.c_int64()
    library.bdl_mlp_scratch(plan.pointer, items, ctypes.byref(values), ctypes.byref(work))
    return values.value, work.value


def mlp_outputs(
    library: ctypes.CDLL, layers: Sequence[tuple[nn.Linear, int]], params: Sequence[Tensor], x: Tensor, networks: int
) -> Tensor | None:
    """The outputs (k, outputs, n) of so many networks; None for tensors that the library does not read.

    params: weights and biases in order, (k, ...), or (...) for tensors that all networks share. The numbers of one
    network lie side by side, and those of others at any distance, as in a sampler's buffer. x: (n, features).
    """
    items, features = x.shape
    axes = [axes for linear, _ in layers for axes in ((2,) if linear.bias is None else (2, 1))]  # without the networks
    each = [t[0] if t.ndim > own else t for t, own in zip(params, axes, strict=True)]
    plain = all(t.dtype is torch.float32 and t.is_cpu and t.is_contiguous() for t in (*each, x))
    if not plain or not items or features != layers[0][0].in_features:
        return None
    plan = MLPPlan(layers, networks)
    plan.fill([(t.data_ptr(), t.stride(0) if t.ndim > own else 0) for t, own in zip(params, axes, strict=True)])
    outputs = x.new_empty(networks, plan.outputs, items)
    memory = x.new_empty(sizes(library, plan, min(items, library.bdl_mlp_block()))[0] + LINE // 4)
    library.bdl_mlp_outputs(
        plan.pointer, x.data_ptr(), 0, items, outputs.data_ptr(), -(-memory.data_ptr() // LINE) * LINE
    )  # fmt: skip
    return outputs


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library, whose functions know the types of their arguments."""
    address, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    functions = [
        ("scratch", None, [address, number, address, address]),
        ("block", number, []),
        ("layout", None, [address]),
        ("loss", number, [address, address, number, number, address, number, real, real, number, *[address] * 3]),
        ("walk", number, [address, number, *[address] * 3, *[number] * 4, real, real, *[address] * 6]),
        ("forward", None, [address, address, number, number, address, address]),
        ("outputs", None, [address, address, number, number, address, address]),
        ("backward", None, [address, address, number, address, address]),
    ]
    return native.typed(library, "bdl_mlp_", functions)
