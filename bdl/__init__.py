"""bdl: samples from the posterior of a PyTorch network by stochastic-gradient MCMC, inside PyTorch Lightning.

The public names stand in `__init__.pyi`. Each is imported where it is first used.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import lazy_loader

from bdl.collector import paused

__version__ = "0.3.0"  # the one source: the build reads it here

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    # Packages inside packages, which lazy_loader would look up as attributes
    inside = {"callbacks": "bdl.lightning.callbacks", "plot": "bdl.posterior.plot"}
    with paused():
        if name in inside:
            return import_module(inside[name])
        try:
            return _load(name)
        except AttributeError:
            if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
                raise
            return import_module(f"{__name__}.{name}")  # a module such as bdl.sklearn, which is no public name
