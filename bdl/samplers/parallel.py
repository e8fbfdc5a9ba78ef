"""One chain on several ranks, whose states and sizes of batches are compared."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from bdl.errors import ConfigError, ReplicaError

COMPARE_EVERY = 100  # steps; a comparison costs a pass over the state, an all-reduce of two numbers, a device sync
PART, PARTS = 2**16, 64  # a tensor is hashed in parts of so many numbers at least, in so many parts at most
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_GOLDEN = -0x61C8864680B583EB  # 2^64 / golden ratio as a signed number; its multiples are spread evenly


def compare_when_due(step: int, tensors: Iterable[Tensor], group: dist.ProcessGroup) -> None:
    """Raise ReplicaError on all ranks if bits differ between them: after step 1, and every COMPARE_EVERY steps."""
    if step != 1 and step % COMPARE_EVERY:
        return
    mine = fingerprint(tensors)
    ends = torch.stack([mine, ~mine])  # ~ reverses the order: one minimum then finds lowest and highest
    dist.all_reduce(ends, dist.ReduceOp.MIN, group=group)
    lowest, highest = ends[0], ~ends[1]
    if bool(lowest != highest):
        raise ReplicaError(
            f"the ranks of one chain hold different numbers after step {step}: their gradients are not averaged "
            "(Lightning's ddp does it), or one rank changed its parameters alone; continue from an earlier checkpoint"
        )


def alike(items: int, device: torch.device, group: dist.ProcessGroup) -> int:
    """The items of a step's batch on each rank; raises ConfigError on all ranks where they differ.

    The ranks' mean gradient then is that of no batch: an item would count more on the rank that has fewer.
    """
    ends = torch.tensor([items, -items], device=device)
    dist.all_reduce(ends, dist.ReduceOp.MIN, group=group)
    least, most = (abs(end) for end in ends.tolist())  # one device sync
    if least != most:
        raise ConfigError(
            f"the batches of one step hold {least} items on one rank and {most} on another, so that those of the "
            "short one count more: make them alike, as DistributedSampler does, or drop_last=True of the DataLoaders"
        )
    return items


def fingerprint(tensors: Iterable[Tensor]) -> Tensor:
    """() int64 hash of the bits of tensors: their sum modulo 2^64, each times an odd factor that names its place.

    An odd factor has an inverse, so that a change at any one place changes the hash. Integers have the same sum in any
    order, and therefore on any device.
    """
    sums, offset = [], 0
    for tensor in tensors:
        whole = tensor.detach().reshape(-1).view(_INTEGERS[tensor.element_size()])
        for bits in whole.split(max(PART, -(-len(whole) // PARTS))):  # each number takes 32 bytes meanwhile
            places = torch.arange(offset, offset + len(bits), device=bits.device)
            sums.append((bits.long() * (places * _GOLDEN | 1)).sum())
            offset += len(bits)
    return torch.stack(sums).sum()
