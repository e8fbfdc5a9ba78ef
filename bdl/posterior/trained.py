"""Trained networks in the folder of a run, and what draws further networks from them, as a run sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bdl.posterior.predict import Posterior

START = "start"  # a folder of the run directory, and a run directory itself: its samples are the start of its chains
FOLDER = "trained"  # a folder of the run directory, and a run directory itself: its samples are the networks


class BaselineLike(Protocol):
    """Draws networks from trained ones, such as `bdl.SWAG`. `str()` says in words what it is."""

    scale: str  # how a run gets the scale of numbers where `loss.scale` does not say it

    # `Baseline` of bdl.contrib.baselines says what the two take
    check: Callable[..., None]  # raises ConfigError for a network, a likelihood or data that do not fit
    fit: Callable[..., Posterior]  # writes the draws where samples of a posterior would be, and returns them as one
