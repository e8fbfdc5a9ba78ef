"""Trained networks in the folder of a run, and what draws further networks from them, as a run sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from bdl.batch import Inputs
from bdl.likelihoods import Likelihood
from bdl.posterior.predict import Posterior

FOLDER = "trained"  # a folder of the run directory, and a run directory itself: its samples are the networks


class BaselineLike(Protocol):
    """Draws networks from trained ones, such as `bdl.SWAG`. `str()` says in words what it is."""

    scale: str  # how a run gets the scale of numbers where `loss.scale` does not say it

    def check(self, net: nn.Module, inputs: Inputs, likelihood: Likelihood | None, val: bool) -> None:
        """Raise ConfigError for a network, a likelihood or data that do not fit."""

    def fit(
        self,
        trained: Posterior,
        run_dir: str | Path,
        *,
        train: Iterable[Any] | None = None,
        val: Iterable[Any] | None = None,
        seed: int = 0,
        overwrite: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Posterior:
        """Write the draws where samples of a posterior would be, and return them as one."""
        ...
