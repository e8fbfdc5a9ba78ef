# The only list of public names: see bdl/__init__.pyi
from .augment import Augment, Normalise
from .cifar import CIFARDataModule
from .columns import Columns, TableSplit
from .frame import Reading
from .images import ImageFolderDataModule
from .landsat import LandsatDataModule
from .loader import TensorBatches, TensorSlices, WorkerBatches
from .module import DataModule, as_data_module
from .shift import Shift
from .table import TableDataModule, read_table
from .tensors import TensorDataModule
from .text import TextDataModule

__all__ = [
    "Augment",
    "CIFARDataModule",
    "Columns",
    "DataModule",
    "ImageFolderDataModule",
    "LandsatDataModule",
    "Normalise",
    "Reading",
    "Shift",
    "TableDataModule",
    "TableSplit",
    "TensorBatches",
    "TensorDataModule",
    "TensorSlices",
    "TextDataModule",
    "WorkerBatches",
    "as_data_module",
    "read_table",
]
