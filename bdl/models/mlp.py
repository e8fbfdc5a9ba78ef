"""Small networks: a multilayer perceptron, and the CNN of the Lightning post on SGLD and cyclical SG-MCMC."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from bdl.errors import ConfigError

AUTO = "auto"
FEW_ROWS = 200  # rows of numbers for which one wide layer predicts best: it comes closest to a Gaussian process
MANY_INPUTS, MANY_CLASSES = 32, 10  # more than 16 units hold
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU, "gelu": nn.GELU}


def hidden_layers(rows: int, inputs: int, classes: int = 0) -> list[int]:
    """Units of the hidden layers for a table, the best on tables for development. classes: 0 for numbers.

    >>> hidden_layers(rows=1000, inputs=8)
    [16, 16, 16]
    """
    if classes:
        return [32, 32] if inputs > MANY_INPUTS or classes > MANY_CLASSES else [16, 16, 16]
    return [50] if rows <= FEW_ROWS else [16, 16, 16]


class MLP(nn.Sequential):
    """Linear layers with an activation between them, and a dropout after each activation if dropout > 0.

    Inputs are (..., sizes[0]), outputs (..., sizes[-1]).

        >>> [type(layer).__name__ for layer in MLP((36, 30, 6))]
        ['Linear', 'Tanh', 'Linear']

    Args:
        sizes: features of the input, the hidden layers and the output, e.g. (36, 30, 30, 6).
        activation: "tanh", "relu", "silu" or "gelu".
        dropout: probability with which a feature is dropped.

    Raises ConfigError for an unknown activation and for fewer than two sizes.
    """

    def __init__(self, sizes: Sequence[int], activation: str = "tanh", dropout: float = 0.0):
        if activation not in ACTIVATIONS:
            raise ConfigError(f"unknown activation {activation!r}: choose one of {', '.join(ACTIVATIONS)}")
        if len(sizes) < 2:
            raise ConfigError(
                f"sizes must name at least the features of the input and of the output, got {list(sizes)}"
            )
        layers: list[nn.Module] = []
        for fan_in, fan_out in zip(sizes[:-1], sizes[1:], strict=True):
            layers += [nn.Linear(fan_in, fan_out), ACTIVATIONS[activation]()]
            if dropout > 0:
                layers.append(nn.Dropout(dropout))
        del layers[-1 - (dropout > 0) :]  # no activation follows the output
        super().__init__(*layers)


class CNN(nn.Sequential):
    """Two 3x3 convolutions with pooling, two linear layers: x (B, 3, 32, 32) -> logits (B, num_classes).

    Conv(3, 16), pool, Conv(16, 32), pool, Linear(1152, 128), Linear(128, num_classes), with ReLU between them.
    It has 0.15 M parameters for 10 classes, no normalisation, and dropout before the last layer where asked for. The
    post has ReLU before the pooling; max and ReLU commute, and after it ReLU has a quarter of the work.
    """

    def __init__(self, num_classes: int = 10, dropout: float = 0.0):
        super().__init__(
            nn.Conv2d(3, 16, 3), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(16, 32, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
            nn.Linear(1152, 128), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else []), nn.Linear(128, num_classes),
        )  # fmt: skip
