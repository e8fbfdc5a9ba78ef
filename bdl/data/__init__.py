"""Data modules and loaders."""

from bdl.data.landsat import LandsatDataModule
from bdl.data.loader import TensorBatches, TensorSlices

__all__ = ["LandsatDataModule", "TensorBatches", "TensorSlices"]
