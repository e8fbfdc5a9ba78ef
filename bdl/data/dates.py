"""Columns of dates and times: how they are written, and the numbers that a network sees of them."""

from __future__ import annotations

import datetime as dt
import re
import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bdl.data.kinds import NumberColumn, Refused, with_gaps
from bdl.data.values import Frame, Series, as_texts
from bdl.display import count_of
from bdl.errors import BdlWarning

MONTH = "(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
DATE = re.compile(
    rf"(\d{{1,4}}[-/.]\d{{1,2}}[-/.]\d{{1,4}}([ T].*)?|\d{{1,2}}:\d{{2}}(:\d{{2}}.*)?|\d{{4}}-\d{{2}}"
    rf"|\d{{1,2}}(:\d{{2}})?\s?[ap]m"
    rf"|(19|20)\d{{2}}[01]\d[0-3]\d|\d{{1,2}}[ -]{MONTH}[ ,-]+\d{{2,4}}.*|{MONTH} \d{{1,2}},? \d{{4}}.*)",
    re.IGNORECASE,
)
ZONE = re.compile(r":\d\d(?:\.\d+)?(\s?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))$")
DAYS = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d", "%Y-%m", "%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%y",
    "%m/%d/%y", "%d-%m-%Y", "%m-%d-%Y", "%d-%m-%y", "%m-%d-%y", "%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%d-%b-%y",
    "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%B %d %Y",
)  # fmt: skip
TIMES = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p", "%I:%M%p", "%I %p", "%I%p")
POINTS = "%H.%M.%S"  # read where the texts are no dates: 10.11.12 is one
FORMATS = (*DAYS, *TIMES, *(f"{day}{sign}{time}" for day in DAYS for sign in (" ", "T") for time in TIMES))
ORDERED = re.compile("%([dm])[/-]%[dm]")  # a format whose dates may not tell the day from the month
TYPED = "ISO8601"  # stands for the format where the type of the column says that it holds dates
CIRCLES = {"month": 12, "weekday": 7, "hour": 24}  # parts that begin again after so many
DROP = "data.drop={columns} leaves this out"
WAYS = f"write all in one way, such as 2020-04-03 10:30, 03.04.2020, 18:00 or 6 pm; or {DROP}"
EPOCH = pd.Timestamp(0).as_unit("s")  # in nanoseconds, pandas refuses years beyond 2262, such as 9999
LOOK = 100  # fields that tell whether a column is worth a look at all
NEXT = 2035  # years of two digits that begin with this one may be those of the century before


@dataclass(frozen=True)
class DateColumn:
    """A column of dates: the year, days since 1970, and points on circles for month, weekday and hour.

    Parts that are the same in all training rows are left out; the others are standardised. A missing date becomes the
    median of the training rows, `fill`; a further number is 1 where it is missing if training rows had gaps.
    """

    name: str
    format: str  # a pattern for `strptime`
    zone: str  # the suffix of all times, such as Z
    fill: str
    gaps: bool
    parts: tuple[NumberColumn, ...]

    @staticmethod
    def learn(values: Series, day_first: bool | None = None) -> DateColumn:
        """Raises Refused for dates in several formats or time zones, and for those that do not tell day from month."""
        format, zone = find_format(values, day_first)
        dates = parse(values, format, zone)
        if "%y" in format:
            years = f"{dates.dt.year.min():.0f} to {dates.dt.year.max():.0f}"
            line = f"{values.name} has years of two digits, which are read as {years}: write four where that is wrong"
            warnings.warn(line, BdlWarning, 2)
        fill = dates.quantile(0.5, interpolation="higher")
        parts = parts_of(dates.fillna(fill))
        varied = [NumberColumn.learn(parts[name]) for name in parts if parts[name].nunique() > 1]
        return DateColumn(str(values.name), format, zone, fill.isoformat(), bool(dates.isna().any()), tuple(varied))

    def encode(self, values: Series, place: str) -> np.ndarray:
        """(n, numbers). Raises Refused for what is no date, or is written in another way than the training rows."""
        dates, fill = parse(values, self.format, self.zone), pd.Timestamp(self.fill)
        missing = dates.isna()
        if (bad := (missing & values.notna()).to_numpy()).any():
            written = "" if self.format == TYPED else f" as {fill.strftime(self.format)}{self.zone} is"
            what = f"has '{values[bad].iloc[0]}' in row {values.index[bad][0] + 1}, and no date written{written}"
            raise Refused(self.name, f"{what} in {bad.sum()} of {count_of(len(values), 'row')}", "correct them")
        parts = parts_of(dates.fillna(fill))
        encoded = [part.encode(parts[part.name], place) for part in self.parts]
        return with_gaps(self, encoded, missing)

    @property
    def filling(self) -> str:
        """What a missing value becomes, in words."""
        return f"the median, {pd.Timestamp(self.fill)}"


