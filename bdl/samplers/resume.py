"""What a Sampler saves beyond torch's own state, as tensors and numbers only, and how it comes back."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import torch

from bdl.errors import BdlWarning, ConfigError
from bdl.samplers.divergence import DivergenceWatch
from bdl.samplers.weighting.reweighting import to

if TYPE_CHECKING:
    from bdl.samplers.sampler import Sampler

FORMAT_VERSION = 2


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
    return {
        "format_version": FORMAT_VERSION,
        "step": sampler.steps,
        "identity": _identity(sampler),
        "environment": environment(sampler),
        "generator": sampler._generator.get_state(),
        "dynamics": {name: value for name, value in state.items() if name not in vectors},
        "gradient_noise": sampler._noise.state_dict(),
        "energy": sampler._energy,
        "psi": sampler._reweighting.state_dict(),
        "replicas": None if sampler._replicas is None else sampler._replicas.state_dict(),
    }


def load_sampler_state(sampler: Sampler, state_dict: dict[str, Any]) -> None:
    if "bdl" not in state_dict:
        raise ConfigError(
            "this optimizer state was not saved by bdl.Sampler: start without it, or from another checkpoint"
        )
    saved = state_dict["bdl"]
    if saved["format_version"] != FORMAT_VERSION:
        raise ConfigError(
            f"sampler state of format {saved['format_version']}; this bdl reads format {FORMAT_VERSION} only"
        )
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
        setattr(sampler._state, name, to(value, theta.device))
    sampler.steps = saved["step"]
    sampler._divergence = DivergenceWatch(theta.device)  # what was noted of another chain's steps is forgotten
    sampler._left_at = None
    if saved["environment"]["device"] == theta.device.type:
        sampler._generator.set_state(saved["generator"].cpu())
    sampler._noise.load_state_dict(saved["gradient_noise"], theta)
    sampler._energy = to(saved["energy"], theta.device)
    sampler._reweighting.load_state_dict(saved["psi"], theta.device)
    if sampler._replicas is not None:
        sampler._replicas.load_state_dict(saved["replicas"], theta.device)
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
        "dynamics": str(sampler.dynamics),
        "weighting": type(sampler.weighting).__name__,
        "exchange": str(sampler.exchange),
        "chains": sampler.chains,
        "numbers per chain": sampler._flat.theta.shape[-1],
    }
