"""What can go wrong, and how a script says it: one line, a remedy, an exit status that is not 0."""

from __future__ import annotations


class BdlError(Exception):
    """Base of bdl's own errors. The message is one line: what was found, and how to mend it."""


class ConfigError(BdlError, ValueError):
    """A number, key or combination that cannot mean what the user wants."""


class DivergedError(BdlError, FloatingPointError):
    """A loss, energy, gradient or parameter stopped being finite. Such a state is never written."""


class ReplicaError(BdlError, RuntimeError):
    """The ranks of one data-parallel chain no longer hold the same numbers."""


class StoreError(BdlError, OSError):
    """A sample file or index that is missing, cut short, altered, foreign or from another target."""


class Stopped(Exception):
    """A signal asked for a stop, and all is saved."""

    def __init__(self, signum: int, message: str):
        super().__init__(message)
        self.signum = signum


class BdlWarning(UserWarning):
    """Something a user should know before trusting the numbers."""
