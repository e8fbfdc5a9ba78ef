"""Streams of the simulated accelerator: in which order their work is certain, and who touches memory out of order.

The kernels of the simulation run one after another. A device may run those of two streams in any order, but where one
stream has waited for the other. Each stream has a clock for each stream: how much of that one's work is done before its
own next kernel begins (Lamport's vector clocks).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class Stream:
    """Stands for torch.cuda.Stream."""

    def __init__(self, device: Any = None, priority: int = 0):
        self.device, self.clock = device, {self: 0}
        Streams.present.all.append(self)

    def wait_stream(self, other: Stream) -> None:
        for stream, time in other.clock.items():
            self.clock[stream] = max(self.clock.get(stream, 0), time)
        if other in Streams.present.captured:
            Streams.present.captured.append(self)


class Streams:
    """All streams of a device. Kernels are compared from the time on at which there is more than one."""

    present: Streams

    def __init__(self) -> None:
        Streams.present = self
        self.all: list[Stream] = []
        self.captured: list[Stream] = []  # those that the capture under way records
        self.capturing = False
        self.main = self.current = Stream()
        self._memory: dict[int, tuple[StorageWeakRef, dict[Any, Any]]] = {}

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """Stands for torch.cuda.stream."""
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def begin_capture(self) -> None:
        self.capturing, self.captured = True, [self.current]

    def end_capture(self) -> None:
        """Raise RuntimeError for a branch that nobody has joined, as CUDA does."""
        captured, self.captured, self.capturing = self.captured, [], False
        if any(self.current.clock.get(stream, 0) < stream.clock[stream] for stream in captured):
            raise RuntimeError("capturing stream has unjoined work")

    def synchronise(self) -> None:
        """The host waits for the present stream: what is launched from now on begins after its work."""
        for stream in self.all:
            stream.wait_stream(self.current)

    def see(self, reads: list[Tensor], writes: list[Tensor], what: str) -> None:
        """Note a kernel. Raise RuntimeError where the order of two accesses of one memory is left to chance."""
        stream = self.current
        if self.capturing and stream not in self.captured:
            raise RuntimeError(f"operation not permitted: {what} runs on a stream that the capture does not know")
        stream.clock[stream] += 1
        for tensor, write in [*((t, False) for t in reads), *((t, True) for t in writes)]:
            if tensor.numel():
                self._touch(tensor, write, what)

    def _touch(self, tensor: Tensor, write: bool, what: str) -> None:
        key = tensor.untyped_storage()._cdata
        found = self._memory.get(key)
        if found is None or found[0].expired():
            found = self._memory[key] = (StorageWeakRef(tensor.untyped_storage()), {})
        size, known, stream = tensor.element_size(), found[1], self.current
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        start, end = tensor.storage_offset() * size, (tensor.storage_offset() + last + 1) * size
        for (a, b, other, wrote), (time, line) in list(known.items()):
            if a < end and start < b and (write or wrote):
                if stream.clock.get(other, 0) < time:
                    raise RuntimeError(f"race: {what} and {line} touch the same memory on two streams")
                if write and start <= a and b <= end:
                    del known[a, b, other, wrote]
        known[start, end, stream, write] = stream.clock[stream], what
