"""Injected noise: standard normal numbers that are a function of (seed, stack, step), not of what was drawn before.

They come from a counter-based generator, ThreeFry-4x32 with 20 rounds (Salmon et al. 2011, "Parallel random numbers: as
easy as 1, 2, 3"), and Box & Muller's transform, in C on a machine with a compiler and else in NumPy. Both forms have
the same bits before the transform, and equal each other to rounding after it.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdl import native
from bdl.seeding import derive_key

SOURCE = Path(__file__).with_name("c") / "normal_kernel.c"
LANES = 16  # counters of a group, each of which gives four numbers: common.h has the same
_TURNS = np.array(
    [[10, 26], [11, 21], [13, 27], [23, 5], [6, 20], [17, 11], [25, 10], [18, 20]], dtype=np.uint32
)  # table 2 of Salmon et al.
_PARITY = 0x1BD11BDA  # the key's fifth word is this, xor the other four


class Noise:
    """The standard normal numbers of the steps of one stack.

    In float32 on a CPU nothing of it has to be saved: a step that is made again, in another process too, has the same
    numbers. Others come from a torch generator of the chain.
    """

    def __init__(self, seed: int, stack: int):
        self.key = derive_key("noise", seed, stack)
        self._words = (ctypes.c_uint32 * 4)(*self.key)
        self.address = ctypes.addressof(self._words)

    def fill(self, z: Tensor, step: int, generator: torch.Generator | None = None) -> Tensor:
        """Write the numbers of a step into z, contiguous and of any shape. generator: for other types and devices."""
        if z.dtype != torch.float32 or z.device.type != "cpu":
            return z.normal_(generator=generator)
        library = _library()
        if library is None:
            z.view(-1).copy_(torch.from_numpy(normal(self.key, step, z.numel())))
        else:
            library.bdl_normal(self.address, step, 0, z.numel(), z.data_ptr())
        return z


def normal(key: tuple[int, ...], step: int, n: int) -> np.ndarray:
    """(n,) float32, the first numbers of a step, as the C code makes them."""
    groups = -(-n // (4 * LANES))
    counter = np.arange(groups * LANES, dtype=np.uint64)
    low, high = counter & 0xFFFFFFFF, counter >> 32
    words = np.stack([low, high, np.full_like(low, step & 0xFFFFFFFF), np.full_like(low, step >> 32)])
    bits = threefry(key, words.astype(np.uint32)).reshape(4, groups, LANES)
    r, angle = radius(bits[0::2]), bits[1::2].astype(np.float64) * (np.pi / 2**31)
    pairs = np.stack([r * np.cos(angle), r * np.sin(angle)], 1)  # (2 radii, cos and sin, groups, LANES)
    return pairs.reshape(4, groups, LANES).swapaxes(0, 1).reshape(-1)[:n].astype(np.float32)


def radius(bits: np.ndarray) -> np.ndarray:
    """sqrt(-2 log u) in double, for u = (4 k + 1) 2^-33 in float32, k = the upper 31 of the random bits (uint32)."""
    u = (bits >> np.uint32(1)).astype(np.float32) * np.float32(2**-31) + np.float32(2**-33)
    return np.sqrt(-2 * np.log(u.astype(np.float64)))


def threefry(key: tuple[int, ...], counter: np.ndarray) -> np.ndarray:
    """(4, n) random words (uint32) of the blocks with these counters (4, n), under a key of four words."""
    parity = functools.reduce(int.__xor__, key, _PARITY)
    words = np.array([*key, parity], dtype=np.uint32)[:, None]
    x = counter + words[:4]
    a, b = x[0::2].copy(), x[1::2].copy()  # words 0 and 2, and their partners: 1 and 3, in every other round 3 and 1
    for r in range(20):
        turn = _TURNS[r % 8][:, None]
        a += b
        b = (((b << turn) | (b >> (np.uint32(32) - turn))) ^ a)[::-1]
        if r % 4 == 3:
            i = r // 4 + 1
            a += words[[i % 5, (i + 2) % 5]]
            b = b + words[[(i + 1) % 5, (i + 3) % 5]]
            b[1] += np.uint32(i)
    out = np.empty_like(x)
    out[0::2], out[1::2] = a, b
    return out


@functools.cache
def _library() -> Any:
    """The compiled code; None on a machine without a compiler."""
    library: Any = native.load(SOURCE)
    address, number = ctypes.c_void_p, ctypes.c_int64
    functions = [
        ("normal", None, [address, number, number, number, address]),
        ("threefry", None, [address, number, number, address]),
    ]
    return None if library is None else native.typed(library, "bdl_", functions)
