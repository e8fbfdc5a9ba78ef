"""CUDA graphs: kernels that are recorded once and from then on launched together.

Launching the short kernels of a small network one by one takes longer than running them. A graph launches all of them
with one call. It repeats the same kernels on the same memory. Whatever differs from step to step must therefore be in
tensors that stay where they are, and Python does not run again.

A graph holds either the loss, the energy and the gradient of a batch, or whole steps (`bdl.samplers.whole_steps`). In
both cases a step with a graph computes what a step without one does, to the bit.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from bdl.errors import BdlWarning, ConfigError

T = TypeVar("T")

# Records the kernels of a function without running them, with the random streams from which they draw. Returns what
# launches them, and the function's result, whose tensors every launch overwrites.
Recorder = Callable[[Callable[[], Any], Sequence[torch.Generator]], tuple[Callable[[], object], Any]]


def record_on_cuda(work: Callable[[], T], streams: Sequence[torch.Generator] = ()) -> tuple[Callable[[], object], T]:
    """A `Recorder` for GPUs. Raises ConfigError for work that waits for the device or cannot be recorded otherwise.

    A launch moves the streams on as the same kernels do outside of a graph, and draws the same numbers.
    """
    graph = torch.cuda.CUDAGraph()
    for stream in streams:
        graph.register_generator_state(stream)
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the device meanwhile
            result = work()
    except RuntimeError as error:
        raise ConfigError(
            f"the step cannot be recorded as a CUDA graph ({str(error).splitlines()[0]}): compile=false runs without"
        ) from error
    return graph.replay, result


def recorder_for(device: torch.device) -> Recorder | None:
    """The recorder of a device; None where there are no graphs."""
    return record_on_cuda if device.type == "cuda" else None


class Graphs:
    """The graphs of one network's steps, and the batch that they read.

    A graph is recorded anew when the batch has another shape, or when a tensor that the graph uses has been replaced.

    Args:
        record: records work; it raises ConfigError for work that cannot be recorded.
        required: whether such an error ends the run. Otherwise it is a BdlWarning, and all work runs kernel by kernel.
    """

    def __init__(self, record: Recorder, required: bool = False):
        self.record, self.required = record, required
        self._kinds: list[Any] = []  # shape, strides, type and device of the batch's tensors
        self._batch: tuple[Tensor, ...] = ()
        self._reads: dict[Hashable, Sequence[object]] = {}  # what a graph reads, by the kind of work
        self._graphs: dict[Hashable, tuple[Callable[[], object], Any] | None] = {}  # None: has run once, unrecorded
        self._plain = False  # nothing is recorded, because something could not be

    def __reduce__(self) -> Any:
        return Graphs, (self.record, self.required)  # a copy reads memory of its own

    @torch.no_grad()
    def hold(self, *batch: Tensor) -> tuple[Tensor, ...]:
        """The batch, copied into tensors that stay where they are."""
        kinds = [(t.shape, t.stride(), t.dtype, t.device) for t in batch]
        if kinds != self._kinds:
            self._kinds, self._batch = kinds, tuple(map(torch.empty_like, batch))
            self._graphs.clear()
        for mine, given in zip(self._batch, batch, strict=True):
            mine.copy_(given)
        return self._batch

    def run(
        self, work: Callable[[], T], key: Hashable, reads: Sequence[object], streams: Sequence[torch.Generator] = ()
    ) -> T:
        """The result of `work`. Its tensors are overwritten by the next run with this key.

        The first run with a key is an ordinary call, in which libraries allocate what they need. The second one is
        recorded, and all further ones launch the record.

        Args:
            work: kernels that read the held batch and `reads`, in the same order at every call.
            key: names the kind of work. Different kinds have graphs of their own.
            reads: what the kernels use besides the batch. Other objects than last time invalidate the graph.
            streams: the generators from which they draw; they belong to `reads` too.
        """
        if self._plain:
            return work()
        known = self._reads.get(key, ())
        if key not in self._graphs or len(reads) != len(known) or not all(map(operator.is_, reads, known)):
            self._reads[key], self._graphs[key] = reads, None
            return work()
        graph = self._graphs[key]
        if graph is None:
            try:
                graph = self._graphs[key] = self.record(work, streams)
            except ConfigError as error:
                if self.required:
                    raise
                self._plain = True
                self._graphs.clear()
                warnings.warn(f"{error}; its kernels run one by one", BdlWarning, stacklevel=2)
                return work()
        launch, result = graph
        launch()
        return result
