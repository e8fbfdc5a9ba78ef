"""BatchNorm statistics of a sample, recomputed over one epoch of the training data."""

from __future__ import annotations

import copy
from collections.abc import Container, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from bdl.batch import Fed, Inputs, Reader, map_tensors
from bdl.data.loader import TensorBatches, WorkerBatches
from bdl.engine.stack import ChainStack
from bdl.posterior.tensors import stacked_tensors
from bdl.samplers.sampler import Sampler
from bdl.seeding import derive_seed


def refreshed_tensors(
    net: nn.Module, sampler: Sampler, loader: Any, read: Reader, frozen: Container[str] = ()
) -> dict[str, Tensor]:
    """Copies of the parameters and buffers (C, ...), with BatchNorm statistics recomputed over one epoch.

    The epoch is augmented as in training. The network keeps its buffers, and dropout draws from a random stream that
    belongs to this step, so the chain does not change. The tensors `frozen` are left out.
    """
    buffers = {name: b.clone() for name, b in net.named_buffers()}
    device = next(net.parameters()).device
    stack = net if isinstance(net, ChainStack) else None
    method = stack.method if stack else "auto"
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derive_seed("refresh", sampler.seed, sampler.stack, sampler.steps))
        if stack:
            stack.method = "loop"  # a cumulative average reads its count as a number, which vmap does not allow
        update_bn(one_epoch(loader, read, device), Fed(net))
    if stack:
        stack.method = method
    tensors = {k: v.clone() for k, v in stacked_tensors(net, sampler.chains, frozen).items()}
    for name, buffer in net.named_buffers():
        buffer.copy_(buffers[name])
    return tensors


def one_epoch(loader: Any, read: Reader, device: torch.device) -> Iterator[list[Inputs]]:
    """The inputs of a whole epoch of batches as training sees them. The training loader keeps its position."""
    fresh = copy.copy(loader)
    if isinstance(fresh, TensorBatches | WorkerBatches):
        fresh.load_state_dict({"epoch": 0, "index": 0})  # every sample sees the same epoch
        fresh.shard(0, 1)  # every rank sees all of it
    for batch in fresh:
        inputs, _ = read(batch)
        yield [map_tensors(lambda t: t.to(device), inputs)]
