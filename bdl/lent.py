"""Gradients that autograd adds up where they are needed, so that no second copy of a large network's is alive."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bdl.torch_private import versions

FROM = 2**20  # numbers in all gradients. Below, stealing autograd's tensors and one copy of all takes fewer kernels


class LentGradients:
    """Lends parameters the places (tensors of their shapes) in which their gradients are wanted.

    Call `lend` before the backward pass, and `idle` after it.
    """

    def __init__(self, params: Sequence[Tensor], places: Sequence[Tensor]):
        self._params, self._places = params, places
        self._lent = [place.data for place in places]  # the same memory, with a version of its own
        self._versions: list[int] = []

    @staticmethod
    def pays(places: Sequence[Tensor]) -> bool:
        """Whether the gradients are large enough."""
        return sum(place.numel() for place in places) >= FROM

    @torch.no_grad()
    def lend(self) -> None:
        for p, grad in zip(self._params, self._lent, strict=True):
            grad.zero_()
            p.grad = grad
        self._versions = versions(self._lent)

    @torch.no_grad()
    def idle(self) -> list[int]:
        """The positions of parameters without a gradient, whose places hold zeros. A gradient elsewhere is copied."""
        found, now = [], versions(self._lent)
        for i, (p, grad) in enumerate(zip(self._params, self._lent, strict=True)):
            if p.grad is grad:
                found += [i] if now[i] == self._versions[i] else []
            elif p.grad is None:
                grad.zero_()
                found.append(i)
            else:
                grad.copy_(p.grad)
        return found

    @property
    def are_lent(self) -> bool:
        """Whether a parameter holds its place; not so after somebody else's `zero_grad`."""
        return bool(self._versions) and any(p.grad is grad for p, grad in zip(self._params, self._lent, strict=True))
