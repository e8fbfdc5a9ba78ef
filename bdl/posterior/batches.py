"""Batches: inputs and labels that every pass over the samples sees in the same order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler

from bdl.errors import ConfigError
from bdl.posterior.forward import Forward


class Batches:
    """Batches (x, y or None) that every pass gives in the same order; a shuffling loader is read once and kept.

    Tensors, and loaders over tensors (`bdl.data.TensorSlices`), are moved to the device once, not for every sample.
    """

    def __init__(self, data: Tensor | Iterable[Any], device: torch.device):
        if hasattr(data, "to"):
            data = data.to(device)  # type: ignore[union-attr]
        fixed = isinstance(data, Tensor) or getattr(data, "shuffles", True) is False
        fixed = fixed or (isinstance(data, DataLoader) and isinstance(data.sampler, SequentialSampler))
        self._data: Any = [data] if isinstance(data, Tensor) else data if fixed else list(data)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        for batch in self._data:
            parts = [batch] if isinstance(batch, Tensor) else batch
            yield parts[0], parts[1] if len(parts) > 1 else None

    def sizes(self) -> tuple[Tensor, int]:
        """The largest batch of inputs, and the number of items in all batches."""
        largest, items = torch.empty(0), 0
        for x, _ in self:
            largest, items = x if len(x) > len(largest) else largest, items + len(x)
        return largest, items

    def outputs(self, forward: Forward, tensors: Mapping[str, Tensor]) -> Tensor:
        """(k, n, ...) float32 outputs of k networks for all items, on the CPU."""
        outputs = [forward(tensors, x.to(forward.device)) for x, _ in self]
        if len(outputs) == 1:
            return outputs[0].float().cpu()
        if outputs[0].ndim != 3:
            return torch.cat(outputs, 1).float().cpu()
        return torch.cat([o.mT for o in outputs], -1).mT.float().cpu()  # in the order in memory that Forward chose

    def labels(self) -> Tensor:
        """(n,) labels of all batches, on the CPU. Raises ConfigError if a batch has none."""
        labels = [y for _, y in self]
        if not labels or any(y is None for y in labels):
            raise ConfigError("evaluation needs a loader of (x, y) batches")
        return torch.cat([y for y in labels if y is not None]).cpu()
