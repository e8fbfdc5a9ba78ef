"""Predictive probabilities as files, and how far those of one posterior are from those of another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bdl.errors import ConfigError


def agreement(probs: Tensor, reference: Tensor) -> dict[str, float]:
    """How close probabilities (n, K) are to a reference's (n, K), of HMC say (Izmailov et al. 2021, section 7).

        agreement       = share of items with the same most probable class
        total_variation = mean ½ Σ_k |p_k - q_k|

    Raises ConfigError where their shapes differ.
    """
    if probs.shape != reference.shape:
        raise ConfigError(
            f"the reference has probabilities of shape {tuple(reference.shape)}, the posterior {tuple(probs.shape)}: "
            "both must be of the same items, in the same order"
        )
    reference = reference.to(probs)
    return {
        "agreement": (probs.argmax(1) == reference.argmax(1)).double().mean().item(),
        "total_variation": (probs - reference).abs().sum(1).double().mean().item() / 2,
    }


def read_probabilities(path: str | Path) -> Tensor:
    """(n, K) probabilities from a .npy file, or from lines of numbers with commas between them.

    Raises ConfigError for a file that can't be read or holds something else.
    """
    try:
        found = np.load(path, allow_pickle=False) if Path(path).suffix == ".npy" else np.loadtxt(path, delimiter=",")
    except (OSError, ValueError) as error:
        raise ConfigError(f"can't read probabilities from {path}: {str(error).splitlines()[0]}") from error
    if found.ndim != 2 or not np.allclose(found.sum(1), 1, atol=1e-2) or not (found >= 0).all():
        raise ConfigError(f"{path} must hold probabilities (n, K) whose rows sum to 1, got an array {found.shape}")
    return torch.from_numpy(found)


def write_probabilities(path: Path, probs: Tensor) -> None:
    """As `read_probabilities` reads them from a .npy file."""
    np.save(path, probs.cpu().numpy())
