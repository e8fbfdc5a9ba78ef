"""Tests of `bdl.run.validate`.

Which values of YAML may stand for which annotations.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import pytest
from torch import Tensor

from bdl.run.validate import arguments_of, rule_of

CASES = [
    (int, [0, -3], [1.0, True, "1", None], "a whole number"),
    (float, [0, 0.5], [True, "0.5", None], "a number"),
    (bool, [True, False], [0, 1, "true"], "true or false"),
    (str, ["a"], [1, None], "a word"),
    (int | None, [1, None], [1.5], "a whole number or null"),
    (str | Path, ["data"], [None, 3], "a path"),
    (Literal["batch", "full"], ["batch"], ["ema", 1, True], '"batch" or "full"'),
    (float | Literal["estimated"], [0.1, 2, "estimated"], ["known"], 'a number or "estimated"'),
    (float | Tensor, [1], ["small", [1.0]], "a number"),
    (Sequence[float], [[1, 2.5], []], [3, ["a"], "ab"], "a list of numbers"),
    (tuple[int, ...], [[1, 2]], [[1.5]], "a list of whole numbers"),
    (dict[str, Any], [{"a": 1}], [[1]], "a mapping"),
    (Callable[[int], float], [], [1, "f"], "built by a _target_ (Callable)"),
    (Tensor | None, [None], [1], "built by a _target_ (Tensor) or null"),
    (Any, [1, "a", None, [2]], [], None),
]


@pytest.mark.parametrize(("annotation", "good", "bad", "words"), CASES, ids=[str(case[0]) for case in CASES])
def test_a_value_fits_its_annotation(annotation, good, bad, words):
    rule = rule_of(annotation)
    assert all(map(rule.fits, good)) and not any(map(rule.fits, bad))
    assert words is None or rule.words == words


def test_annotations_that_cannot_be_evaluated_are_not_checked():
    def build(size: "Missing") -> None:  # noqa: F821
        pass

    assert arguments_of(build) == ({"size": Any}, False)


class Options(TypedDict, total=False):
    seed: int
    chains: int | None


def test_items_of_typed_options_are_arguments_others_may_be_any():
    def typed(path: str, **options: Unpack[Options]) -> None:
        pass

    def untyped(path: str, **options: int) -> None:
        pass

    assert arguments_of(typed) == ({"path": str, "seed": int, "chains": int | None}, False)
    assert arguments_of(untyped) == ({"path": str}, True)
