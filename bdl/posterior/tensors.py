"""The tensors of the chains of a network, as a sample file holds them."""

from __future__ import annotations

from collections.abc import Container, Mapping

import safetensors.torch
from torch import Tensor, nn

from bdl.engine.functional import named_tensors
from bdl.engine.stack import ChainStack


def stacked_tensors(net: nn.Module, chains: int | None, frozen: Container[str] = ()) -> dict[str, Tensor]:
    """Views of all parameters and buffers (C, ...), by the names that the plain network gives them; C = 1 for a chain.

    Args:
        chains: C if the tensors carry a leading axis of chains, None if they belong to a single chain.
        frozen: names that are left out, besides those that the chains of a stack share.
    """
    inner, shared = (net.net, net.frozen_names) if isinstance(net, ChainStack) else (net, ())
    kept = {k: v.detach() for k, v in named_tensors(inner).items() if k not in frozen and k not in shared}
    return {k: v if chains is not None else v.unsqueeze(0) for k, v in kept.items()}


def as_bytes(tensors: Mapping[str, Tensor], about: dict[str, str] | None = None) -> bytes:
    """The content of a safetensors file, with `about` in its header."""
    return safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, about)


def copies_of(rows: list[int], tensors: dict[str, Tensor], chains: int | None) -> dict[str, Tensor]:
    """Copies on the CPU of these rows of the tensors (C, ...)."""
    which = slice(None) if len(rows) == (chains or 1) else rows
    return {k: v[which].to("cpu", copy=True) for k, v in tensors.items()}
