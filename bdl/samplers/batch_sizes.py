"""BatchSizes: what a batch counts for, where batches differ in size."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bdl.errors import BdlWarning, ConfigError
from bdl.samplers.dynamics.base import Transition
from bdl.samplers.resume import Saved
from bdl.torch_private import reduced_shape


class BatchSizes(Saved):
    """Weighs the mean loss m_b of n_b items by n_b/n, n being the mean size over whole passes over the data.

    The mean over a pass of B batches is then that over its items, (1/B) Σ_b (n_b/n) m_b = (1/N) Σ_i l_i. Unweighted, an
    item of a short batch would count n/n_b times. Until the first pass has ended, n is the mean size so far.

    N (n_b/n) m_b is no good estimate of N times the mean loss for a short batch. The estimate is (n_b/n) m_b +
    (1 - n_b/n) m, where m is the mean loss of the last pass. The weights of a pass have the mean 1, so that m drops out
    of its mean. It is m_b itself until a pass has ended.

    All is as without weights where every batch has the same size, and for batches whose size nobody tells.

    Attributes:
        weight: n_b/n of the batch of the step under way.
    """

    saved = ("items", "batches", "pass_items", "pass_batches", "total", "of_last_pass", "first_of_pass")

    def __init__(self, num_data: int, dynamics: Transition):
        """num_data: N, which says where a pass ends."""
        self.num_data, self.dynamics = num_data, dynamics
        self.of_pass = num_data  # items of a pass on all ranks
        self.items = self.batches = 0  # so far
        self.pass_items = self.pass_batches = 0  # up to the end of the last pass; so far, during the first one
        self.first_of_pass = 0  # the batch with which the pass under way began
        self.total: Tensor | None = None  # () or (C,) sum of weighted mean losses of the pass under way
        self.of_last_pass: Tensor | None = None  # () or (C,) m
        self.weight = 1.0
        self._told = False  # whether the size of the present batch is known
        self.watches = False  # whether to `watch` the losses
        self._shape: tuple[int, ...] | None = None  # of what the first loss of unknown size was a mean over
        self._left = 0  # losses of two passes or more that are still to be watched

    def see(self, items: int | None, ranks: int = 1) -> None:
        """Before a step: how many items its batch holds on all ranks; None where nobody tells.

        Raises ConfigError for dynamics that take batches of one size.
        """
        self.weight = 1.0
        self._told = items is not None
        if items is None:
            return
        self.of_pass = -(-self.num_data // ranks) * ranks  # a DistributedSampler fills up the last batch
        passes = self.items // self.of_pass
        self.items, self.batches = self.items + items, self.batches + 1
        if passes == 0 or self.items // self.of_pass > passes:
            self.pass_items, self.pass_batches = self.items, self.batches
        if items * self.pass_batches != self.pass_items:
            self.weight = items * self.pass_batches / self.pass_items
            if self.dynamics.needs & {"per_example", "noise_draws"}:
                self.refuse_unequal(f"{type(self.dynamics).__name__} measures batch noise within a batch")

    def of_all(self, loss: Tensor) -> Tensor:
        """() or (C,) estimate of the mean loss over all the data, from the mean loss of the step's batch."""
        if not self._told:
            return loss
        weight, m = self.weight, self.of_last_pass
        weighted = loss if weight == 1 else loss * weight
        self.total = weighted if self.total is None else self.total + weighted
        if self.pass_batches == self.batches and self.items >= self.of_pass:  # the pass ends with this batch
            self.of_last_pass, self.total = self.total / (self.batches - self.first_of_pass), None
            self.first_of_pass = self.batches
        return loss if weight == 1 or m is None else weighted + (1 - weight) * m

    def watch(self, loss: Tensor) -> None:
        """Warn once where the losses of batches whose size nobody tells are means over different numbers of items.

        It looks at the batches of the first passes.
        """
        if self._shape == ():
            return
        shape = reduced_shape(loss)
        if self._shape is None or shape == ():
            self._shape = shape
            self._left = 2 * self.num_data // min((n for n in shape if n > 1), default=1)
        elif shape != self._shape:
            line = (
                f"the batches differ in size: one loss is a mean over {self._shape}, another over {shape}, so that the "
                "items of a short batch count more than others; tell the sizes by sampler.step(closure, items=len(x))"
            )
            warnings.warn(line, BdlWarning, stacklevel=8)
            self._shape = ()
        self._left -= 1
        if self._left < 0:  # to look costs some microseconds a step
            self._shape = ()

    def refuse_unequal(self, reason: str) -> None:
        """Raise ConfigError where the batch of the step has another size than the mean."""
        if self.weight != 1:
            raise ConfigError(
                f"{reason}, and the batches differ in size: this one has {self.weight:.3g} times the mean; make them "
                "alike, as drop_last=True of a shuffling DataLoader does"
            )

    def forget(self) -> None:
        """Forget losses, because a chain starts from another state."""
        self.total = self.of_last_pass = None
        self.first_of_pass = self.batches

    def load_state_dict(self, state: Mapping[str, Any], theta: Tensor) -> None:
        if state:  # {}: of a checkpoint that is older than this class
            super().load_state_dict(state, theta)


def checked_items(items: Any) -> int:
    """The number of items that a user tells, also as an integer of NumPy or torch. Raises ConfigError for others."""
    try:
        if not isinstance(items, bool) and (whole := operator.index(items)) >= 1:
            return whole
    except TypeError:
        pass
    raise ConfigError(f"items must be a whole number of at least 1, how many the batch holds (len(x)), got {items!r}")
