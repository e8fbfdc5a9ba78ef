"""Networks."""

from bdl.models.cnn import CNN
from bdl.models.mlp import MLP
from bdl.models.resnet import FilterResponseNorm, ResNet
from bdl.models.wide_resnet import WideResNet

__all__ = ["CNN", "MLP", "FilterResponseNorm", "ResNet", "WideResNet"]
