"""The samples that the checkpoints of a run know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import torch
from omegaconf import OmegaConf

from bdl.baselines.base import FOLDER as TRAINED
from bdl.errors import ConfigError, StoreError
from bdl.posterior.index import Digest, read_index
from bdl.run.records import read_config

_NAME = re.compile(r"last(-(\d+))?\.ckpt")


def known_samples(run: Path) -> Iterator[tuple[Path, Digest, bool]]:
    """(checkpoint, what it knows, whether the index begins with these samples) of every checkpoint that can be read.

    A checkpoint of another name or of an older bdl knows none, and is left out.
    """
    for path in sorted((run / "checkpoints").glob("last*.ckpt")):
        name, digest = _NAME.fullmatch(path.name), digest_of(path)
        if name is None or digest is None:
            continue
        stack = first_stack(run) if name[2] is None else int(name[2])
        sampled = run / TRAINED if (run / TRAINED).exists() else run
        yield path, digest, _begins_with(sampled / "samples" / f"index-{stack}.jsonl", stack, digest)


def digest_of(checkpoint: Path) -> Digest | None:
    """What a checkpoint knows of its samples; None where it knows nothing, or cannot be read."""
    try:
        collector = torch.load(checkpoint, "cpu", weights_only=True, mmap=True)["callbacks"]["CollectSamples"]
        return Digest(**collector["samples"]["written"])
    except Exception:  # the parsers may raise anything
        return None


def first_stack(run: Path) -> int:
    """The stack whose checkpoint is last.ckpt."""
    try:
        stack = OmegaConf.select(read_config(run), "stack")
    except ConfigError:  # absent or damaged
        return 0
    return stack if type(stack) is int else 0


def _begins_with(index: Path, stack: int, digest: Digest) -> bool:
    """Whether the first lines of an index are those that a checkpoint knows."""
    try:
        return Digest().add(read_index(index, stack)[: digest.count]) == digest
    except StoreError:
        return False
