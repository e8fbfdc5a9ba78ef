"""The exceptions and the warning of bdl. A command prints their message in one line."""


class BdlError(Exception):
    """Base of bdl's errors. The message is one line: the offending value and the remedy."""


class ConfigError(BdlError, ValueError):
    """An argument, a key or a combination of them is wrong."""


class DivergedError(BdlError, FloatingPointError):
    """A loss, energy, gradient or parameter is no longer finite. Such a state is never written."""


class ReplicaError(BdlError, RuntimeError):
    """The ranks of one data-parallel chain no longer hold the same numbers."""


class StoreError(BdlError, OSError):
    """A sample file or index is missing, truncated, altered, foreign or drawn from another law."""


class Stopped(Exception):
    """A signal asked the run to stop, and its state is saved."""

    def __init__(self, signum: int, message: str):
        super().__init__(message)
        self.signum = signum


def without_advice(text: str) -> str:
    """The message of an error, without torch's advice to execute what a file holds (`weights_only=False`)."""
    if "weights_only" not in text and "Weights only" not in text:
        return text
    return "the file holds more than tensors and plain values, and bdl executes nothing that a file holds"


class BdlWarning(UserWarning):
    """A fact that a user should know before trusting the numbers."""
