"""T by the predictions of trials at several temperatures, each as hot as its batches make it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from bdl.tune.choice import Choice
from bdl.tune.score import clear_winner

CANDIDATES = (1.0, 0.3, 0.1, 0.03)  # T; the first, the Bayes posterior, stays unless another is clearly better


def choose_temperature(scores: dict[float, Tensor], reached: dict[float, float]) -> Choice:
    """The T that `clear_winner` finds.

    scores: (n,) negative log densities of the validation items by T. reached: T_eff of each trial, which is what its
    predictions show.
    """
    return Choice("temperature", clear_winner(scores), described(scores, reached))


def described(scores: Mapping[float, Tensor], reached: Mapping[float, float]) -> str:
    """The mean score of each trial, in nats, and its T_eff, in words."""
    values = ", ".join(f"{float(nll.mean()):.3f}" for nll in scores.values())
    temperatures = ", ".join(f"{reached[temperature]:.3g}" for temperature in scores)
    return f"validation NLL {values} at T_eff {temperatures}"
