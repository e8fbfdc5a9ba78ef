"""Predictions as sequences of items: their length, parts of them, and a pandas table with a row for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from bdl.display import count_of
from bdl.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

HEAD = 5  # rows that a prediction shows of itself


class PredictedItems(ABC):
    """A prediction of n items, which are the first axis of its tensors."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """(n, ...) of the items, without the last axis, which holds classes, labels or targets."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What the prediction is of, in one line."""

    @abstractmethod
    def part(self, items: Tensor) -> Self:
        """The prediction of the items at these places (m,)."""

    @abstractmethod
    def columns(self, labels: Any) -> Mapping[str, Sequence[Any] | Tensor]:
        """The columns of `to_frame`, of as many rows as `shape` has elements."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, items: Any) -> Self:
        """The prediction of some items: a number, a slice, a list of places, or a mask (n,).

        A single number gives the prediction of one item, so that loops over a prediction give one item each. Raises
        IndexError for a number outside, ConfigError for anything else that does not choose items.
        """
        if isinstance(items, int):
            if not -len(self) <= items < len(self):
                raise IndexError(f"item {items} of a prediction of {count_of(len(self), 'item')}")
            items = [items]
        try:
            every = torch.arange(len(self))
            places = every[items if isinstance(items, slice) else torch.as_tensor(items if len(items) else every[:0])]
            if places.ndim != 1:
                raise IndexError(f"{places.ndim} axes")
        except (IndexError, TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{items!r} does not choose among {len(self)} items ({error}): give a number, a slice, a list of "
                "places, or one True or False for each item"
            ) from error
        return self.part(places)

    def to_frame(self, labels: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None) -> pd.DataFrame:
        """A pandas table with a row for each item, or for each element of it; entropies in nats.

        Of classes: `class`, `p_<class>` for each class, `entropy` and `epistemic`. Of labels: `p_<label>`,
        `entropy_<label>` and `epistemic_<label>` for each. Of numbers: `mean`, `std`, `aleatoric`, `epistemic`, `q05`,
        `q50` and `q95`, with `_<target>` behind them where there are several targets; `p_<level>` of an ordinal target.

        labels: names of the classes, labels or targets; of several columns of classes, the names of the classes by
            column, which stand behind its name. None numbers them.

        Raises ConfigError for another number of names.
        """
        import pandas as pd  # it takes half a second

        arrays = {k: v.double().numpy() if isinstance(v, Tensor) else v for k, v in self.columns(labels).items()}
        if len(self.shape) == 1:
            return pd.DataFrame(arrays)
        axes = ["item", *(f"axis_{i}" for i in range(1, len(self.shape)))]
        return pd.DataFrame(arrays, index=pd.MultiIndex.from_product([range(n) for n in self.shape], names=axes))

    def __repr__(self) -> str:
        shown = self._head()
        return f"{self.title}\n{shown.to_string(float_format='{:.4g}'.format)}{self._rest(len(shown), chr(10))}"

    def _repr_html_(self) -> str:
        shown = self._head()
        return f"<p>{escape(self.title)}</p>{shown.to_html(float_format='{:.4g}'.format)}{self._rest(len(shown))}"

    def _head(self) -> pd.DataFrame:
        return self.part(torch.arange(min(HEAD, len(self)))).to_frame().head(HEAD)

    def _rest(self, shown: int, before: str = "") -> str:
        more = self.shape.numel() - shown
        return f"{before}... and {more:,} more" if more else ""


def names_of(count: int, labels: Sequence[Any] | None, what: str) -> list[str]:
    """The names of classes, labels or targets. Raises ConfigError unless there are `count` of them."""
    names = range(count) if labels is None else labels
    if len(names) != count:
        raise ConfigError(f"{len(names)} names do not fit a prediction of {count} {what}: give {count}, in order")
    return [str(name) for name in names]
