"""Seeds derived by hashing: (0, 1) and (1, 0) name different random streams, and neighbouring seeds are unrelated."""

from __future__ import annotations

import hashlib
import struct

import torch


def derive_seed(*parts: int | str) -> int:
    """A 32-bit seed from any numbers and words. 32 bits, because torch's CPU generator reads only the low 32.

    >>> derive_seed("noise", 0, 1) == derive_seed("noise", 1, 0)
    False
    """
    return derive_key(*parts)[0]


def derive_key(*parts: int | str) -> tuple[int, int, int, int]:
    """Four 32-bit words from any numbers and words, as a counter-based generator takes them."""
    plain = tuple(p if isinstance(p, str) else int(p) for p in parts)  # NumPy's integers print differently from int
    digest = hashlib.sha256(repr(plain).encode()).digest()
    return struct.unpack("<4I", digest[:16])


def generator(device: torch.device | str, *parts: int | str) -> torch.Generator:
    """A random stream on the device, seeded with `derive_seed(*parts)`."""
    return torch.Generator(device).manual_seed(derive_seed(*parts))
