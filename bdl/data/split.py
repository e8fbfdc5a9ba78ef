"""Which training items are held out."""

from __future__ import annotations

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.seeding import generator


def hold_out(items: int, fraction: float, seed: int, fold: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of the items that are kept and of those held out, in order: the `fold`-th part of an order named by seed.

    Raises ConfigError for a fraction or a fold that there is not.
    """
    if not 0 <= fraction < 1:
        raise ConfigError(f"val_fraction must be in [0, 1), got {fraction}")
    if fold and not 0 < (fold + 1) * fraction <= 1:
        raise ConfigError(f"fold must be from 0 to 1 / val_fraction - 1, got {fold} with val_fraction {fraction}")
    rows = torch.randperm(items, generator=generator("cpu", "split", seed))
    start, end = (round(fraction * items * k) for k in (fold, fold + 1))
    return torch.cat([rows[:start], rows[end:]]).sort().values, rows[start:end].sort().values
