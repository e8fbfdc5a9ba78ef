"""Networks: MLP, CNN, ResNet, ResNet18, WideResNet, GPT; in `bdl.engine.stack`, C copies of one run as one."""

from __future__ import annotations

from bdl.parts import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
