"""The language in which a page names a number of a result: a path into a JSON file, a little arithmetic, a format.

    mean(100 * (1 - runs.bma.accuracy)) .2f

A name descends; on a list it maps over the items. `[2]` takes an item, `[seed=0]` those items whose field has the
value, `[passes=max]` those with the largest. Names with other signs stand in double quotes. Arithmetic and functions
take numbers and lists of numbers. Nothing is evaluated by Python. A file .md has lists of objects: `tables[0]`, ...
"""

import ast
import math
import re
import statistics
from collections.abc import Callable
from operator import add, mul, sub, truediv
from typing import Any

NAME = r'(?:"([^"]*)"|([A-Za-z_]\w*))'
CHOICE = rf'\[\s*{NAME}\s*=\s*(?:"([^"]*)"|([\w.]+))\s*\]'
PATH = re.compile(rf"{CHOICE}|(\.?)\s*{NAME}(?!\w|\s*\()")
OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv,
}  # fmt: skip


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
    try:
        return value_of(ast.parse(PATH.sub(quoted, expression.strip()), mode="eval").body, result)
    except SyntaxError as error:
        raise ClaimError(f"`{expression}` cannot be read: {error.msg}") from error


def quoted(match: re.Match[str]) -> str:
    """A part of a path in Python's words: a name is a string, and what a `.` or `=` chooses is a subscript."""
    texts = [text for text in match.groups() if text is not None]
    if match[0].startswith("["):
        return str(texts)  # the key, and what it has to be
    return str(texts[1:]) if texts[0] else repr(texts[1])


def value_of(node: ast.expr, result: Any) -> Any:
    """The value of a part of an expression whose paths are `quoted`."""
    match node:
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            return apply(OPERATORS[type(op)], value_of(left, result), value_of(right, result))
        case ast.UnaryOp(ast.USub(), operand):
            return apply(sub, 0, value_of(operand, result))
        case ast.Call(ast.Name(name), [argument], []):
            return call(name, value_of(argument, result))
        case ast.Constant(str(name)):
            return descend(result, name)
        case ast.Constant(int() | float() as number):
            return float(number)
        case ast.Subscript(value, ast.Constant(str(name))):
            return descend(value_of(value, result), name)
        case ast.Subscript(value, ast.Constant(int(index))):
            return item(value_of(value, result), index)
        case ast.Subscript(value, ast.Tuple([ast.Constant(str(key)), ast.Constant(str(wanted))])):
            return chosen(value_of(value, result), key, wanted)
    raise ClaimError(f"`{ast.unparse(node)}` cannot be read")


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


def call(name: str, values: Any) -> Any:
    if name not in FUNCTIONS:
        raise ClaimError(f"`{name}` is no function; there are {', '.join(FUNCTIONS)}")
    try:
        return FUNCTIONS[name](values)
    except (TypeError, statistics.StatisticsError) as error:
        raise ClaimError(f"{name}: {error}") from error


def chosen(value: Any, key: str, wanted: str) -> Any:
    """The item whose field is as wanted, or those items."""
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
