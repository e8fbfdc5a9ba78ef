"""The exceptions and the warning of bdl. A command prints their message in one line."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable


class BdlError(Exception):
    """Base of bdl's errors. The message is one line: the offending value and the remedy."""


class ConfigError(BdlError, ValueError):
    """An argument, a key or a combination of them is wrong."""


class DivergedError(BdlError, FloatingPointError):
    """A loss, energy, gradient or parameter is no longer finite. Such a state is never written."""


class ReplicaError(BdlError, RuntimeError):
    """The ranks of one data-parallel chain no longer hold the same numbers."""


class StoreError(BdlError, OSError):
    """A sample file or index is missing, truncated, altered, foreign or drawn from another distribution."""


class Stopped(Exception):
    """A signal asked the run to stop, and its state is saved."""

    def __init__(self, signum: int, message: str):
        super().__init__(message)
        self.signum = signum


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """What follows a message about a misspelled word: the nearest known word, in parentheses, or nothing.

    >>> did_you_mean("temperture", ["lr", "temperature"])
    ' (did you mean temperature?)'
    """
    near = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {near[0]}?)" if near else ""


def check_positive(name: str, value: float) -> None:
    """Raise ConfigError unless the value is positive and finite."""
    if not 0 < value < math.inf:
        raise ConfigError(f"{name} must be > 0, got {value}")


def check_whole(name: str, value: object, least: int = 1) -> None:
    """Raise ConfigError unless the value is a whole number, and not less than `least`. True and False are refused."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise ConfigError unless the value is one of these words."""
    known = list(choices)
    if value not in known:
        *words, last = (f'"{word}"' for word in known)
        raise ConfigError(f"{name} must be {', '.join(words)}{' or ' if words else ''}{last}, got {value!r}")


def check_fraction(name: str, value: float) -> None:
    """Raise ConfigError unless the value lies between 0 and 1, both excluded."""
    if not 0 < value < 1:
        raise ConfigError(f"{name} must be in (0, 1), got {value}")


def printable(text: str) -> str:
    """The text with `?` for signs that a terminal would obey, such as the escape sequences of a stranger's file.

    >>> printable("a\x1b[2Jb")
    'a?[2Jb'
    """
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "?" for sign in text)


def without_advice(text: str) -> str:
    """The message of an error, without torch's advice to execute what a file holds (`weights_only=False`)."""
    if "weights_only" not in text and "Weights only" not in text:
        return text
    return "the file holds more than tensors and plain values, and bdl executes nothing that a file holds"


class BdlWarning(UserWarning):
    """A fact that a user should know before trusting the numbers."""


class VerdictWarning(BdlWarning):
    """The verdict on the samples of a run is not "trust". Estimators warn with it and scikit-learn's own at once."""
