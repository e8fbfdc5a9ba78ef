"""The compiled twin of MLPGradient: mlp_kernel.c, built once with the system's C compiler and called through ctypes.

It is several times as fast on small networks, because a chain's layers stay in the cache and no kernel is launched. Its
sums run in another order than torch's, so its numbers equal MLPGradient's to rounding, not to the bit.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bdl import native
from bdl.batch import Inputs
from bdl.engine.gradient import Gradient
from bdl.engine.mlp_gradient import MLPGradient
from bdl.errors import ConfigError
from bdl.likelihoods import CategoricalNLL, GaussianNLL, HeteroscedasticNLL, mean_loss_and_gradient
from bdl.likelihoods.base import as_columns

SOURCE = Path(__file__).with_suffix(".c")
LARGEST = 2**16  # numbers in a weight matrix; beyond, torch's products gain from threads and from packed operands
_ACTIVATIONS = {nn.Tanh: 1, nn.ReLU: 2, nn.Sigmoid: 3, nn.SiLU: 4}  # the enum in mlp_kernel.c
_LAWS = {CategoricalNLL: 0, GaussianNLL: 1, HeteroscedasticNLL: 2}  # the likelihoods in mlp_kernel.c
_HEAD, _FIELDS = 2, 11  # numbers in a Plan before its layers, and in a Layer
_PLACES = (3, 5, 7, 9)  # a Layer's weight, bias and their gradients, each with its stride behind it
_LINE = 64  # bytes; the scratch starts at a line of the cache


class MLPKernel(Gradient):
    """Mean losses of a stack of MLPs and the gradients of its parameters, by the compiled code; made by `compiled`.

    Inputs that the compiled code does not take (other types, other devices) go to the eager MLPGradient.
    """

    def __init__(self, eager: MLPGradient, library: ctypes.CDLL):
        self.eager, self.chains, self.params, self.loss = eager, eager.chains, eager.params, eager.loss
        self._library, self._block = library, library.bdl_mlp_block()
        self._plan = _Plan(eager.layers, eager.chains)
        self._scratch: dict[str, tuple[int, int, Tensor]] = {}  # floats, address, the memory
        self._known_shape = torch.Size()  # the shape of the last x that fitted
        self._sizes: dict[int, tuple[int, int]] = {}
        self.walks = type(self.loss) in _LAWS

    def __reduce__(self) -> Any:
        return compiled, (self.eager,)  # a copy must not share addresses

    @torch.no_grad()
    def write(self, x: Inputs, y: Tensor, out: Sequence[Tensor]) -> Tensor:
        """As `Gradient.write`."""
        batch = x, y
        x, y = self.eager.per_chain(x, y)
        if not self._takes(x) or not self._plan.point(self.params, out):
            return self.eager.write(*batch, out)
        if not x.is_contiguous() and not x[0].is_contiguous():  # a batch that is expanded over chains is read as it is
            x = x.contiguous()
        if (law := self._law(x, y)) is not None:
            return self._by_law(x, *law)
        outputs, values = self._forward(x)
        losses, d = mean_loss_and_gradient(self.loss, outputs.mT, y)
        d = d.mT.to(torch.float32).contiguous()
        work = self._space("work", self._size(x.shape[1])[1])
        self._library.bdl_mlp_backward(self._plan.pointer, d.data_ptr(), x.shape[1], values, work)
        return losses

    @torch.no_grad()
    def walk(
        self, x: Tensor, y: Tensor, rows: Tensor, out: Sequence[Tensor], losses: Tensor, after: int, context: int
    ) -> int:
        """As `Gradient.walk`."""
        plain = x.dtype is torch.float32 and x.is_cpu and all(t.is_contiguous() for t in (x, y, rows))
        shared, features = rows.ndim == 2, math.prod(x.shape[1:])
        if not plain or rows.dtype != torch.int32 or shared != self.eager.shared or features != self._plan.inputs:
            return 0
        law = self._law(x.unsqueeze(0), y.unsqueeze(0))
        if law is None or law[1].data_ptr() != y.data_ptr() or not self._plan.point(self.params, out):
            return 0
        items, (number, targets, given) = rows.shape[-1], law
        values, work = self._size(min(items, self._block))
        batch = items * (features + 2 * targets[0, :1].numel()) + _LINE
        return self._library.bdl_mlp_walk(
            self._plan.pointer, len(losses), x.data_ptr(), y.data_ptr(), rows.data_ptr(), rows.stride(0),
            0 if shared else items, items, number, given, losses.data_ptr(), self._space("values", values),
            self._space("work", work), self._space("batch", batch), after, context,
        )  # fmt: skip

    def _law(self, x: Tensor, y: Tensor) -> tuple[int, Tensor, float] | None:
        """Number, targets and given scale of a likelihood that mlp_kernel.c computes; None for all others."""
        loss: Any = self.loss  # its class is compared, because a subclass may compute something else
        shape, outputs = x.shape[:2], self._plan.outputs
        if type(loss) is CategoricalNLL and y.dtype == torch.int64:
            if y.shape != shape:
                raise ConfigError(f"labels of shape {tuple(y.shape)} do not match a batch of shape {tuple(shape)}")
            return _LAWS[CategoricalNLL], y if y.stride(1) == 1 else y.contiguous(), 0.0
        if type(loss) is HeteroscedasticNLL and loss == HeteroscedasticNLL() and outputs % 2 == 0:
            number, k, given = _LAWS[HeteroscedasticNLL], outputs // 2, 0.0
        elif type(loss) is GaussianNLL:
            number, k, given = _LAWS[GaussianNLL], outputs, loss.std
        else:
            return None
        if y.dtype != torch.float32:
            return None
        y = as_columns(y, torch.Size((*shape, k)))
        return number, y if y[0].is_contiguous() else y.contiguous(), given

    def _by_law(self, x: Tensor, law: int, y: Tensor, given: float) -> Tensor:
        items, losses = x.shape[1], x.new_empty(self.chains)
        values, work = self._size(min(items, self._block))
        wrong = self._library.bdl_mlp_loss(
            self._plan.pointer, x.data_ptr(), x.stride(0), law, y.data_ptr(), y.stride(0), given, items,
            losses.data_ptr(), self._space("values", values), self._space("work", work),
        )  # fmt: skip
        if wrong >= 0:
            label, classes = int(y[wrong // items, wrong % items]), self._plan.outputs
            raise ConfigError(
                f"label {label} is not one of the network's {classes} classes 0..{classes - 1}: correct the labels, or "
                "give the network as many outputs as there are classes"
            )
        return losses

    def _forward(self, x: Tensor) -> tuple[Tensor, int]:
        """Outputs (C, K, B), and where the values of all layers lie."""
        items = x.shape[1]
        values = self._space("values", self._size(items)[0] * self.chains)
        outputs = x.new_empty(self.chains, self._plan.outputs, items)
        self._library.bdl_mlp_forward(self._plan.pointer, x.data_ptr(), x.stride(0), items, outputs.data_ptr(), values)
        return outputs, values

    def _takes(self, x: Tensor) -> bool:
        if x.dtype is not torch.float32 or not x.is_cpu or x.requires_grad:
            return False
        if x.shape != self._known_shape:
            if x.ndim < 3 or x.shape[0] != self.chains or not x.shape[1] or math.prod(x.shape[2:]) != self._plan.inputs:
                return False
            self._known_shape = x.shape
        return True

    def _size(self, items: int) -> tuple[int, int]:
        """Floats of scratch for the values of one chain, and for its work."""
        if items not in self._sizes:
            values, work = ctypes.c_int64(), ctypes.c_int64()
            self._library.bdl_mlp_scratch(self._plan.pointer, items, ctypes.byref(values), ctypes.byref(work))
            self._sizes[items] = values.value, work.value
        return self._sizes[items]

    def _space(self, name: str, floats: int) -> int:
        """The address of scratch memory for so many floats, kept between calls."""
        place = self._scratch.get(name)
        if place is None or place[0] < floats:
            memory = torch.zeros(floats + _LINE // 4, dtype=torch.float32, device="cpu")
            place = self._scratch[name] = floats, -(-memory.data_ptr() // _LINE) * _LINE, memory
        return place[1]


class _Plan:
    """The layers as mlp_kernel.c reads them: sizes, and where weights, biases and gradients lie."""

    def __init__(self, layers: Sequence[nn.Module], chains: int):
        pairs = _pairs(layers)
        self.inputs, self.outputs = pairs[0][0].in_features, pairs[-1][0].out_features
        self._biased = [linear.bias is not None for linear, _ in pairs]
        rows = [[linear.in_features, linear.out_features, code, *[0] * (_FIELDS - 3)] for linear, code in pairs]
        flat = [chains, len(pairs), *[value for row in rows for value in row]]
        self._numbers = (ctypes.c_int64 * len(flat))(*flat)
        self.pointer = ctypes.addressof(self._numbers)
        self._places: list[int] = []
        self._usable = False

    def point(self, params: Sequence[Tensor], out: Sequence[Tensor]) -> bool:
        """Point to these parameters and gradients; False where their memory has another layout or type."""
        # Tensors that do not overlap keep their strides while all addresses stay, but for a tensor that is alone
        theta, g = params[0], out[0]
        places = [t.data_ptr() for t in (*params, *out)] + [theta.stride(0), g.stride(0)]
        if places != self._places or theta.dtype is not torch.float32 or g.dtype is not torch.float32:
            self._places = places
            plain = ((t.dtype, t.device.type) == (torch.float32, "cpu") for t in (*params, *out))
            self._usable = all(plain) and all(t[0].is_contiguous() for t in (*params, *out))
            self._fill([(t.data_ptr(), t.stride(0)) for t in params], [(t.data_ptr(), t.stride(0)) for t in out])
        return self._usable

    def _fill(self, params: list[tuple[int, int]], out: list[tuple[int, int]]) -> None:
        """Write the addresses and strides of parameters and gradients."""
        theta, gradients = iter(params), iter(out)
        for i, biased in enumerate(self._biased):
            for parts, places in ((theta, _PLACES[:2]), (gradients, _PLACES[2:])):
                for place, has in zip(places, (True, biased), strict=True):
                    at = _HEAD + _FIELDS * i + place
                    self._numbers[at : at + 2] = next(parts) if has else (0, 0)


def compiled(eager: MLPGradient, required: bool = False) -> MLPGradient | MLPKernel:
    """The compiled twin where the layers fit and it can be built, else `eager`.

    Raises ConfigError where it is required and cannot be built. Layers that do not fit are no error.
    """
    library = native.load(SOURCE, required) if fits(eager) else None
    if library is None:
        return eager
    if layout_of(_typed(library)) != (_HEAD, _FIELDS, *_PLACES):
        raise ConfigError(f"{SOURCE} is of another bdl than {__file__}: install bdl again, or set compile=false")
    return MLPKernel(eager, library)


def layout_of(library: ctypes.CDLL) -> tuple[int, ...]:
    """Where the library reads the fields of a plan, in 8 bytes: its head, a layer, and the places in a layer."""
    places = (ctypes.c_int64 * (2 + len(_PLACES)))()
    library.bdl_mlp_layout(places)
    return tuple(places)


def fits(eager: MLPGradient) -> bool:
    """Whether the compiled code runs these layers: Linear, each followed by at most one activation it knows, all live.

    The parameters must be float32 on a CPU, and no weight matrix larger than `LARGEST`. The code runs on one core.
    """
    every = [p for layer in eager.layers for p in layer.parameters()]
    live = len(every) == len(eager.params) and all(p.dtype == torch.float32 and p.device.type == "cpu" for p in every)
    pairs = _pairs(eager.layers)
    return live and bool(pairs) and all(a.in_features * a.out_features <= LARGEST for a, _ in pairs)


def _pairs(layers: Sequence[nn.Module]) -> list[tuple[nn.Linear, int]]:
    """Linear layers, each with the code of the activation after it; empty where the layers are not of this form."""
    pairs: list[tuple[nn.Linear, int]] = []
    for i, layer in enumerate(layers):
        if type(layer) is nn.Linear:
            pairs.append((layer, 0))
        elif i > 0 and type(layers[i - 1]) is nn.Linear and type(layer) in _ACTIVATIONS:
            pairs[-1] = (pairs[-1][0], _ACTIVATIONS[type(layer)])
        else:
            return []
    return pairs


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library, whose functions know the types of their arguments."""
    address, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    for name, result, arguments in (
        ("scratch", None, [address, number, address, address]),
        ("block", number, []),
        ("layout", None, [address]),
        ("loss", number, [address, address, number, number, address, number, real, number, address, address, address]),
        ("walk", number, [address, number, *[address] * 3, *[number] * 4, real, *[address] * 6]),
        ("forward", None, [address, address, number, number, address, address]),
        ("backward", None, [address, address, number, address, address]),
    ):
        function = getattr(library, f"bdl_mlp_{name}")
        function.restype, function.argtypes = result, arguments
    return library
