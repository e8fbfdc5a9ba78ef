"""Callbacks that work with any LightningModule whose `configure_optimizers` returns a Sampler."""

from bdl.lightning.blocks import StepCallback
from bdl.lightning.callbacks.average import ModelAverage
from bdl.lightning.callbacks.checkpoint import SaveLast, TimeLimit
from bdl.lightning.callbacks.collect import CollectSamples
from bdl.lightning.callbacks.monitor import Monitor
from bdl.lightning.callbacks.progress import StepProgress
from bdl.lightning.callbacks.promises import Promises
from bdl.lightning.callbacks.schedule import Schedule
from bdl.lightning.callbacks.start import EnsembleStart

__all__ = [
    "CollectSamples",
    "EnsembleStart",
    "ModelAverage",
    "Monitor",
    "Promises",
    "SaveLast",
    "Schedule",
    "StepCallback",
    "StepProgress",
    "TimeLimit",
]
