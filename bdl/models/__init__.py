"""Networks: MLP, CNN, ResNet, ResNet18, WideResNet, GPT; in `bdl.engine.stack`, C copies of one run as one."""

from __future__ import annotations

from bdl.models.gpt import GPT
from bdl.models.lora import lora
from bdl.models.mlp import CNN, MLP
from bdl.models.pretrained import Logits, pretrained
from bdl.models.resnet import FilterResponseNorm, ResNet, ResNet18, WideResNet

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
