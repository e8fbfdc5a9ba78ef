"""Gradients in CUDA graphs: launched with the energy of one step, or as a part of whole steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from bdl.batch import Inputs
from bdl.engine.gradient import Gradient
from bdl.engine.graphs import Graphs, Recorder

FEW = 2**20  # rows for which there is always room, so that a longer walk needs no other graphs


class Recorded(Gradient):
    """A gradient whose kernels, which never wait for the device, a CUDA graph launches together with the energy's.

    walks_only: whether single steps launch none, and read a batch where it is.
    """

    def __init__(self, gradient: Gradient, record: Recorder, required: bool = False, walks_only: bool = False):
        self.params, self._gradient, self._graphs = gradient.params, gradient, Graphs(record, required)
        self._walks_only, self._whole_steps = walks_only, Graphs(record, required)
        self._places: list[Tensor] = []  # at most one: where the rows of a walk lie
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
        places: holds the tensor where graphs read the rows, once there is one.
        x, y, rows, chains: see `Gradient.walk` and `Gradient.batches`.
    """

    def __init__(
        self, gradient: Gradient, graphs: Graphs, places: list[Tensor], x: Tensor, y: Tensor,
        rows: Tensor | None, chains: int | None,
    ):  # fmt: skip
        self._gradient, self._graphs, self._places = gradient, graphs, places
        self._x, self._y, self._rows, self._chains = x, y, rows, chains
        self._taken: Tensor | None = None  # (steps, ...) the rows of the steps of a graph

    @property
    def idle(self) -> Sequence[int]:
        """Parameters for which the last `write` found no gradient."""
        return self._gradient.idle

    def hold(self) -> None:
        """Put the rows of all steps where graphs read them."""
        rows = self._rows
        if rows is None:
            return
        if not self._places or self._places[0].shape[1:] != rows.shape[1:] or len(self._places[0]) < len(rows):
            room = max(len(rows), FEW // rows[0].numel())
            self._places[:] = [rows.new_empty(1 << (room - 1).bit_length(), *rows.shape[1:])]
        self._places[0][: len(rows)].copy_(rows)

    def take(self, index: Tensor) -> None:
        """Let the next steps have the batches of these numbers (steps,). A graph may hold the kernels."""
        self._taken = None if self._rows is None else self._places[0].index_select(0, index)

    def write(self, k: int, out: Sequence[Tensor]) -> Tensor:
        """`Gradient.write` on the k-th batch that was taken."""
        if self._taken is None:  # all items, in their order
            x, y = (v if self._chains is None else v.expand(self._chains, *v.shape) for v in (self._x, self._y))
        else:
            rows = self._taken[k]
            x, y = (v.index_select(0, rows.flatten()).unflatten(0, rows.shape) for v in (self._x, self._y))
        return self._gradient.write(x, y, out)

    def run(
        self, work: Callable[[], Any], key: Hashable, reads: Sequence[object], streams: Sequence[torch.Generator]
    ) -> Any:
        """See `Graphs.run`. reads: what the kernels use besides the batches."""
        return self._graphs.run(work, key, (*reads, *streams, self._x, self._y, *self._places), streams)
