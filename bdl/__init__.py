"""bdl: samples from the posterior of a PyTorch network by stochastic-gradient MCMC, inside PyTorch Lightning.

The public names stand in `__init__.pyi`. Each is imported where it is first used.
"""

from importlib import import_module

import lazy_loader

__version__ = "0.2.0"

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    # A package inside a package, which lazy_loader would look up as an attribute
    return import_module("bdl.lightning.callbacks") if name == "callbacks" else _load(name)
