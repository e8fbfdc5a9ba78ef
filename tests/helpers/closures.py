"""The closure that `Sampler.step` takes, of a loss."""

from collections.abc import Callable

from torch import Tensor

import bdl


def closure_of(sampler: bdl.Sampler, loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """What computes the loss, () or one for each chain, and back-propagates it."""

    def closure() -> Tensor:
        sampler.zero_grad()
        value = loss()
        value.sum().backward()
        return value

    return closure
