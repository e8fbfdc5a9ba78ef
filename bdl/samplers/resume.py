"""What a Sampler saves beyond torch's own state, as tensors and numbers only, and how it comes back."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bdl.errors import BdlWarning, ConfigError
from bdl.samplers.weighting import Histogram

if TYPE_CHECKING:
    from bdl.samplers.sampler import Sampler

_OWN = ("_smoothed", "_full", "_energy", "_multiplier", "_log_weight")


def environment(sampler: Sampler) -> dict[str, Any]:
    """What a bitwise continuation depends on besides the state."""
    return {
        "torch": str(torch.__version__),
        "device": sampler._flat.theta.device.type,
        "threads": torch.get_num_threads(),
    }


def sampler_state(sampler: Sampler) -> dict[str, Any]:
    vectors = set(sampler._vector_fields())
    state = {f.name: getattr(sampler._state, f.name) for f in dataclasses.fields(sampler._state)}
    target = sampler._target
    return {
        "format_version": 1,
        "step": sampler.steps,
        "identity": _identity(sampler),
        "environment": environment(sampler),
        "generator": sampler._generator.get_state(),
        "dynamics": {name: value for name, value in state.items() if name not in vectors},
        "gradient_noise": sampler._noise.state_dict(),
        "psi": None if sampler._histogram is None else sampler._histogram.as_dict(),
        "target": None if target is None else {"temperature": target[0], "zeta": target[1]},
        **{name.strip("_"): getattr(sampler, name) for name in _OWN},
    }


def load_sampler_state(sampler: Sampler, state_dict: dict[str, Any]) -> None:
    if "bdl" not in state_dict:
        raise ConfigError(
            "this optimizer state was not saved by bdl.Sampler: start without it, or from another checkpoint"
        )
    saved = state_dict["bdl"]
    for key, here in _identity(sampler).items():
        if saved["identity"][key] != here:
            raise ConfigError(
                f"the checkpoint was saved with {key} = {saved['identity'][key]}, this sampler has {here}"
            )
    changed = {k: (v, environment(sampler)[k]) for k, v in saved["environment"].items() if v != environment(sampler)[k]}
    if changed:
        what = ", ".join(f"{k} {old} -> {new}" for k, (old, new) in changed.items())
        warnings.warn(
            f"resumed in another environment ({what}): the chain goes on, but not bit for bit", BdlWarning, stacklevel=3
        )
    torch.optim.Optimizer.load_state_dict(sampler, {k: state_dict[k] for k in ("state", "param_groups")})
    _restore_vectors(sampler)
    theta = sampler._flat.theta
    for name, value in saved["dynamics"].items():
        setattr(sampler._state, name, _to(value, theta.device))
    sampler.steps = saved["step"]
    if saved["environment"]["device"] == theta.device.type:
        sampler._generator.set_state(saved["generator"].cpu())
    sampler._noise.load_state_dict(saved["gradient_noise"], theta)
    psi = saved["psi"]
    sampler._histogram = None if psi is None else Histogram(**{k: _to(v, theta.device) for k, v in psi.items()})
    target = saved["target"]
    sampler._target = None if target is None else (_to(target["temperature"], theta.device), target["zeta"])
    for name in _OWN:
        setattr(sampler, name, _to(saved[name.strip("_")], theta.device))
    sampler._distinct = sampler.steps > 0


def _restore_vectors(sampler: Sampler) -> None:
    """torch has put copies into `state[p]`: bring them into the flat state, and make `state[p]` show that again."""
    for name in sampler._vector_fields():
        if name == "theta":
            continue
        views = sampler._flat.split(getattr(sampler._state, name))
        for p, view in zip(sampler._flat.params, views, strict=True):
            view.copy_(sampler.state[p][name])
    sampler._link_state()


def _identity(sampler: Sampler) -> dict[str, Any]:
    return {
        "num_data": sampler.num_data,
        "dynamics": type(sampler.dynamics).__name__,
        "weighting": type(sampler.weighting).__name__,
        "chains": sampler.chains,
        "numbers per chain": sampler._flat.theta.shape[-1],
    }


def _to(value: Any, device: torch.device) -> Any:
    return value.to(device).clone() if isinstance(value, Tensor) else value
