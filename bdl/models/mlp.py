"""Multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from bdl.errors import ConfigError

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU, "gelu": nn.GELU}


class MLP(nn.Sequential):
    """Linear layers with an activation and, if dropout > 0, a dropout between them.

    sizes: features of input, hidden layers and output, e.g. (36, 30, 30, 6). Inputs (..., sizes[0]), outputs logits
    (..., sizes[-1]). Raises ConfigError for an unknown activation.
    """

    def __init__(self, sizes: Sequence[int], activation: str = "tanh", dropout: float = 0.0):
        if activation not in ACTIVATIONS:
            raise ConfigError(f"unknown activation {activation!r}: one of {', '.join(ACTIVATIONS)}")
        if len(sizes) < 2:
            raise ConfigError(f"an MLP needs at least input and output sizes, got {list(sizes)}")
        layers: list[nn.Module] = []
        for fan_in, fan_out in zip(sizes[:-1], sizes[1:], strict=True):
            layers += [nn.Linear(fan_in, fan_out), ACTIVATIONS[activation]()]
            if dropout > 0:
                layers.append(nn.Dropout(dropout))
        del layers[-1 - (dropout > 0) :]  # none after the output
        super().__init__(*layers)
