"""Data modules, loaders and augmentation. CIFARDataModule is imported at its first use, because torchvision is slow."""

from typing import TYPE_CHECKING, Any

from bdl.data.augment import Augment, Normalise
from bdl.data.landsat import LandsatDataModule
from bdl.data.loader import TensorBatches, TensorSlices, WorkerBatches

if TYPE_CHECKING:
    from bdl.data.cifar import CIFARDataModule

__all__ = [
    "Augment",
    "CIFARDataModule",
    "LandsatDataModule",
    "Normalise",
    "TensorBatches",
    "TensorSlices",
    "WorkerBatches",
]


def __getattr__(name: str) -> Any:
    if name != "CIFARDataModule":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bdl.data.cifar import CIFARDataModule

    return CIFARDataModule
