"""The frozen part of a run: the tensors that no sample holds, in one file."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bdl.engine.functional import named_tensors
from bdl.engine.stack import ChainStack
from bdl.frozen import frozen_tensors
from bdl.posterior.tensors import as_bytes
from bdl.snapshot import Sampled

FILE = "frozen.safetensors"  # in the folder of the samples
KEY = "frozen"  # in target.json, its sha256 and the shapes of its tensors; absent where everything is sampled


class FrozenPart:
    """The tensors of a network, or of a stack of chains, that do not change while it is sampled.

    It is empty where everything is sampled.

    Args:
        net: the network, or a `bdl.ChainStack`, whose chains share the frozen part.
        sampler: whose parameters are those of the network. A stack of bdl needs none.
        names: of the frozen tensors, where an earlier sample has decided them; None finds them.

    Attributes:
        tensors: by name, without an axis of chains; those of the network itself.
    """

    def __init__(self, net: nn.Module, sampler: Sampled | None = None, names: Collection[str] | None = None):
        if isinstance(net, ChainStack):
            net, names = net.net, net.frozen_names
        if names is not None:
            present = named_tensors(net)
            tensors = {name: present[name].detach() for name in names}
        elif sampler is None or sampler.chains is not None:
            tensors = {}  # in a stack of one's own every tensor has an axis of chains, and stays in the samples
        else:
            tensors = frozen_tensors(net, {id(p) for p in sampler.sampled})
        self.tensors = dict(sorted(tensors.items()))
        self._sha256: str | None = None
        self._seen: list[tuple[int, int]] = []

    def entry(self) -> dict[str, Any]:
        """What target.json says of it; nothing where everything is sampled."""
        shapes = {name: list(t.shape) for name, t in self.tensors.items()}
        return {KEY: {"sha256": self.sha256(), "shapes": shapes}} if shapes else {}

    def sha256(self) -> str | None:
        """The checksum of its file, computed again only if somebody has written to a tensor; None without tensors."""
        seen = [(t.data_ptr(), t._version) for t in self.tensors.values()]
        if seen != self._seen:
            self._sha256, self._seen = hashlib.sha256(self.as_bytes()).hexdigest(), seen
        return self._sha256

    def as_bytes(self) -> bytes:
        """The content of its file."""
        return as_bytes({k: v.clone() for k, v in self.tensors.items()})  # tied tensors may share their memory


def frozen_entry(target: Mapping[str, Any]) -> Mapping[str, Any]:
    """What target.json says of the frozen part, {} where everything was sampled."""
    return target.get(KEY) or {}


def frozen_names(target: Mapping[str, Any]) -> Collection[str]:
    """The names of the tensors that target.json calls frozen."""
    return frozen_entry(target).get("shapes", {})


def first_difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> str:
    """The first name whose tensor differs, in values, or in its type alone."""
    same = lambda name: name in a and name in b and torch.equal(a[name].cpu(), b[name])  # noqa: E731
    return next((name for name in sorted({*a, *b}) if not same(name)), "a type")
