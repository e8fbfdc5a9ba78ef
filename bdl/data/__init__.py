"""Data modules and loaders."""

from bdl.data.augment import Augment, Normalise
from bdl.data.cifar import CIFARDataModule
from bdl.data.landsat import LandsatDataModule
from bdl.data.loader import TensorBatches, TensorSlices, WorkerBatches

__all__ = [
    "Augment",
    "CIFARDataModule",
    "LandsatDataModule",
    "Normalise",
    "TensorBatches",
    "TensorSlices",
    "WorkerBatches",
]
