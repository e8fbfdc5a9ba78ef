"""The language in which a page names a number of a result: a path into a JSON file, a little arithmetic, a format.

    mean(100 * (1 - runs.bma.accuracy)) .2f

A name descends; on a list it maps over the items. `[2]` takes an item, `[seed=0]` those items whose field has the
value, `[passes=max]` those with the largest. Names with other signs stand in double quotes. Arithmetic and functions
take numbers and lists of numbers. Nothing is evaluated by Python. A file .md has lists of objects: `tables[0]`, ...
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable
from operator import add, mul, sub, truediv
from typing import Any

TOKEN = re.compile(
    r'\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*)|"(?P<quoted>[^"]*)"|(?P<sign>[-+*/().\[\]=]))'
)
OPERATORS: dict[str, Callable[[float, float], float]] = {"+": add, "-": sub, "*": mul, "/": truediv}


class ClaimError(Exception):
    """An expression that cannot be read, or that the result does not answer."""


def sem(values: list[float]) -> float:
    """Standard error of the mean."""
    return statistics.stdev(values) / math.sqrt(len(values))


FUNCTIONS: dict[str, Callable[[list[float]], Any]] = {
    "mean": statistics.mean,
    "median": statistics.median,
    "std": statistics.stdev,
    "sem": sem,
    "min": min,
    "max": max,
    "sum": sum,
    "count": len,
    "spread": lambda values: [statistics.mean(values), statistics.stdev(values)],  # mean ± standard deviation
    "error": lambda values: [statistics.mean(values), sem(values)],  # mean ± standard error
}


def evaluate(expression: str, result: Any) -> Any:
    """The value of an expression in a result, as JSON reads it. Raises ClaimError."""
    reader = _Reader(expression, result)
    value = reader.sum()
    if reader.kind is not None:
        raise ClaimError(f"`{expression}` has more than one expression")
    return value


def apply(operator: Callable[[float, float], float], left: Any, right: Any) -> Any:
    """The operation on numbers, or on each item of lists."""
    if isinstance(left, list) and isinstance(right, list):
        return [apply(operator, a, b) for a, b in zip(left, right, strict=True)]
    if isinstance(left, list):
        return [apply(operator, a, right) for a in left]
    if isinstance(right, list):
        return [apply(operator, left, b) for b in right]
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in (left, right)):
        raise ClaimError(f"arithmetic with {left!r} and {right!r}, which are no numbers"[:160])
    return operator(left, right)


class _Reader:
    """Reads one expression from left to right, and evaluates it as it goes."""

    def __init__(self, expression: str, result: Any):
        self.expression, self.result, self.place = expression.strip(), result, 0
        self.advance()

    def advance(self) -> None:
        """Step to the next token: its kind, or None at the end, and its text."""
        self.kind, self.text = None, ""
        if self.place < len(self.expression):
            match = TOKEN.match(self.expression, self.place)
            if match is None:
                raise ClaimError(f"`{self.expression}` has a sign that is not known: {self.expression[self.place :]!r}")
            self.place, self.kind = match.end(), match.lastgroup
            self.text = match[match.lastgroup or 0]

    def accept(self, sign: str) -> bool:
        """Step over a sign if it is the next token."""
        if (self.kind, self.text) != ("sign", sign):
            return False
        self.advance()
        return True

    def expect(self, sign: str) -> None:
        if not self.accept(sign):
            raise ClaimError(f"`{self.expression}` lacks {sign!r} before {self.text!r}")

    def take(self) -> str:
        """The text of the present token."""
        text = self.text
        self.advance()
        return text

    def sum(self) -> Any:
        value = self.product()
        while self.kind == "sign" and self.text in "+-":
            value = apply(OPERATORS[self.take()], value, self.product())
        return value

    def product(self) -> Any:
        value = self.factor()
        while self.kind == "sign" and self.text in "*/":
            value = apply(OPERATORS[self.take()], value, self.factor())
        return value

    def factor(self) -> Any:
        if self.accept("-"):
            return apply(sub, 0, self.factor())
        if self.accept("("):
            value = self.sum()
            self.expect(")")
            return value
        if self.kind == "number":
            return float(self.take())
        if self.kind not in ("name", "quoted"):
            raise ClaimError(f"`{self.expression}` has no value before {self.text!r}")
        name, bare = self.text, self.kind == "name"
        self.advance()
        if bare and self.accept("("):
            return self.call(name)
        return self.path(descend(self.result, name))

    def call(self, name: str) -> Any:
        if name not in FUNCTIONS:
            raise ClaimError(f"`{name}` is no function; there are {', '.join(FUNCTIONS)}")
        values = self.sum()
        self.expect(")")
        try:
            return FUNCTIONS[name](values)
        except (TypeError, statistics.StatisticsError) as error:
            raise ClaimError(f"`{self.expression}`: {error}") from error

    def path(self, value: Any) -> Any:
        """What follows the first name of a path."""
        while True:
            if self.accept("."):
                value = descend(value, self.take())
            elif self.accept("["):
                value = self.subscript(value)
                self.expect("]")
            else:
                return value

    def subscript(self, value: Any) -> Any:
        is_index = self.kind == "number"
        key = self.take()
        if is_index:
            return item(value, int(key))
        self.expect("=")
        wanted = self.take()
        entries = value if isinstance(value, list) else [value]  # one item was found before
        found = [entry for entry in entries if isinstance(entry, dict) and key in entry]
        if wanted == "max" and found:
            wanted = f"{max(entry[key] for entry in found):g}"
        same = [entry for entry in found if text_of(entry[key]) == wanted]
        if not same:
            raise ClaimError(f"no item has {key} = {wanted}")
        return same[0] if len(same) == 1 else same


def text_of(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def descend(value: Any, name: str) -> Any:
    """The field of an object; of a list, the fields of its items."""
    if isinstance(value, list):
        return [descend(entry, name) for entry in value]
    if not isinstance(value, dict) or name not in value:
        raise ClaimError(f"the result has no {name!r}")
    return value[name]


def item(value: Any, index: int) -> Any:
    if not isinstance(value, list) or index >= len(value):
        raise ClaimError(f"the result has no item {index}")
    return value[index]
