"""Whether a saved sampler can be continued, and what a bitwise continuation depends on besides its state."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from bdl.errors import BdlWarning, ConfigError
from bdl.samplers.chain import Chain

FORMAT_VERSION = 5


def environment(device: torch.device) -> dict[str, Any]:
    """What must not change between saving and loading if the chain is to continue bit for bit."""
    return {"torch": str(torch.__version__), "device": device.type, "threads": torch.get_num_threads()}


def refuse_copy() -> NoReturn:
    raise ConfigError(
        "a Sampler cannot be copied or pickled, because its functions, such as full_loss, would still belong to the "
        "original's network: build another Sampler and load state_dict() into it"
    )


def to_save(identity: Mapping[str, Any], chain: Chain, pieces: Mapping[str, Any]) -> dict[str, Any]:
    """What bdl adds to the state dict of an optimizer: tensors and numbers."""
    return {
        "format_version": FORMAT_VERSION,
        "identity": dict(identity),
        "environment": environment(chain.theta.device),
        "chain": chain.state_dict(),
        **{name: piece.state_dict() for name, piece in pieces.items()},
    }


def check_saved(state_dict: Mapping[str, Any], identity: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The part of a state dict that bdl wrote, once it is known to belong to a sampler of this identity.

    Raises ConfigError for another optimizer's state, another format, or another sampler. Warns of another environment.
    """
    if "bdl" not in state_dict:
        raise ConfigError(
            "this optimizer state was not saved by bdl.Sampler: start without it, or from another checkpoint"
        )
    saved = state_dict["bdl"]
    if saved["format_version"] != FORMAT_VERSION:
        raise ConfigError(
            f"sampler state of format {saved['format_version']}; this bdl reads {FORMAT_VERSION} only: start afresh"
        )
    for key, here in identity.items():
        if saved["identity"][key] != here:
            raise ConfigError(
                f"the checkpoint was saved with {key} = {saved['identity'][key]}, this sampler has {here}: "
                "restore it, or start afresh"
            )
    here = environment(device)
    changed = [f"{k} {saved['environment'][k]} -> {v}" for k, v in here.items() if saved["environment"][k] != v]
    if changed:
        warnings.warn(
            f"resumed in another environment ({', '.join(changed)}): the chain continues, but not bit for bit",
            BdlWarning,
            stacklevel=4,
        )
    return saved
