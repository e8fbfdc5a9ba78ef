"""The gradient of a stack of networks with offsets, by the fast forms for the networks inside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bdl.batch import Inputs
from bdl.engine.gradient import Gradient
from bdl.likelihoods import Likelihood
from bdl.likelihoods.heads import shifted
from bdl.likelihoods.wrapper import Wrapper


@dataclass(frozen=True)
class OffsetLikelihood(Wrapper):
    """A likelihood whose targets (..., B, k + 1) carry the offset of the first k outputs in their last column."""

    likelihood: Likelihood
    targets: int

    @property
    def inside(self) -> Likelihood:
        return self.likelihood

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.likelihood(shifted(outputs, y[..., -1:], self.targets), y[..., :-1])

    def mean_and_gradient(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.likelihood.mean_and_gradient(shifted(outputs, y[..., -1:], self.targets), y[..., :-1])


class OffsetGradient(Gradient):
    """The gradient of `WithOffset` networks, from that of the networks inside, whose loss is an `OffsetLikelihood`.

    The offset moves from the inputs to the targets. A shift of the outputs leaves derivatives as they are.
    """

    def __init__(self, inside: Gradient):
        self._inside, self.params = inside, inside.params

    @property
    def idle(self) -> Sequence[int]:  # type: ignore[override]
        return self._inside.idle

    def write(self, x: Inputs, y: Tensor, out: Sequence[Tensor]) -> Tensor:
        inputs: Any = x
        y = y if y.ndim == inputs.ndim else y.unsqueeze(-1)
        return self._inside.write(inputs[..., :-1].contiguous(), torch.cat([y, inputs[..., -1:]], -1), out)
