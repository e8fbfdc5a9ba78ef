"""The compiled twin of MLPGradient: mlp_kernel.c, built once with the system's C compiler and called through ctypes.

It is several times as fast on small networks, because a chain's layers stay in the cache and no kernel is launched. Its
sums run in another order than torch's, so its numbers equal MLPGradient's to rounding, not to the bit.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bdl.batch import Inputs
from bdl.engine.gradient import Gradient
from bdl.engine.mlp_gradient import MLPGradient
from bdl.engine.mlp_library import LINE, MLPPlan, mlp_library, pairs, sizes
from bdl.errors import ConfigError
from bdl.likelihoods import CategoricalNLL, GaussianNLL, HeteroscedasticNLL, mean_loss_and_gradient
from bdl.likelihoods.base import as_columns

_LAWS = {CategoricalNLL: 0, GaussianNLL: 1, HeteroscedasticNLL: 2}  # the likelihoods in mlp_kernel.c


class MLPKernel(Gradient):
    """Mean losses of a stack of MLPs and the gradients of its parameters, by the compiled code; made by `compiled`.

    Inputs that the compiled code does not take (other types, other devices) go to the eager MLPGradient.
    """

    def __init__(self, eager: MLPGradient, library: ctypes.CDLL):
        self.eager, self.chains, self.params, self.loss = eager, eager.chains, eager.params, eager.loss
        self._library, self._block = library, library.bdl_mlp_block()
        self._plan = _LivePlan(pairs(eager.layers), eager.chains)
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
        self, x: Tensor, y: Tensor, rows: Tensor | None, out: Sequence[Tensor], losses: Tensor, after: int, context: int
    ) -> int:
        """As `Gradient.walk`."""
        plain, features = x.dtype is torch.float32 and x.is_cpu, math.prod(x.shape[1:])
        if not plain or features != self._plan.inputs or not all(t.is_contiguous() for t in (x, y)):
            return 0
        if rows is not None and not self._reads(rows):
            return 0
        law = self._law(x.unsqueeze(0), y.unsqueeze(0))
        if law is None or law[1].data_ptr() != y.data_ptr() or not self._plan.point(self.params, out):
            return 0
        items, (number, targets, *given) = len(x) if rows is None else rows.shape[-1], law
        places = (None, 0, 0) if rows is None else (rows.data_ptr(), rows.stride(0), items if rows.ndim == 3 else 0)
        values, work = self._size(min(items, self._block))
        return self._library.bdl_mlp_walk(
            self._plan.pointer, len(losses), x.data_ptr(), y.data_ptr(), *places, items, number, *given,
            losses.data_ptr(), self._space("values", values), self._space("work", work),
            self._space("targets", 0 if rows is None else 2 * targets[0, :1].numel() * items), after, context,
        )  # fmt: skip

    def _reads(self, rows: Tensor) -> bool:
        """Whether the compiled code reads these rows of batches."""
        return rows.dtype == torch.int32 and rows.is_contiguous() and (rows.ndim == 2) == self.eager.shared

    def _law(self, x: Tensor, y: Tensor) -> tuple[int, Tensor, float, float] | None:
        """Number, targets, given or least scale and outliers of a likelihood in mlp_kernel.c; None for all others."""
        loss: Any = self.loss  # its class is compared, because a subclass may compute something else
        shape, outputs = x.shape[:2], self._plan.outputs
        if type(loss) is CategoricalNLL and y.dtype == torch.int64:
            if y.shape != shape:
                raise ConfigError(f"labels of shape {tuple(y.shape)} do not match a batch of shape {tuple(shape)}")
            return _LAWS[CategoricalNLL], y if y.stride(1) == 1 else y.contiguous(), 0.0, 0.0
        if type(loss) is HeteroscedasticNLL and loss.link == "log_var" and outputs % 2 == 0:
            number, k, given, outliers = _LAWS[HeteroscedasticNLL], outputs // 2, loss.min_std, loss.outliers
        elif type(loss) is GaussianNLL:
            number, k, given, outliers = _LAWS[GaussianNLL], outputs, loss.std, 0.0
        else:
            return None
        if y.dtype != torch.float32 or not isinstance(given, int | float):  # one number for each target
            return None
        y = as_columns(y, torch.Size((*shape, k)))
        return number, y if y[0].is_contiguous() else y.contiguous(), given, outliers

    def _by_law(self, x: Tensor, law: int, y: Tensor, *given: float) -> Tensor:
        items, losses = x.shape[1], x.new_empty(self.chains)
        values, work = self._size(min(items, self._block))
        wrong = self._library.bdl_mlp_loss(
            self._plan.pointer, x.data_ptr(), x.stride(0), law, y.data_ptr(), y.stride(0), *given, items,
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
            self._sizes[items] = sizes(self._library, self._plan, items)
        return self._sizes[items]

    def _space(self, name: str, floats: int) -> int:
        """The address of scratch memory for so many floats, kept between calls."""
        place = self._scratch.get(name)
        if place is None or place[0] < floats:
            memory = torch.zeros(floats + LINE // 4, dtype=torch.float32, device="cpu")
            place = self._scratch[name] = floats, -(-memory.data_ptr() // LINE) * LINE, memory
        return place[1]


class _LivePlan(MLPPlan):
    """The plan of a stack that moves: parameters and gradients that are looked up again only where they have moved."""

    def __init__(self, layers: Sequence[tuple[nn.Linear, int]], chains: int):
        super().__init__(layers, chains)
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
            self.fill([(t.data_ptr(), t.stride(0)) for t in params], [(t.data_ptr(), t.stride(0)) for t in out])
        return self._usable


def compiled(eager: MLPGradient, required: bool = False) -> MLPGradient | MLPKernel:
    """The compiled twin where the layers fit and it can be built, else `eager`.

    Raises ConfigError where it is required and cannot be built. Layers that do not fit are no error.
    """
    library = mlp_library(required) if kernel_fits(eager) else None
    return eager if library is None else MLPKernel(eager, library)


def kernel_fits(eager: MLPGradient) -> bool:
    """Whether the compiled code runs these layers, see `pairs`, with parameters in float32 on a CPU, all live."""
    every = [p for layer in eager.layers for p in layer.parameters()]
    live = len(every) == len(eager.params) and all(p.dtype == torch.float32 and p.device.type == "cpu" for p in every)
    return live and bool(pairs(eager.layers))
