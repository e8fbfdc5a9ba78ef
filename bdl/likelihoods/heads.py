"""Outputs that do not depend on the input, such as one scale for all items, and outputs with an offset."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ConstantOutputs(nn.Module):
    """Appends learned constants to the outputs of a network: (..., B, K) -> (..., B, K + count).

    The constants are parameters of the network. So they are sampled under its prior, stored and predicted with like
    every other weight, and no other part of bdl has to know of them. As the last layer of an MLP it costs little.

    >>> net = nn.Sequential(nn.Linear(3, 1), ConstantOutputs(1))
    >>> net(torch.randn(4, 3))[:, 1]
    tensor([0., 0., 0., 0.], grad_fn=<SelectBackward0>)

    Args:
        count: number of constants.
        start: their value at the start.
    """

    def __init__(self, count: int, start: float = 0.0):
        super().__init__()
        self.start = start
        self.value = nn.Parameter(torch.empty(count))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.value, self.start)

    def forward(self, x: Tensor) -> Tensor:
        # value is (count,), or (C, count) in a stack of chains, whose x is (C, B, K)
        return torch.cat([x, self.value.unsqueeze(-2).expand(*x.shape[:-1], -1)], -1)


def with_constant_scale(net: nn.Module, targets: int = 1, start: float = 0.0) -> nn.Module:
    """A network with k outputs and k learned constants behind them: one learned scale for all inputs.

    `HeteroscedasticNLL` then reads mean and log variance, `StudentTNLL` location and log scale, `NegativeBinomialNLL`
    log mean and log dispersion. The constants belong to the sampled network and have its prior, which at
    `Gaussian(1.0)` is a standard log-normal distribution of the variance around exp(start): standardise y first.

    >>> from bdl.likelihoods import HeteroscedasticNLL
    >>> net = with_constant_scale(nn.Linear(3, 2), targets=2)
    >>> HeteroscedasticNLL().variance(net(torch.randn(5, 3))).shape
    torch.Size([5, 2])

    start: the constants at the start.
    """
    return nn.Sequential(net, ConstantOutputs(targets, start))


class WithOffset(nn.Module):
    """A network of log rates whose last input is an offset, which is added to the outputs and not seen inside.

    With the logarithm of the exposure as offset, the mean of `PoissonNLL` and of `NegativeBinomialNLL` is exposure x
    rate. The dispersion stays as it is.

    >>> rates = WithOffset(nn.Linear(3, 1))
    >>> x = torch.randn(4, 3)
    >>> torch.allclose(rates(torch.cat([x, torch.ones(4, 1)], 1)), rates.net(x) + 1)
    True

    Args:
        net: inputs (..., d) -> outputs (..., K); it is given x (..., d + 1) without the last column.
        targets: how many outputs are log rates; they come first.
    """

    def __init__(self, net: nn.Module, targets: int = 1):
        super().__init__()
        self.net, self.targets = net, targets

    def forward(self, x: Tensor) -> Tensor:
        return shifted(self.net(x[..., :-1]), x[..., -1:], self.targets)


def shifted(outputs: Tensor, offset: Tensor, targets: int) -> Tensor:
    """The outputs (..., K), with the offset (..., 1) added to the first `targets` of them."""
    return torch.cat([outputs[..., :targets] + offset, outputs[..., targets:]], -1)
