"""Repetitions of one claim: some cases of a parametrisation run by default, the others under the slow marker."""

from collections.abc import Callable, Iterable

import pytest


def slow_where(repeats: Callable[..., bool], cases: Iterable) -> list:
    """The cases, of which those that only repeat the claim of another one are marked slow.

    repeats: of the arguments of a case, whether it does. A case is one argument or a tuple of them.
    """
    together = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=pytest.mark.slow) if repeats(*case) else pytest.param(*case) for case in together]
