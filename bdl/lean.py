"""Lightning, imported without what its import brings along and no run needs: half the seconds of all imports.

torchmetrics imports matplotlib, scipy, torchvision and transformers where they are installed. torch's compiler is
imported by Lightning, for a class and a decorator, and by torch for the first optimizer. Each is imported where it is
used.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

TORCHMETRICS, COMPILER, PLOT = "torchmetrics", "torch._dynamo", "torchmetrics.utilities.plot"
# What Lightning takes of torchmetrics -> the module to import it from
_PLACES = {"__version__": "__about__", "Metric": "utilities.checks", "MetricCollection": "collections"}


class _OfCompiler(type):
    """The type of a class of the compiler, of which nothing is an instance until the compiler is imported."""

    def __instancecheck__(cls, instance: object) -> bool:
        real = getattr(sys.modules.get(COMPILER), "OptimizedModule", None)
        return real is not None and isinstance(instance, real)


class OptimizedModule(metaclass=_OfCompiler):
    """The compiler's class of this name to Lightning, which only asks whether a module is one."""


def disable(function: Callable[..., Any], recursive: bool = True, **named: Any) -> Callable[..., Any]:
    """The compiler's decorator, which is applied once the compiler is imported: nothing is compiled before."""
    decorated: list[Callable[..., Any]] = []  # the compiler would warn of functools.cache

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        decorate = None if decorated else getattr(sys.modules.get(COMPILER), "disable", None)
        if decorate not in (None, disable):
            decorated.append(decorate(function, recursive, **named))
        return (decorated[0] if decorated else function)(*arguments, **keywords)

    return call


def disable_on_demand(owner: type) -> None:
    """Let the methods that torch keeps from its compiler, those of `torch._disable_dynamo`, not import it."""
    for method in vars(owner).values():
        if "disable_fn" in getattr(getattr(method, "__code__", None), "co_varnames", ()):
            plain: Any = method.__wrapped__
            plain.__dynamo_disable = getattr(plain, "__dynamo_disable", None) or disable(plain, wrapping=False)


def metrics_on_demand() -> None:
    """Let `import torchmetrics` import Metric and MetricCollection, and the rest when another name is used.

    A module of it that is imported by its own name leaves the rest out too, with the old names that the package gives
    back to numpy, PIL and scipy.
    """
    spec = None if TORCHMETRICS in sys.modules else importlib.util.find_spec(TORCHMETRICS)
    if spec is None or spec.loader is None:
        return
    package: Any = importlib.util.module_from_spec(spec)
    package._logger, loader = logging.getLogger(TORCHMETRICS), spec.loader  # its modules read the logger

    def find(name: str) -> Any:
        if name in _PLACES:
            with stand_in(PLOT, _AX_TYPE=object, _PLOT_OUT_TYPE=object, plot_single_or_multi_val=plot_values):
                return getattr(importlib.import_module(f"{TORCHMETRICS}.{_PLACES[name]}"), name)
        if package.__dict__.pop("__getattr__", None) is not None:
            loader.exec_module(package)
        return getattr(package, name)

    package.__getattr__ = find
    sys.modules[TORCHMETRICS] = package


def plot_values(*arguments: Any, **keywords: Any) -> Any:
    """What `Metric.plot` draws with, from the module of torchmetrics that imports matplotlib."""
    return importlib.import_module(PLOT).plot_single_or_multi_val(*arguments, **keywords)


@contextmanager
def stand_in(module: str, **names: Any) -> Iterator[None]:
    """Give these names to what is imported inside from a module that is not there yet, and nothing else of it."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = ModuleType(module)
    vars(sys.modules[module]).update(names)
    try:
        yield
    finally:
        del sys.modules[module]


metrics_on_demand()
with stand_in(COMPILER, OptimizedModule=OptimizedModule, disable=disable):
    import lightning as L
disable_on_demand(torch.optim.Optimizer)

__all__ = ["L", "disable_on_demand"]
