"""Data modules, loaders and augmentation. Those that need torchvision or pandas are imported at first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bdl.data.augment import Augment, Normalise
from bdl.data.landsat import LandsatDataModule
from bdl.data.loader import TensorBatches, TensorSlices, WorkerBatches
from bdl.data.module import DataModule, as_data_module
from bdl.data.tensors import TensorDataModule

if TYPE_CHECKING:
    from bdl.data.cifar import CIFARDataModule
    from bdl.data.columns import Columns, TableSplit
    from bdl.data.frame import Reading
    from bdl.data.images import ImageFolderDataModule
    from bdl.data.table import TableDataModule, read_table

__all__ = [
    "Augment",
    "CIFARDataModule",
    "Columns",
    "DataModule",
    "ImageFolderDataModule",
    "LandsatDataModule",
    "Normalise",
    "Reading",
    "TableDataModule",
    "TableSplit",
    "TensorBatches",
    "TensorDataModule",
    "TensorSlices",
    "WorkerBatches",
    "as_data_module",
    "read_table",
]
_SLOW = {"CIFARDataModule": "cifar", "ImageFolderDataModule": "images", "Reading": "frame"}
_SLOW |= dict.fromkeys(("Columns", "TableSplit"), "columns") | dict.fromkeys(("TableDataModule", "read_table"), "table")


def __getattr__(name: str) -> Any:
    if name not in _SLOW:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"bdl.data.{_SLOW[name]}"), name)
