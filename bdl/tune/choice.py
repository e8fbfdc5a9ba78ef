"""What tuning returns: the settings, each with the reason for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Choice:
    """One setting that was found.

        >>> print(Choice("lr", 0.0031, "noise adds 8 % to the temperature, the budget is 10 %"))
        tune: lr 0.0031: noise adds 8 % to the temperature, the budget is 10 %

    Args:
        name: "sampler", "length", "batch_size", "prior", "temperature", "weighting", "lr", "lr_power", "swap_every",
            "friction", "burn_in", "steps", "every", "cycle" or "samples_per_cycle".
        value: a plain number, a word, a list of numbers, or a mapping to them.
        reason: why, in a few words with the numbers that decided.
    """

    name: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"tune: {self.name.replace('_', ' ')} {_in_words(self.value)}: {self.reason}"


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_in_words(each)}" for name, each in value.items())
    if isinstance(value, list):
        return f"[{', '.join(map(_in_words, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else f"{value}"


@dataclass(frozen=True)
class Tuning:
    """Everything that was found.

    Args:
        choices: all that were made, in their order. What was given is not among them.
        seconds: the time that finding them took.
        step_seconds: the time of one step of all chains of the stack, with the settings found.
        hottest: T of the direction that batches heat most, over T, with the settings found, as far as trials saw it; 1
            without batch noise. None where no lr was found, and where it was not measured.
        noise_ratio: lr Var(g) / (2 a tau) with these settings, the mean over directions; None as for `hottest`.
        rhat: of the chains in the trial of the prior that was chosen, see `Score.rhat`; NaN where it was given.
    """

    choices: tuple[Choice, ...]
    seconds: float
    step_seconds: float
    hottest: float | None = None
    noise_ratio: float | None = None
    rhat: float = math.nan

    @property
    def settings(self) -> dict[str, Any]:
        """The values by name."""
        return {choice.name: choice.value for choice in self.choices}
