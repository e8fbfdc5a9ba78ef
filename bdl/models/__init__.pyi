# The only list of public names: see bdl/__init__.pyi
import bdl.contrib.language.gpt
import bdl.contrib.language.lora
import bdl.contrib.language.pretrained

from .logits import Logits
from .mlp import CNN, MLP
from .resnet import FilterResponseNorm, ResNet, ResNet18, WideResNet

GPT = bdl.contrib.language.gpt.GPT  # bdl.parts finds those of bdl.contrib: lazy_loader knows this package alone
lora = bdl.contrib.language.lora.lora
pretrained = bdl.contrib.language.pretrained.pretrained

__all__ = [
    "CNN",
    "GPT",
    "MLP",
    "FilterResponseNorm",
    "Logits",
    "ResNet",
    "ResNet18",
    "WideResNet",
    "lora",
    "pretrained",
]
