"""What tuning returns: the settings, each with the reason for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Choice:
    """One setting that was found.

        >>> print(Choice("lr", 0.0031, "noise adds 8 % to the temperature, the budget is 10 %"))
        tune: lr 0.0031: noise adds 8 % to the temperature, the budget is 10 %

    Args:
        name: "sampler", "length", "batch_size", "prior", "lr", "friction", "burn_in", "steps" or "every".
        value: a plain number, a word, or a list of numbers.
        reason: why, in a few words with the numbers that decided.
    """

    name: str
    value: Any
    reason: str

    def __str__(self) -> str:
        value = f"{self.value:.4g}" if isinstance(self.value, float) else f"{self.value}"
        return f"tune: {self.name.replace('_', ' ')} {value}: {self.reason}"


@dataclass(frozen=True)
class Tuning:
    """Everything that was found.

    Args:
        choices: all that were made, in their order. What was given is not among them.
        seconds: the time that finding them took.
        step_seconds: the time of one step of all chains of the stack, with the settings found.
    """

    choices: tuple[Choice, ...]
    seconds: float
    step_seconds: float

    @property
    def settings(self) -> dict[str, Any]:
        """The values by name."""
        return {choice.name: choice.value for choice in self.choices}
