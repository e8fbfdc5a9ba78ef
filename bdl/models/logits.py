"""Logits: a model whose output object has an attribute `logits`, as a network that puts out this tensor."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Logits(nn.Module):
    """Wraps a model of transformers: its output object becomes the tensor of logits, which likelihoods read.

    Args:
        model: returns an object with an attribute `logits`, such as a `...ForSequenceClassification`.
        trained: whether its weights have been trained: a run then starts its chains there.
    """

    def __init__(self, model: nn.Module, trained: bool = False):
        super().__init__()
        self.model, self.trained = model, trained

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.model(*args, **kwargs).logits
