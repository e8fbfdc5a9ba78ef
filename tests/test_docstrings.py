"""The examples in the docstrings of the package print what they say."""

import doctest
import importlib

import pytest
from repeats import slow_where
from test_structure import modules

from bdl.errors import ConfigError

EXAMPLES = {name: path for name, path in modules().items() if ">>> " in path.read_text()}


@pytest.mark.parametrize("name", slow_where("bdl.contrib.landscape.coefficient".__eq__, EXAMPLES))  # it samples
def test_examples(name: str):
    try:
        module = importlib.import_module(name)
    except ConfigError as error:  # of a part that needs an extra
        pytest.skip(str(error))
    results = doctest.testmod(module)
    assert results.attempted > 0 and results.failed == 0


def test_the_public_api_has_examples():
    """The bases that users subclass, the stack, the likelihoods and the schedules show how they are used."""
    wanted = {"bdl.samplers.dynamics.base", "bdl.engine.stack", "bdl.likelihoods", "bdl.schedules"}
    assert wanted <= EXAMPLES.keys()
