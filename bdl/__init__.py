"""bdl: samples from the posterior of a PyTorch network by stochastic-gradient MCMC, inside PyTorch Lightning.

The public names stand in `__init__.pyi`. Each is imported where it is first used.
"""

from __future__ import annotations

from importlib import import_module

import lazy_loader

__version__ = "0.3.0"  # the one source: the build reads it here

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    # Packages inside packages, which lazy_loader would look up as attributes
    inside = {"callbacks": "bdl.lightning.callbacks", "plot": "bdl.posterior.plot"}
    inside |= {package: f"bdl.{package}" for package in ("engine", "likelihoods", "posterior", "samplers", "tune")}
    return import_module(inside[name]) if name in inside else _load(name)
