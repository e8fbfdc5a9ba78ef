"""The published experiments, run with bdl: pictures, and tables of published numbers beside ours."""

from importlib import import_module

from bdl.reproduce.experiment import REGISTRY, Context, Experiment, Result, Table, experiment, find
from bdl.reproduce.output import markdown, reproduce

MODULES = [
    "energies", "slides", "functions", "gaussians", "regression", "toy", "mixtures", "cyclical", "volatility",
    "variational", "landsat", "cifar",
]  # fmt: skip
for _module in MODULES:
    import_module(f"bdl.reproduce.{_module}")  # registers its experiments

__all__ = ["REGISTRY", "Context", "Experiment", "Result", "Table", "experiment", "find", "markdown", "reproduce"]
