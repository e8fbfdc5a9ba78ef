"""A loader over tensors in the order of the data, for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

LARGEST = 2**18  # numbers in a batch on a CPU; 85 CIFAR images are the fastest for ResNet20


class TensorSlices:
    """A loader over tensors in the order of the data, for evaluation. It yields transform(x) (<=B, ...), y (<=B, ...).

    >>> [len(y) for x, y in TensorSlices(torch.zeros(10, 3), torch.arange(10), batch_size=4)]
    [4, 4, 2]

    Args:
        x, y: the items and their labels.
        batch_size: B; None means 4096, fewer for large items on a CPU, and what `bound` allows on an accelerator.
        transform: makes the network's input of stored items.
    """

    shuffles = False
    in_memory = True  # any thread may read it

    def __init__(
        self, x: Tensor, y: Tensor, batch_size: int | None = None, transform: Callable[[Tensor], Tensor] | None = None
    ):
        self.x, self.y, self.transform, self._batch_size = x, y, transform, batch_size
        self._most: int | None = None

    @property
    def batch_size(self) -> int:
        most = LARGEST // max(1, self.x[:1].numel()) if self.x.device.type == "cpu" else 4096
        return self._batch_size or min(4096, max(1, most if self._most is None else self._most))

    def bound(self, most: int) -> TensorSlices:
        """Let a batch have at most so many items, wherever they are stored, unless its size was given."""
        self._most = most
        return self

    @property
    def dataset(self) -> Tensor:
        return self.x

    def __len__(self) -> int:
        return -(-len(self.x) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in zip(self.x.split(self.batch_size), self.y.split(self.batch_size), strict=True):
            yield x if self.transform is None else self.transform(x), y

    def to(self, device: torch.device | str) -> TensorSlices:
        self.x, self.y = self.x.to(device), self.y.to(device)
        return self
