"""A seed for every purpose: the same on every machine, another for other parts, and never a global stream."""

import hashlib
import itertools

import numpy as np
import torch

from bdl.seeding import derive_seed, generator


def test_a_seed_is_the_hash_of_its_parts_everywhere():
    """The first four bytes of sha256: samples are the same on every machine."""
    text = "('noise', 0, 1)"
    assert derive_seed("noise", 0, 1) == int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
    assert derive_seed("noise", np.int64(0), 1) == derive_seed("noise", 0, 1)


def test_other_parts_and_another_order_have_other_seeds():
    seeds = [derive_seed(*parts) for parts in itertools.product(("noise", "batches"), range(40), range(40))]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**32 for seed in seeds)


def test_a_generator_has_its_parts_stream_and_spares_global_one():
    before = torch.random.get_rng_state()
    first, again, other = (torch.randn(5, generator=generator("cpu", "noise", i)) for i in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(before, torch.random.get_rng_state())
