"""What a sampler saves, and whether what was saved can be continued."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from bdl.devices import moved
from bdl.errors import BdlWarning, ConfigError

FORMAT_VERSION = 7


class Saved:
    """A piece of a sampler that stands in a checkpoint and follows the parameters to another device."""

    saved: ClassVar[tuple[str, ...]]  # names of attributes that hold tensors, numbers, dicts of numbers or None

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.saved}

    def load_state_dict(self, state: Mapping[str, Any], theta: Tensor) -> None:
        """theta: the parameters (..., d), to whose device the tensors go."""
        for name in self.saved:
            setattr(self, name, copied(state[name], theta.device))

    def to(self, theta: Tensor) -> None:
        """Follow the parameters, which are theta now."""
        self.load_state_dict(self.state_dict(), theta)


def copied(value: Any, device: torch.device) -> Any:
    """A copy of a tensor on a device, in a type that the device has; other values as they are."""
    if not isinstance(value, Tensor):
        return value
    there = moved(value, device)
    return there.clone() if there is value else there


def environment(device: torch.device) -> dict[str, Any]:
    """What must not change between saving and loading if the chain is to continue bit for bit."""
    here = {"torch": str(torch.__version__), "device": device.type, "threads": torch.get_num_threads()}
    return here | ({"GPU": torch.cuda.get_device_name(device)} if device.type == "cuda" else {})


def to_save(identity: Mapping[str, Any], device: torch.device, pieces: Mapping[str, Any]) -> dict[str, Any]:
    """What bdl adds to the state dict of an optimizer: tensors and numbers."""
    states = {name: piece.state_dict() for name, piece in pieces.items()}
    return {"format_version": FORMAT_VERSION, "identity": identity, "environment": environment(device), **states}


def check_saved(state_dict: Mapping[str, Any], identity: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The part of a state dict that bdl wrote, once it is known to belong to a sampler of this identity."""
    if "bdl" not in state_dict:
        raise ConfigError(
            "this optimizer state was not saved by bdl.Sampler: start without it, or from another checkpoint"
        )
    saved = state_dict["bdl"]
    if (version := saved["format_version"]) != FORMAT_VERSION:
        raise ConfigError(f"sampler state of format {version}; this bdl reads {FORMAT_VERSION} only: start afresh")
    for key, here in identity.items():
        there = saved["identity"].get(key)  # keys younger than a checkpoint stand for null
        if there != here:
            raise ConfigError(
                f"the checkpoint was saved with {key} = {there}, this sampler has {here}: restore it, or start afresh"
            )
    _warn_of_environment(environment(device), saved["environment"])
    return saved


def _warn_of_environment(here: dict[str, Any], saved: Mapping[str, Any]) -> None:
    there = {**here, **saved}  # states of the CPU, and older ones, know of no GPU
    changed = [f"{k} {there[k]} -> {v}" for k, v in here.items() if there[k] != v]
    if changed:
        warnings.warn(
            f"resumed in another environment ({', '.join(changed)}): the chain continues, but not bit for bit",
            BdlWarning,
            stacklevel=5,
        )
