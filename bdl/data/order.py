"""The order of an epoch for an accelerator: drawn on it for several chains, else by a thread of the host."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from bdl.seeding import generator

AHEAD = 2**24  # numbers in the order of an epoch, over all chains, that the host draws ahead: 64 MiB
MANY = 2**15  # numbers from which on an accelerator draws them: 512 chains on 4,435 items take a host 75 ms an epoch


def draw_on_device(
    device: torch.device, key: tuple[int, ...], items: int, batches: int, chains: int, size: int, replacement: bool
) -> Tensor:
    """(batches, chains, size) rows of the items, a stream of the device named by `key` for all chains.

    Without replacement each chain has a permutation of the items: their order by random numbers of 31 bits.
    """
    random = generator(device, "order on device", *key)
    if replacement:
        shape = batches, chains, size
        return torch.randint(items, shape, generator=random, device=device, dtype=torch.int32)
    numbers = torch.randint(2**31 - 1, (chains, items), generator=random, device=device, dtype=torch.int32)
    order = numbers.argsort(dim=1, stable=True)[:, : batches * size].to(torch.int32)
    return order.view(chains, batches, size).transpose(0, 1).contiguous()


@functools.cache
def drawer() -> ThreadPoolExecutor:
    """The thread that draws ahead, while an accelerator works."""
    return ThreadPoolExecutor(1, "bdl-order")
