"""The files that describe the samples of a run, target.json and the weightings: as bytes with a checksum, and read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bdl.errors import StoreError
from bdl.files import read_file

CHECKSUM = "checksum"  # the key of target.json, and of what a weighting's header says


def target_as_bytes(target: Mapping[str, Any]) -> bytes:
    target = json.loads(json.dumps(target))  # as it will be read
    return json.dumps({**target, CHECKSUM: _sum_of(target)}, indent=1, sort_keys=True).encode()


def read_target(path: Path) -> dict[str, Any]:
    """What `target_as_bytes` was given; a file of an older bdl has no checksum. Raises StoreError."""
    try:
        target = json.loads(read_file(path))
        if not isinstance(target, dict):
            raise ValueError("it is no mapping")
        if CHECKSUM in target and target.pop(CHECKSUM) != _sum_of(target):
            raise ValueError("its checksum does not match")
        return target
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({error}): restore it") from error
    except OSError as error:
        run = path.parents[1]
        raise StoreError(f"{run} is not a run directory: {path} cannot be read ({error.strerror})") from error


def weighting_as_bytes(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> bytes:
    contiguous = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    said = {**about, CHECKSUM: _sum_of(about, contiguous)}
    return safetensors.torch.save(contiguous, {"about": json.dumps(said, sort_keys=True)})


def read_weighting(path: Path) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """What `weighting_as_bytes` was given, None without a file. Raises StoreError for a damaged one."""
    if not path.exists():
        return None
    try:
        tensors = safetensors.torch.load(read_file(path))
        with safe_open(path, "pt") as f:
            about = json.loads((f.metadata() or {})["about"])
        if CHECKSUM in about and about.pop(CHECKSUM) != _sum_of(about, tensors):
            raise ValueError("its checksum does not match")
        return tensors, about
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path} is not a whole safetensors file ({error}): finish or repeat the run") from error


def first_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """(path, value of a, value of b) of the first key that differs, such as `prior.precision`.

    A missing key equals null. `type` is compared first: with another type most of the other keys differ as well.
    """
    for key in sorted(a.keys() | b.keys(), key=lambda k: (k != "type", k)):
        in_a, in_b = a.get(key), b.get(key)
        if isinstance(in_a, dict) and isinstance(in_b, dict):
            if inner := first_difference(in_a, in_b):
                return f"{key}.{inner[0]}", inner[1], inner[2]
        elif in_a != in_b:
            return key, in_a, in_b
    return None


def brief(value: Any) -> str:
    """A value of target.json in at most 60 characters, for a message; "absent" for None."""
    text = "absent" if value is None else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _sum_of(words: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> str:
    """16 hexadecimal digits of all that is said, and of the names, types, shapes and bytes of the tensors."""
    digest = hashlib.sha256(json.dumps(words, sort_keys=True).encode())
    for name, tensor in sorted((tensors or {}).items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:16]
