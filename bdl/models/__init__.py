"""Networks."""

from bdl.models.mlp import MLP
from bdl.models.resnet import FilterResponseNorm, ResNet

__all__ = ["MLP", "FilterResponseNorm", "ResNet"]
