"""Networks: MLP, CNN, ResNet, ResNet18, WideResNet; and, in `bdl.engine.stack`, C copies of a network run as one."""

from bdl.models.lora import Logits, lora
from bdl.models.mlp import CNN, MLP
from bdl.models.resnet import FilterResponseNorm, ResNet, ResNet18, WideResNet

__all__ = ["CNN", "MLP", "FilterResponseNorm", "Logits", "ResNet", "ResNet18", "WideResNet", "lora"]
