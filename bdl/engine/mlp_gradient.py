"""Loss and gradient of a stack of multilayer perceptrons by the chain rule, without autograd.

Autograd spends more time on bookkeeping than these networks spend on arithmetic. Here the forward and the backward pass
are one short list of kernels, and their large results go into buffers that are allocated once. The items of a batch are
the last axis: (C, features, B). Kernels that run over the few outputs of an item, such as softmax, then work on whole
vectors of items, which is several times faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bdl.batch import Inputs
from bdl.engine.forward import tanh
from bdl.engine.gradient import Gradient
from bdl.engine.stack import check_inputs
from bdl.likelihoods import ConstantOutputs, Loss, mean_loss_and_gradient
from bdl.torch_private import copy_all

aten: Any = torch.ops.aten

# (layer, gradient of the output, input, output) -> gradient of the input
Derivative = Callable[[Any, Tensor, Tensor, Tensor], Tensor]

_WEIGHTED = (nn.Linear, ConstantOutputs)  # layers with parameters
_DERIVATIVES: dict[type[nn.Module], Derivative] = {
    nn.Tanh: lambda layer, d, x, y: aten.tanh_backward.grad_input(d, y, grad_input=d),
    nn.Sigmoid: lambda layer, d, x, y: aten.sigmoid_backward.grad_input(d, y, grad_input=d),
    nn.ReLU: lambda layer, d, x, y: aten.threshold_backward.grad_input(d, y, 0, grad_input=d),
    nn.SiLU: lambda layer, d, x, y: aten.silu_backward.grad_input(d, x, grad_input=d),
    nn.GELU: lambda layer, d, x, y: aten.gelu_backward.grad_input(d, x, approximate=layer.approximate, grad_input=d),
    nn.ELU: lambda layer, d, x, y: aten.elu_backward(d, layer.alpha, 1.0, 1.0, False, x),
    nn.LeakyReLU: lambda layer, d, x, y: aten.leaky_relu_backward(d, x, layer.negative_slope, False),
    nn.Softplus: lambda layer, d, x, y: aten.softplus_backward(d, x, layer.beta, layer.threshold),
}


class MLPGradient(Gradient):
    """Mean losses of a stack of MLPs and the gradients of its parameters, one batch at a time.

    layers: those that `supports` allows, with stacked parameters (C, ...). shared: whether all chains read one batch.
    """

    def __init__(self, layers: Sequence[nn.Module], chains: int, loss: Loss, shared: bool = False):
        self.layers = [layer for layer in layers if not isinstance(layer, nn.Identity | nn.Dropout | nn.Flatten)]
        self.chains, self.loss, self.shared = chains, loss, shared
        self.params = [p for layer in self.layers for p in layer.parameters() if p.requires_grad]
        live = [i for i, layer in enumerate(self.layers) if any(p.requires_grad for p in layer.parameters())]
        self._lowest = min(live, default=len(self.layers))  # the backward pass ends at this layer
        self._buffers: dict[tuple[str, int], Tensor] = {}

    def per_chain(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The batch with an axis of chains. Raises ConfigError for one that lacks it and is not shared."""
        if self.shared:
            return x.expand(self.chains, *x.shape), y.expand(self.chains, *y.shape)
        check_inputs(x, self.chains)
        return x, y

    @torch.no_grad()
    def write(self, x: Inputs, y: Tensor, out: Sequence[Tensor]) -> Tensor:
        losses, gradients = self._backward(*self.per_chain(x, y))
        copy_all(out, gradients)
        return losses

    def _backward(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The losses (C,), and the gradients in the order of `params`, which the next call overwrites."""
        values = [x.flatten(2).mT]  # the input of every layer, then the output of the last; (C, features, B)
        for i, layer in enumerate(self.layers):
            values.append(self._forward(i, layer, values[-1]))
        losses, d = mean_loss_and_gradient(self.loss, values[-1].mT, y)
        d = d.mT  # gradient of the losses with respect to the output of a layer, from the last to the lowest
        gradients: list[Tensor] = []
        for i in range(len(self.layers) - 1, self._lowest - 1, -1):
            layer = self.layers[i]
            if type(layer) is ConstantOutputs:
                below = values[i].shape[1]
                gradients[:0] = [d[:, below:].sum(2)] if layer.value.requires_grad else []
                d = d[:, :below]
            elif type(layer) is nn.Linear:
                gradients[:0] = self._gradients(i, layer, values[i], d)
                if i > self._lowest:
                    d = torch.bmm(layer.weight.mT, d, out=self._buffer("below", i, values[i].shape, d))
            else:
                d = _DERIVATIVES[type(layer)](layer, d, values[i], values[i + 1])
        return losses, gradients

    def _forward(self, i: int, layer: nn.Module, x: Tensor) -> Tensor:
        if type(layer) is nn.Tanh:
            return tanh(x, self._buffer("out", i, x.shape, x))
        if type(layer) is ConstantOutputs:
            return layer(x.mT).mT
        if type(layer) is not nn.Linear:
            return layer(x)
        out = self._buffer("out", i, (len(x), layer.out_features, x.shape[2]), x)
        if layer.bias is None:
            return torch.bmm(layer.weight, x, out=out)
        return torch.baddbmm(layer.bias.unsqueeze(2), layer.weight, x, out=out)

    def _gradients(self, i: int, layer: nn.Linear, x: Tensor, d: Tensor) -> list[Tensor]:
        """Gradients of the weight and the bias, where they are live."""
        gradients = []
        if layer.weight.requires_grad:
            out = self._buffer("weight", i, layer.weight.shape, d)
            gradients.append(torch.bmm(d, x.mT, out=out))
        if layer.bias is not None and layer.bias.requires_grad:
            gradients.append(torch.sum(d, 2, out=self._buffer("bias", i, layer.bias.shape, d)))
        return gradients

    def _buffer(self, name: str, i: int, shape: Sequence[int], like: Tensor) -> Tensor:
        buffer = self._buffers.get((name, i))
        if buffer is None or buffer.shape != shape or buffer.dtype != like.dtype or buffer.device != like.device:
            buffer = self._buffers[name, i] = like.new_empty(*shape)
        return buffer


def supports(layers: Sequence[nn.Module]) -> bool:
    """Whether the chain rule is written out for these layers, in the mode in which they are."""
    passing = nn.Identity | nn.Dropout | nn.Flatten  # they hand on what they are given, but for active dropout
    inside = [m for m in layers if not isinstance(m, passing) or isinstance(m, nn.Dropout) and m.training and m.p > 0]
    weighted = [layer for layer in layers if type(layer) in _WEIGHTED]
    tensors = [p for layer in weighted for p in layer.parameters()]
    once = len(set(map(id, weighted))) == len(weighted) and len(set(map(id, tensors))) == len(tensors)
    leading = [i for i, layer in enumerate(layers) if isinstance(layer, nn.Flatten)] in ([], [0])
    known = all(type(p) in _WEIGHTED or type(p) in _DERIVATIVES and not getattr(p, "inplace", False) for p in inside)
    return once and leading and known and bool(weighted)
