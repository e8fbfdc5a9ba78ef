"""Values of earlier rows as inputs: a column as it was one or several rows before, in an order and within a series."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bdl.advice import override
from bdl.data.frame import brief_list, require_columns
from bdl.data.together import Order
from bdl.data.values import Frame, Series, as_texts
from bdl.display import count_of
from bdl.errors import BdlWarning, ConfigError

KEY, SERIES, ROW = " key", " series", " row"  # columns beside those of a table, whose names begin with no blank


@dataclass(frozen=True)
class Lags:
    """Which earlier values are inputs, and the last rows of the table, which rows to predict may follow.

    The input "sales lag 2" is the value of `sales` two rows earlier among the rows of its series. No later row has a
    part in it. The order decides which rows are earlier, whatever their place in the file.

    Args:
        of: lags by column, in rows.
        target: the column that is predicted. Its earlier values must be known.
        order: sorts the rows.
        series: a column that tells series apart; None for a single one.
        last: for each series the rows of the table on which the next ones build: key, series and lagged columns.
        widest: the largest distance between consecutive rows of a series in the table, in units of the order.
    """

    of: Mapping[str, tuple[int, ...]]
    target: str
    order: Order
    series: str | None
    last: tuple[Mapping[str, Any], ...] = ()
    widest: float = 0.0

    @staticmethod
    def checked(
        lags: Mapping[str, Sequence[int]],
        frame: Frame,
        target: str,
        order: Order | None,
        series: str | None,
        place: str,
    ) -> Lags:
        """Raises ConfigError for lags that are no whole numbers of at least 1, and for those without an order."""
        if order is None:
            raise ConfigError("data.lags needs data.order: it names the column, such as a date, that sorts the rows")
        require_columns(frame, list(lags), "data.lags names ", place)
        if beside := {order.name, series} & lags.keys():
            raise ConfigError(f"data.lags names {beside.pop()}, which sorts or groups the rows: name another column")
        for name, numbers in lags.items():
            if not numbers or any(type(n) is not int or n < 1 for n in numbers):
                raise ConfigError(f"data.lags of {name} takes whole numbers of at least 1, got {list(numbers)}")
        return Lags({name: tuple(sorted(set(numbers))) for name, numbers in lags.items()}, target, order, series)

    @property
    def longest(self) -> int:
        return max(max(numbers) for numbers in self.of.values())

    @property
    def names(self) -> list[str]:
        """The names of the inputs that are made."""
        return [f"{name} lag {lag}" for name, numbers in self.of.items() for lag in numbers]

    def learn(self, frame: Frame, place: str) -> tuple[Lags, Frame, np.ndarray]:
        """The lags with the last rows of this table, the table with its inputs, and (n,) whether a row has them all.

        Warns of rows that are left out, and counts them. Raises ConfigError where no row is left.
        """
        rows = self._sorted(frame, place)
        made, complete = self._made(rows, len(frame))
        if not complete.any():
            raise ConfigError(
                f"data.lags: no row of {place} has {self.longest} rows before it with the values it needs: give longer "
                "series, or smaller lags"
            )
        if not complete.all():
            line = (
                f"{place}: {(~complete).sum()} of {count_of(len(frame), 'row')} have fewer than {self.longest} "
                "rows before them"
            )
            warnings.warn(
                f"{line} in their series, with the values that data.lags asks for, and are left out", BdlWarning, 3
            )
        last = rows.groupby(SERIES, sort=False).tail(self.longest).drop(columns=ROW)
        plain = tuple({name: _plain(value) for name, value in row.items()} for row in last.to_dict("records"))
        widest = rows.groupby(SERIES)[KEY].diff().max()
        learned = dataclasses.replace(self, last=plain, widest=0.0 if pd.isna(widest) else float(widest))
        return learned, frame.assign(**made), complete

    def extend(self, frame: Frame, place: str) -> tuple[Frame, np.ndarray]:
        """Rows to predict with their inputs, and (n,) whether a row has them all.

        A row follows the last rows of the table, or earlier rows of its own file. The first rows of a series that the
        table does not end with are there for those after them, and get no prediction, which a warning says.

        Raises ConfigError for a series of which no row can be predicted, and for an earlier target that is not known.
        """
        needed = [self.order.name, *([self.series] if self.series else []), *(set(self.of) - {self.target})]
        require_columns(frame, needed, "input: ", place)
        rows = self._sorted(frame if self.target in frame else frame.assign(**{self.target: np.nan}), place)
        made, complete = self._made(rows, len(frame))
        inside = rows[rows[ROW] >= 0]
        first = rows.groupby(SERIES).cumcount()[inside.index] < self.longest
        unknown = inside[~first & ~complete[inside[ROW]]]
        if len(unknown):
            raise ConfigError(
                f"input: row {unknown[ROW].min() + 1} of {place} needs {self.target} of earlier rows, up to "
                f"{self.longest} before it, and it is missing there: fill it in, or predict the rows before it first; "
                f"lags of at least h rows predict h rows ahead"
            )
        without = first.groupby(inside[SERIES]).all()
        if without.any():
            where = f" of {self.series}={without.index[without][0]}" if self.series else ""
            raise ConfigError(
                f"input: no row{where} in {place} has {self.longest} rows before it ({brief_list(self.names)}): put "
                "them before it in the file, or give rows that follow the last ones of the run's table"
            )
        if first.any():
            warnings.warn(
                f"{place}: {first.sum()} of {count_of(len(frame), 'row')}, the first of their series, have fewer than "
                f"{self.longest} rows before them: they serve the later ones, and have no prediction", BdlWarning, 3,
            )  # fmt: skip
        self._warn_of_holes(rows, place)
        return frame.assign(**made), complete

    def _warn_of_holes(self, rows: Frame, place: str) -> None:
        steps = rows.groupby(SERIES)[KEY].diff()
        far = rows[(steps > self.widest * (1 + 1e-9)) & (rows[ROW] >= 0)]
        if len(far):
            unit, distance = "" if self.order.format is None else " days", steps[far.index].max()
            warnings.warn(
                f"{place}: {len(far)} rows, row {far[ROW].min() + 1} the first, come up to {distance:g}{unit} after "
                f"the row before them, and {self.widest:g}{unit} at most in the run's table: rows between them may be "
                "missing, whose values their lags need", BdlWarning, 4,
            )  # fmt: skip

    def _sorted(self, frame: Frame, place: str) -> Frame:
        """The last rows of the table, whose ROW is -1, and those of the frame, sorted by series and order.

        Raises ConfigError for two rows of one place in a series.
        """
        series = pd.Series("", frame.index) if self.series is None else as_texts(frame[self.series])
        if series.isna().any():
            raise ConfigError(
                f"{override('data.group', self.series or '')} is missing in {series.isna().sum()} rows of {place}: "
                "fill it in"
            )
        columns = {KEY: self.order.key(frame[self.order.name], place), SERIES: series, ROW: np.arange(len(frame))}
        here: Frame = pd.DataFrame(columns | {name: frame[name].to_numpy() for name in self.of})
        if (double := here.duplicated([SERIES, KEY])).any():
            row = int(np.flatnonzero(double)[0])
            remedy = "data.group names the column that tells series apart" if self.series is None else "leave one out"
            raise ConfigError(
                f"{place}: row {row + 1} has {self.order.name}={frame[self.order.name].iloc[row]} like another row of "
                f"its series, so that neither is the earlier one ({double.sum()} of "
                f"{count_of(len(frame), 'row')}): {remedy}"
            )
        if self.last:
            before: Frame = pd.DataFrame([{**row, ROW: -1} for row in self.last])
            here = pd.concat([before.astype({c: object for c in self.of}), here.astype({c: object for c in self.of})])
            here = here.drop_duplicates([SERIES, KEY], keep="last")
            here = here[here[SERIES].isin(set(series))]
        return here.sort_values([SERIES, KEY], kind="stable", ignore_index=True)

    def _made(self, rows: Frame, count: int) -> tuple[dict[str, Series], np.ndarray]:
        """The inputs of the rows of a frame by name, in its order, and (count,) whether each has them all."""
        by_series, made = rows.groupby(SERIES), {}
        complete = by_series.cumcount() >= self.longest
        for name, numbers in self.of.items():
            for lag in numbers:
                made[f"{name} lag {lag}"] = (shifted := by_series[name].shift(lag))
                complete &= shifted.notna() if name == self.target else True
        inside = (rows[ROW] >= 0).to_numpy()
        places = rows[ROW].to_numpy()[inside]
        in_order = {name: values[inside].set_axis(places).sort_index() for name, values in made.items()}
        held = np.zeros(count, dtype=bool)
        held[places] = complete.to_numpy()[inside]
        return {name: values.infer_objects().to_numpy() for name, values in in_order.items()}, held

    def to_plain(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self),
            "of": {name: list(n) for name, n in self.of.items()},
            "last": list(self.last),
        }

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> Lags:
        of = {name: tuple(numbers) for name, numbers in plain["of"].items()}
        return Lags(**{**plain, "of": of, "order": Order(**plain["order"]), "last": tuple(plain["last"])})


def _plain(value: Any) -> Any:
    """A value as JSON can hold it; None for a gap."""
    if value is None or value is pd.NaT or isinstance(value, float) and np.isnan(value):
        return None
    return value.item() if isinstance(value, np.generic) else value if isinstance(value, int | float) else str(value)
