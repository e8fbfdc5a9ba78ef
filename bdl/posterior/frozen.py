"""The frozen part of a run: the tensors that no sample holds, in one file, and known by its checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from bdl.disk.files import read_file
from bdl.engine.stack import ChainStack
from bdl.errors import StoreError
from bdl.frozen import frozen_tensors
from bdl.snapshot import Sampled

FILE = "frozen.safetensors"  # in the folder of the samples
KEY = "frozen"  # in target.json


class FrozenPart:
    """The tensors of a network, or of a stack of chains, that do not change while it is sampled.

    It is empty where everything is sampled. `check` is cheap while nobody writes to the tensors.

    Args:
        net: the network, or a `bdl.ChainStack`, whose chains share the frozen part.
        sampler: whose parameters are those of the network. A stack of bdl needs none.
        names: of the frozen tensors, where an earlier sample has decided them; None finds them.

    Attributes:
        tensors: by name, without an axis of chains; those of the network itself.
    """

    def __init__(self, net: nn.Module, sampler: Sampled | None = None, names: Collection[str] | None = None):
        self.tensors = _tensors(net, sampler, names)
        self._sha256 = ""
        self._seen: list[tuple[int, int]] = []

    def entry(self) -> dict[str, Any]:
        """What target.json says of it; nothing where everything is sampled."""
        if not self.tensors:
            return {}
        shapes = {name: list(t.shape) for name, t in self.tensors.items()}
        return {KEY: {"sha256": self.sha256(), "shapes": shapes}}

    def sha256(self) -> str:
        """The checksum of its file, computed again only if somebody has written to a tensor."""
        seen = [(t.data_ptr(), t._version) for t in self.tensors.values()]
        if not self._sha256 or seen != self._seen:
            self._sha256, self._seen = hashlib.sha256(self.as_bytes()).hexdigest(), seen
        return self._sha256

    def as_bytes(self) -> bytes:
        """The content of its file."""
        return safetensors.torch.save({k: v.to("cpu", copy=True).contiguous() for k, v in self.tensors.items()})

    def check(self, folder: Path, target: Mapping[str, Any]) -> None:
        """Raise StoreError, which names the first tensor, if it is not the frozen part of the samples in the folder."""
        recorded = target.get(KEY)
        if (recorded or {}).get("sha256") == (self.sha256() if self.tensors else None):
            return
        name = _first_difference(self.tensors, read_frozen(folder, target))
        raise StoreError(
            f"the frozen part of the network is not that of the samples in {folder}: {name} differs; sample in another "
            "folder, or restore it. If it changes by itself, put its module into eval mode, or let it train by "
            'frozen="train"'
        )


def frozen_names(target: Mapping[str, Any]) -> Collection[str]:
    """The names of the tensors that target.json calls frozen."""
    return (target.get(KEY) or {"shapes": {}})["shapes"]


def read_frozen(folder: Path, target: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of the frozen part of a run, {} where everything was sampled.

    Raises StoreError if the file is missing or is not the one that target.json knows.
    """
    if (recorded := target.get(KEY)) is None:
        return {}
    path = folder / FILE
    try:
        data = read_file(path)
    except OSError as error:
        raise StoreError(
            f"the frozen part of the network, {path}, cannot be read ({error.strerror}): restore it"
        ) from error
    if hashlib.sha256(data).hexdigest() != recorded["sha256"]:
        raise StoreError(f"the frozen part of the network, {path}, was altered: its sha256 is not that of target.json")
    return safetensors.torch.load(data)


def _tensors(net: nn.Module, sampler: Sampled | None, names: Collection[str] | None) -> dict[str, Tensor]:
    if isinstance(net, ChainStack):
        inner: Any = {**dict(net.net.named_parameters()), **dict(net.net.named_buffers())}
        return {name: inner[name].detach() for name in sorted(net.frozen_names)}
    if names is not None:
        present: Any = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        return {name: present[name].detach() for name in sorted(names)}
    if sampler is None or sampler.chains is not None:
        return {}  # in a stack of one's own every tensor has an axis of chains, and stays in the samples
    return dict(sorted(frozen_tensors(net, {id(p) for p in sampler.sampled}).items()))


def _first_difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> str:
    same = lambda name: name in a and name in b and torch.equal(a[name].cpu(), b[name])  # noqa: E731
    return next((name for name in sorted({*a, *b}) if not same(name)), "a type")
