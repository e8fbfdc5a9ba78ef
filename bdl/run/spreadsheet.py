"""Tables that people open in a spreadsheet, which executes texts that begin like a formula."""

from __future__ import annotations

from typing import Any

from bdl.data.values import NUMBER, Frame

FORMULA = tuple("=+-@\t\r\n|%＝＋－＠")  # the last four in East Asian settings
BLANKS = " \xa0"  # some skip them


def without_formulas(table: Frame) -> Frame:
    """The table with an apostrophe before every text that a spreadsheet would take for a formula, names included.

    >>> import pandas as pd
    >>> without_formulas(pd.DataFrame({"=a": ["=1+1", "-2.5", "@b", "c"]})).to_dict("list")
    {"'=a": ["'=1+1", '-2.5', "'@b", 'c']}
    """
    return table.rename(columns=_quoted).map(_quoted)


def _quoted(value: Any) -> Any:
    """The value; a text that begins like a formula, and is no number, after an apostrophe."""
    if not isinstance(value, str) or NUMBER.fullmatch(value.strip()):
        return value
    return f"'{value}" if value.lstrip(BLANKS).startswith(FORMULA) else value
