"""Likelihoods: negative log-likelihoods per item, in nats, and which law another loss would sample instead."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdl.errors import ConfigError

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, y) -> losses per item, or their mean over the batch
Outputs = Literal["logits", "values", "unknown"]


class Likelihood(ABC):
    """A negative log-likelihood per item, -log p(y | outputs), in nats. It allows any leading axes, such as chains.

    `outputs` says what the network's outputs are: "logits" (softmax gives class probabilities), "values" (regression)
    or "unknown". Concrete likelihoods are frozen dataclasses.
    """

    outputs: ClassVar[Outputs] = "unknown"

    @abstractmethod
    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(..., B) losses of the items, in nats, from outputs (..., B, K) and labels y (..., B) or (..., B, k)."""

    def mean_and_gradient(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(...,) mean losses over the batch, and the gradient (..., B, K) of each with respect to its outputs."""
        return _by_autograd(lambda outputs: self(outputs, y).mean(-1), outputs)


@dataclass(frozen=True)
class CategoricalNLL(Likelihood):
    """-log softmax(outputs)[y]: outputs (..., B, K) logits, y (..., B) classes -> (..., B) nats.

    >>> import torch
    >>> CategoricalNLL()(torch.zeros(2, 4), torch.tensor([0, 3])).exp()  # four classes, equally likely
    tensor([4., 4.])
    """

    outputs: ClassVar[Outputs] = "logits"

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none")
        return each.view(y.shape)

    def mean_and_gradient(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if outputs.mT.is_contiguous():  # (..., K, B) in memory, over which softmax is several times as fast
            loss, gradient = self._along(-2, outputs.mT, y)
            return loss, gradient.mT
        return self._along(-1, outputs, y)

    def _along(self, classes: int, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        log_p, index = outputs.log_softmax(classes), y.unsqueeze(classes)
        loss = log_p.gather(classes, index).squeeze(classes).mean(-1).neg_()
        return loss, log_p.exp_().scatter_(classes, index, -1.0, reduce="add").mul_(1 / y.shape[-1])


@dataclass(frozen=True)
class GaussianNLL(Likelihood):
    """-log N(y; outputs, std²), summed over the k outputs of an item: outputs and y (..., B, k) -> (..., B) nats.

    >>> import torch
    >>> GaussianNLL(std=2.0)(torch.tensor([[0.0]]), torch.tensor([[2.0]]))  # 1/2 + log 2 + log(2 pi) / 2
    tensor([2.1121])

    Args:
        std: known standard deviation of y around the outputs, in the units of y. A mean squared error as the loss
            would mean std = sqrt(1/2).

    Raises ConfigError unless std > 0.
    """

    std: float
    outputs: ClassVar[Outputs] = "values"

    def __post_init__(self) -> None:
        if not self.std > 0:
            raise ConfigError(f"std must be > 0, got {self.std}")

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        z = (outputs - y) / self.std
        return (0.5 * z.square() + math.log(self.std) + 0.5 * math.log(2 * math.pi)).sum(-1)

    def mean_and_gradient(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self(outputs, y).mean(-1), (outputs - y).mul_(1 / (self.std**2 * outputs.shape[-2]))


@dataclass(frozen=True)
class HeteroscedasticNLL(Likelihood):
    """-log N(y; mean, exp(s)): outputs (..., B, 2k) = mean and log variance s, y (..., B, k) -> (..., B) nats.

    >>> import torch
    >>> HeteroscedasticNLL()(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0]]))  # log(2 pi) / 2
    tensor([0.9189])
    """

    outputs: ClassVar[Outputs] = "values"

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        mean, log_var = outputs.chunk(2, -1)
        return 0.5 * ((y - mean).square() * (-log_var).exp() + log_var + math.log(2 * math.pi)).sum(-1)


def outputs_of(loss: Any) -> Outputs:
    """What a network trained with the loss puts out: "logits", "values", or "unknown" for a loss that says nothing.

    >>> outputs_of(CategoricalNLL()), outputs_of(torch.nn.MSELoss()), outputs_of(lambda outputs, y: outputs.mean())
    ('logits', 'values', 'unknown')
    """
    if isinstance(loss, Likelihood):
        return loss.outputs
    if isinstance(loss, nn.CrossEntropyLoss):
        return "logits"
    if isinstance(loss, nn.MSELoss | nn.GaussianNLLLoss | nn.L1Loss):
        return "values"
    return "unknown"


def mean_loss(loss: Loss, outputs: Tensor, y: Tensor, chains: int | None) -> Tensor:
    """() mean loss of the batch, or (C,) mean losses per chain. Outputs and y lead with C if chains is given."""
    if isinstance(loss, Likelihood):
        return loss(outputs, y).mean(-1)
    if chains is None:
        return loss(outputs, y)
    return torch.stack([loss(outputs[c], y[c]) for c in range(chains)])


def mean_loss_and_gradient(loss: Loss, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(C,) mean losses per chain and their gradient (C, B, K) with respect to the outputs (C, B, K)."""
    if isinstance(loss, Likelihood):
        return loss.mean_and_gradient(outputs, y)
    return _by_autograd(lambda outputs: mean_loss(loss, outputs, y, len(outputs)), outputs)


def _by_autograd(mean: Callable[[Tensor], Tensor], outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The losses mean(outputs), and the gradient of their sum."""
    with torch.enable_grad():
        live = outputs.detach().requires_grad_()
        losses = mean(live)
        (gradient,) = torch.autograd.grad(losses.sum(), live)
    return losses.detach(), gradient


def law_note(loss: Any) -> str | None:
    """Why a loss is not the mean negative log-likelihood of the data, or None. The sampled law is exp(-N loss / T)."""
    if isinstance(loss, nn.MSELoss):
        return (
            "MSELoss is the likelihood of Gaussian errors with std sqrt(1/2), whatever the data: "
            "use bdl.GaussianNLL(std)"
        )
    if getattr(loss, "reduction", "mean") != "mean":
        return (
            f'reduction="{loss.reduction}" is no mean over the batch: the law sampled is exp(-N loss / T); use "mean"'
        )
    if getattr(loss, "label_smoothing", 0.0):
        return f"label_smoothing={loss.label_smoothing} samples the posterior of smoothed labels, not of the data"
    if getattr(loss, "weight", None) is not None:
        return "class weights sample the posterior of re-weighted data, not of the data"
    return None
