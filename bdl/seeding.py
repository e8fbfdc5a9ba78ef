"""Seeds derived by hashing, so that (0, 1) and (1, 0) draw different streams and neighbours are unrelated."""

from __future__ import annotations

import hashlib

import torch


def derive_seed(*parts: int | str) -> int:
    """A 32-bit seed from any numbers and words. 32 bits, because torch's CPU generator reads only the low 32."""
    plain = tuple(p if isinstance(p, str) else int(p) for p in parts)  # so that NumPy's integers count as integers
    digest = hashlib.sha256(repr(plain).encode()).digest()
    return int.from_bytes(digest[:4], "little")


def generator(device: torch.device | str, *parts: int | str) -> torch.Generator:
    return torch.Generator(device).manual_seed(derive_seed(*parts))
