"""Tests of `bdl.run.sample_arguments`.

The list holds what `bdl.sample` and `bdl.Sampler` take by name, and no more.
"""

import inspect

import bdl
from bdl.run.sample_arguments import SampleArguments

SET_BY_SAMPLE = {"group"}  # one process


def by_name(function) -> list[str]:
    return [name for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY]


def test_the_list_is_complete():
    listed = SampleArguments.__annotations__
    assert set(by_name(bdl.sample)) <= set(listed)
    assert set(listed) == {*by_name(bdl.sample), *by_name(bdl.Sampler.__init__)} - SET_BY_SAMPLE
    required = [n for n, p in inspect.signature(bdl.sample).parameters.items() if p.default is p.empty and n in listed]
    assert SampleArguments.__required_keys__ <= set(listed) and set(required) == {"steps", "lr"}
