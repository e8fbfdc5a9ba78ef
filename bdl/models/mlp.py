"""MLP: a multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from bdl.errors import ConfigError

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU, "gelu": nn.GELU}


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
