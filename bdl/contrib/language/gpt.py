"""A small GPT, made of torch's own layers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdl.errors import ConfigError

STD = 0.02  # standard deviation of the weights at the start; Radford et al. 2019


class CausalAttention(nn.Module):
    """Self-attention in which a token sees itself and those before it: h (B, T, width) -> (B, T, width)."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.queries_keys_values, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        split = self.queries_keys_values(h).unflatten(-1, (3, self.heads, -1))  # (B, T, 3, heads, width / heads)
        q, k, v = split.movedim(-3, 0).transpose(-3, -2)  # each (B, heads, T, width / heads)
        p = self.dropout if self.training else 0.0
        return self.out(
            F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True).transpose(-3, -2).flatten(-2)
        )


class TransformerBlock(nn.Module):
    """Attention and a two-layer network, each added to its input, which is normalised before (Radford et al. 2019)."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads, dropout)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.drop(self.attention(self.norm_attention(h)))
        return h + self.drop(self.mlp(self.norm_mlp(h)))


class GPT(nn.Module):
    """A decoder-only transformer (Radford et al. 2019): tokens x (B, T) -> logits of the next ones (B, T, vocabulary).

    Position t of the outputs is computed from x[:, :t + 1] alone. Attention is torch's `scaled_dot_product_attention`,
    which takes a flash kernel where there is one.

        >>> net = GPT(vocabulary=10, context=8, width=16, layers=1, heads=2)
        >>> net(torch.zeros(3, 8, dtype=torch.int64)).shape
        torch.Size([3, 8, 10])

    Args:
        vocabulary: K, the number of different tokens.
        context: the largest T.
        width: features of a token; a multiple of `heads`.
        layers: number of blocks.
        heads: how many the attention of each block has.
        dropout: probability with which a feature, or an attention, is dropped.

    Raises ConfigError for a width that is no multiple of heads, and for more tokens than `context`.
    """

    def __init__(
        self, vocabulary: int, context: int, width: int = 64, layers: int = 2, heads: int = 4, dropout: float = 0.0
    ):
        super().__init__()
        if width % heads:
            raise ConfigError(f"model.width must be a multiple of model.heads, got {width} and {heads}")
        self.context = context
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, dropout) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all weights: N(0, 0.02²), those that add to the residual stream divided by sqrt(2 layers)."""
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(0, STD)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    module.bias.zero_()
        for name, weight in self.named_parameters():
            if name.endswith(("attention.out.weight", "mlp.2.weight")):
                weight.div_(math.sqrt(2 * len(self.blocks)))

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.shape[-1] > self.context:
            raise ConfigError(f"{tokens.shape[-1]} tokens are more than the model's context of {self.context}")
        position = self.position(torch.arange(tokens.shape[-1], device=tokens.device))
        return self.head(self.norm(self.blocks(self.drop(self.token(tokens) + position))))
