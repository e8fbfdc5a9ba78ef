"""ObservedNLL: the likelihood of what was observed, where some of several targets are missing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.likelihoods.base import Likelihood, as_columns, refuse_targets
from bdl.likelihoods.wrapper import Wrapper


@dataclass(frozen=True)
class ObservedNLL(Wrapper):
    """-log p of the targets of an item that are there; NaN in y (..., B, k) stands for one that is missing.

    The missing targets are integrated out, so that the posterior is that of the data that were observed. It holds where
    a target is missing for reasons that its value has no part in, given the inputs and the other targets.

    >>> import torch
    >>> from bdl.likelihoods import GaussianNLL
    >>> outputs = torch.tensor([[0.0, 5.0]])
    >>> ObservedNLL(GaussianNLL(1.0))(outputs, torch.tensor([[0.0, torch.nan]]))  # log(2 pi) / 2
    tensor([0.9189])

    Args:
        of: the likelihood of all k numbers.

    Raises ConfigError for a likelihood of classes or labels.
    """

    of: Likelihood

    def __post_init__(self) -> None:
        if not isinstance(self.of, Likelihood) or self.of.outputs != "values":
            raise ConfigError(f"ObservedNLL takes a likelihood of numbers, got {self.of}")

    @property
    def inside(self) -> Likelihood:
        return self.of

    def has_density(self, y: Tensor) -> Tensor:
        return self.of.has_density(y) & ~y.isnan()

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        targets = self.num_targets(outputs.shape[-1])
        y = as_columns(y, torch.Size((*outputs.shape[:-1], targets))).to(outputs.dtype)
        seen = ~y.isnan()
        return -self.of.seen_log_density(outputs, torch.where(seen, y, 0), seen)

    def check(self, y: Tensor, outputs: int | None = None) -> None:
        """Raise ConfigError as the likelihood of all numbers does, and for items without any target."""
        missing = y.isnan()
        self.of.check(torch.where(missing, 0, y), outputs)
        none = missing if y.ndim == 1 else missing.all(1)
        refuse_targets(none, none.float(), "missing with all others of their item", "drop these rows")
