"""Tests of `bdl.data.dates`: how dates are written, what a network sees of them, and what is refused."""

import numpy as np
import pandas as pd
import pytest
import torch

from bdl.data.dates import DateColumn, find_format, holds_dates, parse
from bdl.data.kinds import Refused
from bdl.data.table import read_table
from bdl.errors import BdlWarning

TIMES = pd.Series(pd.date_range("2019-03-01 05:20", periods=60, freq="407h"), name="when")
WAYS = (
    "%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%d.%m.%Y", "%d.%m.%y %H:%M", "%d/%m/%Y", "%m/%d/%Y",
    "%m/%d/%Y %I:%M %p", "%d %b %Y", "%B %d, %Y", "%d-%b-%y", "%Y/%m/%d", "%Y%m%d", "%Y-%m", "%H:%M",
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_way_of_writing_is_found_and_read(way):
    texts = TIMES.dt.strftime(way)
    assert holds_dates(texts) and find_format(texts, None) == (way, "")


def test_the_parts_are_those_of_the_calendar():
    column = DateColumn.learn(TIMES.dt.strftime("%Y-%m-%d %H:%M"))
    encoded = column.encode(TIMES.dt.strftime("%Y-%m-%d %H:%M"), "")
    parts = {
        "year": TIMES.dt.year,
        "day": TIMES.map(lambda t: t.toordinal()),
        "month, sine": np.sin(2 * np.pi * TIMES.dt.month / 12),
        "weekday, cosine": np.cos(2 * np.pi * TIMES.map(lambda t: t.weekday()) / 7),
        "hour, sine": np.sin(2 * np.pi * (TIMES.dt.hour + TIMES.dt.minute / 60) / 24),
    }
    names = [part.name for part in column.parts]
    assert len(names) == encoded.shape[1] == 8
    for name, values in parts.items():
        expected = (values - values.mean()) / values.std(ddof=0)
        np.testing.assert_allclose(encoded[:, names.index(name)], expected, atol=1e-6)


def test_parts_that_do_not_vary_are_left_out():
    day = pd.Series(pd.date_range("2020-05-04 08:00", periods=12, freq="5min"), name="when")
    assert [part.name for part in DateColumn.learn(day).parts] == ["hour, sine", "hour, cosine"]
    times = TIMES.dt.strftime("%H:%M")
    assert DateColumn.learn(times).encode(times, "").shape == (60, 2)


def test_gaps_become_the_median_and_a_number_of_their_own():
    texts = TIMES.dt.strftime("%d.%m.%Y").mask(TIMES.index % 4 == 0)
    column = DateColumn.learn(texts)
    encoded = column.encode(texts, "")
    assert encoded[:, -1].nonzero()[0].tolist() == list(range(0, 60, 4))
    assert (encoded[0] == encoded[4]).all() and column.fill == "2020-07-21T00:00:00"


@pytest.mark.parametrize(("day_first", "month"), [(True, 4), (False, 3)])
def test_dates_that_do_not_tell_day_from_month_are_asked_about(day_first, month):
    texts = pd.Series(["03/04/2020", "05/06/2020"], name="when")
    with pytest.raises(Refused) as error:
        find_format(texts, None)
    assert error.value.what == "does not tell whether '03/04/2020' is 3 April or 4 March"
    assert "data.day_first=true" in error.value.remedy
    format, _ = find_format(texts, day_first)
    assert pd.to_datetime(texts[0], format=format).month == month
    assert find_format(pd.Series(["03/04/2020", "05/26/2020"]), None)[0] == "%m/%d/%Y"  # a day of 26 tells
    with pytest.raises(Refused, match=r"when.*data.day_first=false reads"):
        find_format(pd.Series(["03/04/2020", "05/26/2020"], name="when"), True)


def test_one_time_zone_is_that_of_all_and_several_are_refused():
    texts = TIMES.dt.strftime("%Y-%m-%dT%H:%M:%S")
    assert find_format(texts + "Z", None) == ("%Y-%m-%dT%H:%M:%S", "Z")
    column = DateColumn.learn(texts + "+02:00")
    assert (column.encode(texts + "+02:00", "") == DateColumn.learn(texts).encode(texts, "")).all()
    with pytest.raises(Refused, match="when.*no date written as .*02:00 is in 60 of 60 rows"):
        column.encode(texts + "Z", "")
    with pytest.raises(Refused, match="several time zones, such as .*Z' and .*02:00"):
        find_format(pd.concat([texts[:30] + "Z", texts[30:] + "+02:00"]), None)
    with pytest.raises(Refused, match="has a time zone, Europe/Berlin"):
        find_format(TIMES.dt.tz_localize("Europe/Berlin"), None)


MIXED = {
    "two ways": ["2020-01-05", "06.01.2020", "2020-01-07"],
    "no date": ["2020-01-05"] * 19 + ["soon"],
    "no such day": ["2020-01-05", "2020-02-30", "2020-01-07"],
    "versions": ["1.0.0", "1.2.0", "2.1.3"],
}


@pytest.mark.parametrize("name", MIXED)
def test_what_is_not_written_in_one_way_is_refused(name):
    texts = pd.Series(MIXED[name], name="when")
    assert holds_dates(texts)
    with pytest.raises(Refused) as error:
        DateColumn.learn(texts)
    assert "among its dates" in error.value.what and "data.categorical=" in error.value.remedy


@pytest.mark.parametrize("values", [["10-12", "13-15"], ["A1", "B2"], [1, 2], [1.5, 2.5], [True, False], [12345678]])
def test_what_reads_like_no_date_is_none(values):
    assert not holds_dates(pd.Series(values))


def test_a_table_with_dates_is_read_and_predicted_alike(tmp_path):
    """From a file, from a file where decimals have commas, and from dates of pandas."""
    table = pd.DataFrame({"when": TIMES.dt.strftime("%d.%m.%Y %H:%M"), "y": np.arange(60) + 0.5})
    table.to_csv(tmp_path / "a.csv", index=False)
    table.to_csv(tmp_path / "b.csv", index=False, sep=";", decimal=",")
    data = read_table(tmp_path / "a.csv", "y")
    other = read_table(tmp_path / "b.csv", "y", separator="semicolon", decimal="comma")
    assert torch.equal(data.tensors("train")[0], other.tensors("train")[0])
    encoding = data.encoding.inputs
    rows = data.encoding.reading.read(tmp_path / "a.csv", text=encoding.written)
    assert torch.equal(encoding.encode(rows, "", ""), encoding.encode(pd.DataFrame({"when": TIMES}), "", ""))


def test_dates_that_parquet_stores_are_dates(tmp_path):
    pytest.importorskip("pyarrow")
    table = pd.DataFrame({"when": TIMES, "day": TIMES.dt.date, "y": np.arange(60) + 0.5})
    table.to_parquet(tmp_path / "a.parquet")
    data = read_table(tmp_path / "a.parquet", "y", format="parquet")
    assert [type(column) for column in data.encoding.inputs.columns] == [DateColumn, DateColumn]


@pytest.mark.parametrize(
    "way", ["%H:%M", "%H.%M.%S", "%I %p", "%I%p", "%I:%M %p", "%I:%M%p", "%H:%M:%S", "%d.%m.%Y %I:%M %p"]
)
def test_times_are_read_as_people_write_them(way):
    texts = TIMES.dt.strftime(way).rename("when")
    assert holds_dates(texts) and find_format(texts, None)[0] == way
    assert parse(texts, way, "").dt.hour.tolist() == TIMES.dt.hour.tolist()


@pytest.mark.parametrize("years, told", [((50, 89), True), ((36, 99), True), ((1, 24), False), ((69, 99), False)])
def test_years_of_two_digits_in_two_centuries_are_asked_about(years, told):
    texts = pd.Series([f"{d:02d}.{m:02d}.{y:02d}" for y in range(*years) for d, m in ((13, 4), (28, 11))], name="born")
    if not told:
        assert find_format(texts, None)[0] == "%d.%m.%y"
        return
    with pytest.raises(Refused, match=f"years of two digits such as '13.04.{years[0]}', which may be 19{years[0]}"):
        find_format(texts, None)


def test_years_of_two_digits_are_told_as_they_are_read():
    texts = pd.Series([f"{day:02d}.04.{year:02d}" for day in range(13, 20) for year in (5, 71, 99)], name="born")
    with pytest.warns(BdlWarning, match="born has years of two digits, which are read as 1971 to 2005"):
        DateColumn.learn(texts)
