"""MultiCategoricalNLL: several columns of classes for an item."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent

from bdl.errors import ConfigError
from bdl.likelihoods.base import Likelihood, Outputs, refuse_targets
from bdl.likelihoods.categorical import IGNORED


@dataclass(frozen=True)
class MultiCategoricalNLL(Likelihood):
    """-Σ_j log softmax(outputs of column j)[y_j]: y (..., B, k), a class in each of k columns -> (..., B) nats.

    Outputs (..., B, ΣK): the logits of the first column, then of the second, and so on. The columns are independent,
    given the outputs. A class of -100 is missing, and does not count: the posterior is that of the classes that are
    there, see `ObservedNLL`.

    >>> import torch
    >>> MultiCategoricalNLL(classes=(2, 3))(torch.zeros(2, 5), torch.tensor([[0, 2], [1, -100]])).exp()
    tensor([6., 2.])

    Args:
        classes: K of each column, 2 at least.

    Raises ConfigError for fewer classes, and for no column.
    """

    classes: tuple[int, ...]
    outputs: ClassVar[Outputs] = "labels"

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(map(int, self.classes)))  # a configuration and a file hold lists
        if not self.classes or min(self.classes) < 2:
            raise ConfigError(f"classes must be 2 or more for each column, got {list(self.classes)}")

    def num_outputs(self, targets: int) -> int:
        return sum(self.classes)

    def num_targets(self, outputs: int) -> int:
        if outputs != sum(self.classes):
            raise ConfigError(
                f"MultiCategoricalNLL needs an output for each of {sum(self.classes)} classes, and the network has "
                f"{outputs}"
            )
        return len(self.classes)

    def padded(self, outputs: Tensor) -> Tensor:
        """(..., B, k, max K) logits, -inf for the classes that a column lacks."""
        self.num_targets(outputs.shape[-1])
        most, parts = max(self.classes), outputs.split(self.classes, -1)
        return torch.stack([F.pad(part, (0, most - part.shape[-1]), value=-math.inf) for part in parts], -2)

    def distribution(self, outputs: Tensor) -> Distribution:
        return Independent(self.marginals(outputs), 1, validate_args=False)

    def marginals(self, outputs: Tensor) -> Distribution:
        return Categorical(logits=self.padded(outputs), validate_args=False)

    def mean(self, outputs: Tensor) -> Tensor:
        """(..., B, ΣK) the probabilities of all classes, in the order of the outputs."""
        return torch.cat([part.softmax(-1) for part in outputs.split(self.classes, -1)], -1)

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        each = [self._log_p(part, of)[1] for part, of in self._columns(outputs, y)]
        return -torch.stack(each).sum(0)

    def mean_and_gradient(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        loss, gradients = torch.zeros(()), []
        for part, of in self._columns(outputs, y):
            log_p, seen = self._log_p(part, of)
            loss = loss - seen.mean(-1)
            p = log_p.exp_().scatter_add_(-1, of.clamp_min(0).unsqueeze(-1), -torch.ones_like(log_p[..., :1]))
            gradients.append(p.mul_((of != IGNORED).unsqueeze(-1) / outputs.shape[-2]))
        return loss, torch.cat(gradients, -1)

    def check(self, y: Tensor, outputs: int | None = None) -> None:
        """Raise ConfigError, in one line, unless y (n, k) holds classes 0 .. K-1 of each column, or -100."""
        if outputs is not None:
            self.num_targets(outputs)
        if y.ndim != 2 or y.shape[1] != len(self.classes):
            raise ConfigError(
                f"y has shape {tuple(y.shape)}, and {self} takes a class in each of {len(self.classes)} columns: give "
                "y (n, k)"
            )
        wrong = (y != IGNORED) & ((y < 0) | (y >= torch.tensor(self.classes, device=y.device)) | (y != y.floor()))
        refuse_targets(wrong, y, f"none of the {list(self.classes)} classes of its column", "correct the labels")
        none = (y == IGNORED).all(1)
        refuse_targets(none, none.float(), "missing with all others of their item", "drop these rows")

    def _columns(self, outputs: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The logits (..., B, K) of each column, and its classes (..., B)."""
        targets = self.num_targets(outputs.shape[-1])
        if y.shape[-2:] != (outputs.shape[-2], targets):
            raise ConfigError(f"classes of shape {tuple(y.shape)} do not fit {targets} columns: give y (n, {targets})")
        y = y.long().expand(*outputs.shape[:-1], targets)
        return zip(outputs.split(self.classes, -1), y.unbind(-1), strict=True)

    def _log_p(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Log probabilities (..., B, K), and those of the classes (..., B), 0 where they are missing."""
        log_p = logits.log_softmax(-1)
        of_class = log_p.gather(-1, y.clamp_min(0).unsqueeze(-1)).squeeze(-1)
        return log_p, torch.where(y == IGNORED, 0, of_class)
