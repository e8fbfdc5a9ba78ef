"""The examples in docstrings of `bdl.targets` print what they say."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["base", "chains"])
def test_examples(name):
    results = doctest.testmod(importlib.import_module(f"bdl.targets.{name}"))
    assert results.attempted > 0 and results.failed == 0
