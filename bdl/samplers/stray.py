"""StrayWatch: notices that something else than the sampler has moved θ between two steps of a full-batch kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from bdl.errors import ConfigError


class StrayWatch:
    """Compares θ at the start of a step with θ at the end of the last one, whose energy and gradient the step reuses.

    On an accelerator the answer stays on the device, so that no step waits, until `refuse` reads it.
    """

    def __init__(self) -> None:
        self.left_at: Tensor | None = None  # (..., d) θ after the last step; None before the first one
        self._strayed: Tensor | None = None  # () whether θ has been elsewhere before a noted step

    def has_moved(self, theta: Tensor) -> bool:
        """Whether θ is elsewhere than the last step left it. A device sync."""
        return self.left_at is not None and not torch.equal(self.left_at, theta)

    def note(self, theta: Tensor) -> None:
        """Note on the device, without a wait, whether something has moved θ since the last step: see `refuse`."""
        assert self.left_at is not None
        moved = (self.left_at != theta).any()
        self._strayed = moved if self._strayed is None else self._strayed.logical_or_(moved)

    def refuse(self, kernel: object, step: int) -> None:
        """Raise ConfigError if a noted step began elsewhere than the step before it had ended. A device sync."""
        strayed, self._strayed = self._strayed, None
        if strayed is not None and bool(strayed):
            raise ConfigError(
                f"something has changed the parameters between two steps, after which {type(kernel).__name__} "
                f"used a gradient of the old ones (noticed at step {step}; nothing since then was written): "
                "change them before the first step, or load them together with the sampler's state_dict()"
            )
