"""Callbacks that work with any LightningModule whose `configure_optimizers` returns a Sampler."""

from __future__ import annotations

from typing import Any

from bdl.lightning.blocks import StepCallback as StepCallback
from bdl.lightning.callbacks.average import ModelAverage as ModelAverage
from bdl.lightning.callbacks.checkpoint import SaveLast as SaveLast
from bdl.lightning.callbacks.checkpoint import TimeLimit as TimeLimit
from bdl.lightning.callbacks.collect import CollectSamples as CollectSamples
from bdl.lightning.callbacks.monitor import Monitor as Monitor
from bdl.lightning.callbacks.progress import StepProgress as StepProgress
from bdl.lightning.callbacks.promises import Promises as Promises
from bdl.lightning.callbacks.schedule import Schedule as Schedule
from bdl.lightning.callbacks.start import EnsembleStart as EnsembleStart
from bdl.parts import part


def __getattr__(name: str) -> Any:
    if name == "LearningCoefficient":
        return part("bdl.callbacks.LearningCoefficient")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
