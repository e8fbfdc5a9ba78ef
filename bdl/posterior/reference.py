"""Predictive probabilities of a reference posterior: files of them, and measures of agreement with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bdl.errors import ConfigError


def agreement(probs: Tensor, reference: Tensor) -> dict[str, float]:
    """How close probabilities (n, K) are to those of a reference (n, K), such as HMC (Izmailov et al. 2021, section 7).

        agreement       = share of items with the same most probable class
        total_variation = mean ½ Σ_k |p_k - q_k|

    Raises ConfigError if the shapes differ.
    """
    if probs.shape != reference.shape:
        raise ConfigError(
            f"the reference has probabilities of shape {tuple(reference.shape)}, the posterior {tuple(probs.shape)}: "
            "both must have the same items in the same order"
        )
    reference = reference.to(probs)
    return {
        "agreement": (probs.argmax(1) == reference.argmax(1)).double().mean().item(),
        "total_variation": (probs - reference).abs().sum(1).double().mean().item() / 2,
    }


def read_probabilities(path: str | Path) -> Tensor:
    """(n, K) probabilities from a .npy file, or from a text file of comma-separated rows.

    Raises ConfigError if the file cannot be read, or its rows are not probabilities.
    """
    try:
        probs = np.load(path, allow_pickle=False) if Path(path).suffix == ".npy" else np.loadtxt(path, delimiter=",")
    except (OSError, ValueError) as error:
        raise ConfigError(f"can't read probabilities from {path}: {str(error).splitlines()[0]}") from error
    if probs.ndim != 2 or not np.allclose(probs.sum(1), 1, atol=1e-2) or not (probs >= 0).all():
        raise ConfigError(f"{path} must hold probabilities (n, K) whose rows sum to 1, got an array {probs.shape}")
    return torch.from_numpy(probs)


def write_probabilities(path: Path, probs: Tensor) -> None:
    """Write probabilities (n, K) as a .npy file that `read_probabilities` reads."""
    np.save(path, probs.cpu().numpy())
