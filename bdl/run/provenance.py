"""Where a run came from: git commit, versions, threads and device."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from bdl.cpu import cpu

CPU = torch.device("cpu")
PACKAGES = ("bdl", "torch", "lightning", "torchmetrics", "hydra-core", "numpy")


def provenance(device: torch.device = CPU) -> dict[str, Any]:
    """Git commit, versions, threads and the name of the device, as config.yaml records them."""
    return {
        "git_commit": git_commit(),
        "versions": {package: _version(package) for package in PACKAGES} | {"python": platform.python_version()},
        "threads": torch.get_num_threads(),
        "device": device_name(device),
    }


def device_name(device: torch.device = CPU) -> str:
    """The maker's name of the GPU or of the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu().get("model name") or platform.processor() or platform.machine()


def git_commit() -> str | None:
    """The commit of the checkout that bdl is imported from; None for an installed bdl."""
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / "pyproject.toml").exists():  # the environment may lie inside of another project's repository
        return None
    try:
        result = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
