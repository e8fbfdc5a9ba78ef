# The only list of public names: see bdl/__init__.pyi
import bdl.contrib.language.text
import bdl.contrib.shift

from .augment import Augment, Normalise
from .cifar import CIFARDataModule
from .columns import Columns, TableSplit
from .frame import Reading
from .images import ImageFolderDataModule
from .landsat import LandsatDataModule
from .loader import TensorBatches, TensorSlices, WorkerBatches
from .module import DataModule, as_data_module
from .table import TableDataModule, read_table
from .tensors import TensorDataModule

Shift = bdl.contrib.shift.Shift  # bdl.parts finds those of bdl.contrib: lazy_loader knows this package alone
TextDataModule = bdl.contrib.language.text.TextDataModule

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