def holds_dates(values: Series) -> bool:
    """Whether the values are dates or times, or nine tenths of them read like some."""
    present = values.dropna()
    if present.empty or pd.api.types.is_bool_dtype(values):
        return False
    if pd.api.types.is_datetime64_any_dtype(values) or isinstance(present.iloc[0], dt.date | dt.time | pd.Period):
        return True
    numeric = pd.api.types.is_numeric_dtype(values)
    if numeric and not 19000101 <= present.iloc[0] <= 20991231:  # most columns of numbers end here
        return False
    if numeric and not (present.between(19000101, 20991231) & (present % 1 == 0)).all():
        return False
    some = as_texts(present.iloc[:: 1 + len(present) // LOOK])  # tells of nearly every column that it has no dates
    if not numeric and sum(DATE.fullmatch(text) is not None for text in some) < len(some) / 2:
        return False
    counts = as_texts(present).value_counts()
    return counts[[DATE.fullmatch(text) is not None for text in counts.index]].sum() >= 0.9 * len(present)


def find_format(values: Series, day_first: bool | None) -> tuple[str, str]:
    """The one format in which all dates are written, and their time zone."""
    name, texts = str(values.name), as_texts(values.dropna())
    if pd.api.types.is_datetime64_any_dtype(values):
        if getattr(values.dtype, "tz", None) is not None:
            raise Refused(name, f"has a time zone, {values.dtype.tz}", f"{DROP}, or store local times without it")
        return TYPED, ""
    zones = texts.map(lambda text: zone[1] if (zone := ZONE.search(text)) else "")
    if zones.nunique() > 1:
        one, other = (texts[zones == zone].iloc[0] for zone in zones.unique()[:2])
        raise Refused(name, f"has times of several time zones, such as '{one}' and '{other}'", WAYS)
    zone, some = zones.iloc[0], [texts.iloc[i] for i in (0, len(texts) // 2, -1)]
    read = {f: parse(texts, f, zone) for f in FORMATS if any(_fits(text.removesuffix(zone), f) for text in some)}
    whole = {format: dates for format, dates in read.items() if dates.notna().all()}
    if not whole and texts.str.fullmatch(r"\d{1,2}\.\d\d\.\d\d").all() and parse(texts, POINTS, "").notna().all():
        return POINTS, ""
    if not whole:
        dates = max(read.values(), key=lambda dates: dates.notna().sum(), default=pd.Series(pd.NaT, texts.index))
        other = "" if dates.isna().all() else f", and is written like '{texts[dates.notna()].iloc[0]}' elsewhere"
        what = f"has '{texts[dates.isna()].iloc[0]}' among its dates{other}"
        raise Refused(name, what, f"{WAYS}, and data.categorical={{columns}} takes all as categories")
    format = _told_apart(name, texts, whole, day_first)
    if "%y" in format and (late := whole[format].dt.year >= NEXT).any():
        years = whole[format][late].dt.year
        what = f"has years of two digits such as '{texts[late].iloc[0]}', which may be {years.iloc[0] - 100} or "
        raise Refused(name, f"{what}{years.iloc[0]}", f"write them with four digits; or {DROP}")
    return format, zone


def _fits(text: str, format: str) -> bool:
    try:  # by the standard library: for one text, pandas takes ten times as long
        return bool(dt.datetime.strptime(text, format))
    except ValueError:
        return False


def _told_apart(name: str, texts: Series, read: dict[str, Series], day_first: bool | None) -> str:
    """The format that is right, of those in which all texts can be read."""
    ordered = {format: order[1] == "d" for format in read if (order := ORDERED.match(format))}
    formats = [format for format in read if day_first is None or ordered.get(format, day_first) == day_first]
    if not formats:
        raise Refused(name, f"has '{texts.iloc[0]}'", f"data.day_first={str(not day_first).lower()} reads its dates")
    first, *others = formats
    for other in others:
        if (differ := read[first] != read[other]).any():
            one, two = (read[format][differ].iloc[0].strftime("%-d %B") for format in (first, other))
            what = f"does not tell whether '{texts[differ].iloc[0]}' is {one} or {two}"
            raise Refused(name, what, "data.day_first=true takes the first, false the other")
    return first


def parse(values: Series, format: str, zone: str) -> Series:
    """(n,) dates without time zone; NaT for what is missing, is not written so, or has another zone."""
    if pd.api.types.is_datetime64_any_dtype(values):
        return values if getattr(values.dtype, "tz", None) is None else pd.Series(pd.NaT, values.index)
    texts = as_texts(values)
    if zone:
        texts = texts.where(texts.str.endswith(zone, na=False)).str.removesuffix(zone)
    return pd.to_datetime(texts, format=format, errors="coerce")


def days_of(dates: Series) -> Series:
    """(n,) whole days since 1970."""
    return (dates.dt.normalize() - EPOCH).dt.days


def parts_of(dates: Series) -> Frame:
    """(n, parts) numbers of dates without gaps."""
    hours = dates.dt.hour + dates.dt.minute / 60 + dates.dt.second / 3600
    parts = {"year": dates.dt.year, "day": days_of(dates)}
    for (name, period), values in zip(CIRCLES.items(), (dates.dt.month, dates.dt.day_of_week, hours), strict=True):
        angle = 2 * np.pi * values / period
        parts |= {f"{name}, sine": np.sin(angle).round(9), f"{name}, cosine": np.cos(angle).round(9)}
    return pd.DataFrame(parts)
