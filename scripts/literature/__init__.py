"""Published experiments, run with bdl: pictures, and tables of published numbers beside ours."""

from importlib import import_module

from literature.experiment import REGISTRY, Context, Experiment, Result, Table, experiment, find
from literature.output import markdown, reproduce

MODULES = [
    "energies", "slides", "functions", "gaussians", "gaussians_listing", "regression", "toy", "mixtures",
    "cyclical", "volatility", "variational", "landsat", "cifar", "cnn",
]  # fmt: skip
for _module in MODULES:
    import_module(f"literature.{_module}")  # registers its experiments

__all__ = ["REGISTRY", "Context", "Experiment", "Result", "Table", "experiment", "find", "markdown", "reproduce"]
