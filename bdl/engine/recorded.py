"""Gradients in CUDA graphs: launched with the energy of one step, or as a part of whole steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from bdl.batch import Inputs
from bdl.engine.gradient import Gradient
from bdl.engine.graphs import Graphs, Recorder


class Recorded(Gradient):
    """A gradient whose kernels, which never wait for the device, a CUDA graph launches together with the energy's.

    walks_only: whether single steps launch none, and read a batch where it is.
    """

    def __init__(self, gradient: Gradient, record: Recorder, required: bool = False, walks_only: bool = False):
        self.params, self._gradient, self._graphs = gradient.params, gradient, Graphs(record, required)
        self._walks_only, self._whole_steps = walks_only, Graphs(record, required)
        self._places: dict[int, Tensor] = {}  # of the rows of so many batches
        self.launch = None if walks_only else self._graphs.run

    @property
    def walks(self) -> bool:  # type: ignore[override]
        return self.params[0].device.type != "cpu"

    def batches(self, x: Tensor, y: Tensor, rows: Tensor | None, chains: int | None) -> HeldBatches:
        return HeldBatches(self._gradient, self._whole_steps, self._places, x, y, rows, chains)

    @property
    def idle(self) -> Sequence[int]:  # type: ignore[override]
        """Those that were found when the kernels were recorded; the same kernels find the same."""
        return self._gradient.idle

    def __reduce__(self) -> Any:
        graphs = self._graphs
        return Recorded, (self._gradient, graphs.record, graphs.required, self._walks_only)  # with memory of its own

    def hold(self, x: Inputs, y: Tensor) -> tuple[Inputs, Tensor]:
        if self._walks_only:
            return x, y
        x, y = self._graphs.hold(x, y)
        return x, y

    def write(self, x: Inputs, y: Tensor, out: Sequence[Tensor]) -> Tensor:
        return self._gradient.write(x, y, out)

    def losses(self, x: Inputs, y: Tensor) -> Tensor:
        return self._gradient.losses(*self.hold(x, y))  # kernels may depend on the alignment of memory


class HeldBatches:
    """The batches of a walk's steps, whose rows lie where the kernels of a graph read them.

    Args:
        gradient: finds the gradient of a batch.
        graphs: those of whole steps.
        places: of the rows, by their number of batches; it is filled.
        x, y, rows, chains: see `Gradient.walk` and `Gradient.batches`.
    """

    def __init__(
        self, gradient: Gradient, graphs: Graphs, places: dict[int, Tensor], x: Tensor, y: Tensor,
        rows: Tensor | None, chains: int | None,
    ):  # fmt: skip
        self._gradient, self._graphs, self._places = gradient, graphs, places
        self._x, self._y, self._rows, self._chains = x, y, rows, chains
        self._held: Tensor | None = None  # the rows of the next steps

    @property
    def idle(self) -> Sequence[int]:
        """Parameters for which the last `write` found no gradient."""
        return self._gradient.idle

    def hold(self, first: int, steps: int) -> None:
        """Let the next steps have the batches from number `first` on."""
        if self._rows is None:
            return
        rows = self._rows[first : first + steps]
        if steps not in self._places or self._places[steps].shape != rows.shape:
            self._places[steps] = torch.empty_like(rows, memory_format=torch.contiguous_format)
        self._held = self._places[steps].copy_(rows)

    def write(self, k: int, out: Sequence[Tensor]) -> Tensor:
        """`Gradient.write` on the k-th batch that is held."""
        batch = [v if self._chains is None else v.expand(self._chains, *v.shape) for v in (self._x, self._y)]
        if self._held is not None:
            rows = self._held[k]
            batch = [v.index_select(0, rows.flatten()).unflatten(0, rows.shape) for v in (self._x, self._y)]
        return self._gradient.write(*batch, out)

    def run(
        self, work: Callable[[], Any], key: Hashable, reads: Sequence[object], streams: Sequence[torch.Generator]
    ) -> Any:
        """See `Graphs.run`. reads: what the kernels use besides the batches."""
        return self._graphs.run(work, key, (*reads, *streams, self._x, self._y, self._held), streams)
