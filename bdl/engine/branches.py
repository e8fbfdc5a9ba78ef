"""Branches: the networks of a stack side by side on a GPU, each on a stream of its own.

Kernels of one small convolutional network fill a small part of a GPU. vmap makes grouped convolutions of those of
several networks, which cuDNN runs badly. So the networks run on streams that begin together and are joined at the end;
in a CUDA graph they are its parallel branches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

MOST = 8  # networks that run at once: each needs memory for its activations and a workspace of cuDNN's


class Branches:
    """Streams of a device, on which pieces of work run that do not depend on each other.

    Piece i runs on stream i modulo `most`, after piece i - most, whose memory it uses again. On a CPU, and with most=1,
    the pieces run one after another.
    """

    def __init__(self, device: torch.device, most: int = MOST):
        self.device, self.most = device, most
        self._streams: list[Any] = []  # kept, since libraries have a workspace for each stream

    def __reduce__(self) -> Any:
        return Branches, (self.device, self.most)  # streams cannot be copied

    @contextmanager
    def fork(self, pieces: int) -> Iterator[Callable[[int], AbstractContextManager[Any]]]:
        """In the block, branch(i) is the context in which piece i runs.

        The pieces begin after all that was launched before the block. What is launched after the block begins when all
        pieces have ended.
        """
        if self.device.type != "cuda" or self.most == 1:
            yield lambda i: nullcontext()
            return
        count, main = min(pieces, self.most), torch.cuda.current_stream(self.device)
        self._streams += [torch.cuda.Stream(self.device) for _ in range(len(self._streams), count)]
        streams = self._streams[:count]
        for stream in streams:
            stream.wait_stream(main)
        try:
            yield lambda i: torch.cuda.stream(streams[i % count])
        finally:
            for stream in streams:
                main.wait_stream(stream)
