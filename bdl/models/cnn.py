"""A small convolutional network for 32x32 images, from the Lightning post on SGLD and cyclical SG-MCMC."""

from __future__ import annotations

from torch import nn


class CNN(nn.Sequential):
    """Two 3x3 convolutions with pooling, two linear layers: x (B, 3, 32, 32) -> logits (B, num_classes).

    Conv(3, 16), pool, Conv(16, 32), pool, Linear(1152, 128), Linear(128, num_classes), with ReLU between them.
    It has 0.15 M parameters for 10 classes, and no normalisation. The post has ReLU before the pooling; max and ReLU
    commute, and after it ReLU has a quarter of the work.
    """

    def __init__(self, num_classes: int = 10):
        super().__init__(
            nn.Conv2d(3, 16, 3), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(16, 32, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
            nn.Linear(1152, 128), nn.ReLU(), nn.Linear(128, num_classes),
        )  # fmt: skip
