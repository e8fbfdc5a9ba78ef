"""Likelihoods of classes and of labels that are 0 or 1."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent

from bdl.errors import BdlWarning, ConfigError
from bdl.likelihoods.base import Likelihood, Outputs, as_columns, refuse_targets

IGNORED = -100  # the label of an element that does not count, as in torch's cross_entropy


def are_probabilities(y: Tensor) -> bool:
    """Whether targets (..., K) are soft labels: probabilities of K classes, such as shares of several raters.

    >>> are_probabilities(torch.tensor([[0.2, 0.8]])), are_probabilities(torch.tensor([[1, 0]]))
    (True, False)
    """
    soft = y.is_floating_point() and y.ndim > 1 and y.shape[-1] > 1
    return soft and bool((y >= 0).all() and ((y.sum(-1) - 1).abs() < 1e-3).all())  # half precision rounds so


def most_probable(y: Tensor) -> Tensor:
    """The classes (...) of soft labels (..., K), with a BdlWarning; classes as they are."""
    if not are_probabilities(y):
        return y
    line = f"the labels {tuple(y.shape)} are probabilities, and are scored as the most probable class of each item"
    warnings.warn(line, BdlWarning, stacklevel=2)
    return y.argmax(-1)


@dataclass(frozen=True)
class CategoricalNLL(Likelihood):
    """-log softmax(outputs)[y]: outputs (..., B, K) logits, y (..., B) classes -> (..., B) nats.

    An item may have several elements with a class each, such as tokens or pixels: outputs (..., B, T, K), y
    (..., B, T). Elements with the label -100, such as padding, then do not count.

    >>> import torch
    >>> CategoricalNLL()(torch.zeros(2, 4), torch.tensor([0, 3])).exp()  # four classes, equally likely
    tensor([4., 4.])
    >>> CategoricalNLL(class_axis=-3)(torch.zeros(2, 4, 5, 5), torch.zeros(2, 5, 5, dtype=torch.int64)).shape
    torch.Size([2, 5, 5])

    Args:
        class_axis: axis of the K classes, counted from the end; -3 for images (B, K, H, W). `torch.nn.CrossEntropyLoss`
            always reads them on axis 1.
    """

    outputs: ClassVar[Outputs] = "logits"
    class_axis: int = field(default=-1, repr=False, metadata={"in identity": "unless default"})

    def __post_init__(self) -> None:
        if self.class_axis >= 0:
            raise ConfigError(f"class_axis is counted from the end, -1 or less, got {self.class_axis}")

    def arranged(self, outputs: Tensor) -> Tensor:
        return outputs if self.class_axis == -1 else outputs.movedim(self.class_axis, -1)

    def of_rows(self) -> Likelihood:
        return CategoricalNLL()

    def counted(self, y: Tensor) -> Tensor | None:
        return None if y.is_floating_point() else y != IGNORED  # probabilities all count

    def distribution(self, outputs: Tensor) -> Distribution:
        return Categorical(logits=self.arranged(outputs), validate_args=False)

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        outputs = self.arranged(outputs)
        if outputs.shape[:-1] != y.shape:
            raise ConfigError(
                f"labels of shape {tuple(y.shape)} do not fit outputs of shape {tuple(outputs.shape)} with the classes "
                "on the last axis: CategoricalNLL(class_axis=-3) reads images (B, K, H, W)"
            )
        each = F.cross_entropy(outputs.flatten(0, -2), y.flatten().long(), reduction="none")  # int32 and bool too
        return each.view(y.shape)

    def mean_and_gradient(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if outputs.mT.is_contiguous():  # (..., K, B) in memory, over which softmax is several times as fast
            loss, gradient = self._along(-2, outputs.mT, y)
            return loss, gradient.mT
        return self._along(-1, outputs, y)

    def _along(self, classes: int, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        log_p, index = outputs.log_softmax(classes), y.long().unsqueeze(classes)
        loss = log_p.gather(classes, index).squeeze(classes).mean(-1).neg_()
        return loss, log_p.exp_().scatter_(classes, index, -1.0, reduce="add").mul_(1 / y.shape[-1])

    def check(self, y: Tensor, outputs: int | None = None) -> None:
        """Raise ConfigError, in one line, unless y (n,) holds classes 0 .. K-1, for a network with K outputs."""
        if are_probabilities(y):
            raise ConfigError(
                f"y of shape {tuple(y.shape)} holds probabilities, and CategoricalNLL takes one class for each item: "
                "take nn.CrossEntropyLoss() as the loss, which takes probabilities, or the classes y.argmax(1)"
            )
        if y.ndim != 1:
            raise ConfigError(
                f"y has shape {tuple(y.shape)}, and CategoricalNLL takes one class for each item, y (n,): use "
                "y.squeeze(1) for one column, or BernoulliNLL for several labels"
            )
        if y.is_floating_point():
            refuse_targets(~(y == y.floor()), y, "no class", "classes are the whole numbers 0 .. K-1")
            raise ConfigError(f"y holds classes as {y.dtype}: turn them into whole numbers with y.long()")
        classes = "K" if outputs is None else str(outputs)
        wrong = y < 0 if outputs is None else (y < 0) | (y >= outputs)
        refuse_targets(
            wrong, y, f"none of the {classes} classes", "correct the labels, or give the network an output for each"
        )


@dataclass(frozen=True)
class BernoulliNLL(Likelihood):
    """-Σ log Bernoulli(y; sigmoid(outputs)): outputs (..., B, k) logits of k labels, y (..., B, k) of 0 and 1 -> nats.

    Two classes need one output: k = 1, where y may also be (..., B).

    >>> import torch
    >>> BernoulliNLL()(torch.zeros(2, 3), torch.tensor([[0, 1, 1], [0, 0, 0]])).exp()  # three fair coins
    tensor([8., 8.])
    """

    outputs: ClassVar[Outputs] = "labels"

    def distribution(self, outputs: Tensor) -> Distribution:
        return Independent(Bernoulli(logits=outputs, validate_args=False), 1, validate_args=False)

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        y = as_columns(y, outputs.shape).to(outputs.dtype).expand_as(outputs)
        return F.binary_cross_entropy_with_logits(outputs, y, reduction="none").sum(-1)

    def mean_and_gradient(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y = as_columns(y, outputs.shape).to(outputs.dtype)  # y may be bool, which has no subtraction
        return self(outputs, y).mean(-1), (outputs.sigmoid() - y).mul_(1 / outputs.shape[-2])

    def check(self, y: Tensor, outputs: int | None = None) -> None:
        """Raise ConfigError, in one line, unless y (n,) or (n, k) holds 0 and 1, one column for each of k outputs."""
        y = y if y.dtype != torch.bool else y.long()
        super().check(y, outputs)
        refuse_targets((y != 0) & (y != 1), y, "neither 0 nor 1", "labels are 0 or 1")
