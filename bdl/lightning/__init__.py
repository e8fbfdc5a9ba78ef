"""Lightning: the module, the callbacks, and the checks of Trainer settings."""

from __future__ import annotations

from bdl.lean import L

__all__ = ["L"]
