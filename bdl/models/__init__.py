"""Networks."""

from bdl.models.mlp import MLP

__all__ = ["MLP"]
