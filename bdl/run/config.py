"""Resolvers for the Hydra configuration, and what identifies a run: its name, its hash, its provenance."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from bdl.errors import ConfigError

CPU = torch.device("cpu")
# What does not change the samples, and so does not make another run of it.
_NOT_THE_RUN = ("hydra", "logger", "run_dir", "monitor_every", "checkpoint_every", "train_items", "experiment")
_NOT_THE_TRAINER = ("max_time",)
_NOT_THE_DATA = ("root", "download", "cache", "loader", "workers")  # where they lie, and how they come from there


def register_resolvers() -> None:
    """`fraction`, `run_name`, `config_hash` and `wandb_offline`, as conf/ uses them. Safe to call twice."""
    for name, function in (
        ("fraction", fraction),
        ("run_name", run_name),
        ("config_hash", lambda *, _root_: config_hash(_root_)),
        ("wandb_offline", lambda: "WANDB_MODE" not in os.environ and "WANDB_API_KEY" not in os.environ),
    ):
        OmegaConf.register_new_resolver(name, function, replace=True)


def fraction(steps: Any, part: float, least: int = 1) -> int:
    """That part of a number of steps, `least` at least."""
    if not isinstance(steps, int | float):
        raise ConfigError(f"trainer.max_steps must be a number of steps, got {steps!r}")
    return max(least, round(int(steps) * part))


def run_name(choices: Any) -> str:
    """The experiment's name, or data-model-sampler."""
    return choices.get("experiment") or "-".join(choices[k] for k in ("data", "model", "sampler"))


def config_hash(cfg: DictConfig) -> str:
    """Eight letters that name the configuration, without what does not change the samples."""
    found = identity(cfg)
    found["data"] = {k: v for k, v in found["data"].items() if k not in _NOT_THE_DATA}
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:8]


def identity(cfg: DictConfig) -> dict[str, Any]:
    """The part of the configuration that decides which samples are drawn, resolved."""
    kept = OmegaConf.masked_copy(cfg, [k for k in cfg if k not in _NOT_THE_RUN])  # type: ignore[arg-type]
    kept._set_parent(cfg._get_parent())
    found: Any = OmegaConf.to_container(kept, resolve=True)
    found["trainer"] = {k: v for k, v in found["trainer"].items() if k not in _NOT_THE_TRAINER}
    return found


def provenance(device: torch.device = CPU) -> dict[str, Any]:
    """Git commit, versions, threads and the name of the device, as config.yaml records them."""
    versions = {}
    for package in ("bdl", "torch", "lightning", "torchmetrics", "hydra-core", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "git_commit": _git_commit(),
        "versions": {**versions, "python": platform.python_version()},
        "threads": torch.get_num_threads(),
        "device": device_name(device),
    }


def device_name(device: torch.device = CPU) -> str:
    """What the maker calls it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _git_commit() -> str | None:
    try:
        result = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
