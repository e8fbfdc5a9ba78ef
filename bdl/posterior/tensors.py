"""The tensors of a network in a store: the sampled part in every sample, and the frozen part in a file of its own."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import operator
import os
from collections.abc import Collection, Container, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from torch import Tensor, nn

from bdl.disk.files import open_regular, parse_json
from bdl.disk.manifest import digest, rest_digest
from bdl.engine.functional import named_tensors, replace_tensors
from bdl.engine.stack import ChainStack
from bdl.errors import StoreError
from bdl.frozen import frozen_tensors
from bdl.snapshot import Sampled
from bdl.torch_private import versions

TYPES = {  # what the names of the format stand for
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "U16": torch.uint16,
    "U32": torch.uint32, "U64": torch.uint64,
}  # fmt: skip
FROZEN = "frozen.safetensors"  # lies in the folder of the samples
CHUNK_OF_FILE = 2**20  # bytes that are compared with a tensor that is held
KEY = "frozen"  # a key of target.json for sha256 and shapes of the part; absent where everything is sampled


def stacked_tensors(net: nn.Module, chains: int | None, frozen: Container[str] = ()) -> dict[str, Tensor]:
    """Views of all parameters and buffers (C, ...), by the names that the plain network gives them; C = 1 for a chain.

    chains: C of tensors with a leading axis of chains, None for a single network. frozen: names that are left out.
    """
    inner, shared = (net.net, net.frozen_names) if isinstance(net, ChainStack) else (net, ())
    kept = {k: v.detach() for k, v in named_tensors(inner).items() if k not in frozen and k not in shared}
    return {k: v if chains is not None else v.unsqueeze(0) for k, v in kept.items()}


def as_bytes(tensors: Mapping[str, Tensor], about: dict[str, str] | None = None) -> bytes:
    """The content of a safetensors file, with `about` in its header."""
    return b"".join(file_parts(tensors, about))


def file_parts(tensors: Mapping[str, Tensor], about: dict[str, str] | None = None) -> list[bytes | memoryview]:
    """The content of a safetensors file in parts: its header, and the memory of each tensor, which is not copied.

    It is what `safetensors.torch.save` makes, to the byte, which holds a second and a third copy of all while it works.
    The library is asked for the order of the tensors, which it takes from their types and names.
    """
    flat = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    empty = safetensors.torch.save({k: v.new_empty(0) for k, v in flat.items()}, about)
    entries = parse_json(empty[8 : 8 + int.from_bytes(empty[:8], "little")])
    metadata, end = entries.pop("__metadata__", None), 0
    for name, entry in entries.items():
        begin, end = end, end + flat[name].nbytes
        entry |= {"shape": list(flat[name].shape), "data_offsets": [begin, end]}
    whole = entries if metadata is None else {"__metadata__": metadata, **entries}
    header = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return [len(header).to_bytes(8, "little") + header, *(_memory(flat[name]) for name in entries)]


def read_tensors(
    path: Path, check: bool = True, in_place_of: Mapping[str, Tensor] | None = None
) -> tuple[dict[str, Tensor], str]:
    """The tensors of a safetensors file, and with `check` its sha256.

    Each tensor is read into its own memory, so that no second copy of the file is ever held. The library would hold
    one. Where the one of its name in `in_place_of` has the same type, shape and bytes, that one is returned, and no
    memory is taken for another.

    Raises OSError for a file that cannot be read, and ValueError with its sha256 for one of another format.
    """
    sha256 = hashlib.sha256()
    with open_regular(path) as f:
        size = os.fstat(f.fileno()).st_size
        try:
            entries, begin = _header(f, size)
            sha256.update(_first(f, begin))
            reading, held = TensorReader(f, sha256 if check else None), in_place_of or {}
            tensors = {name: reading.tensor(dtype, shape, held.get(name)) for name, dtype, shape in entries}
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            f.seek(0)
            raise ValueError(str(error), rest_digest(f)) from error
    return tensors, sha256.hexdigest()


def read_whole(shown: Path, in_place_of: Mapping[str, Tensor] | None, path: Path) -> tuple[dict[str, Tensor], str]:
    """`read_tensors`, with a StoreError that names the file `shown` where `path` holds another format."""
    try:
        return read_tensors(path, in_place_of=in_place_of)
    except ValueError as error:
        raise StoreError(f"{shown} is no whole safetensors file ({error.args[0]}): restore it") from error


def holds_nan(tensor: Tensor) -> bool:
    """Whether a number is NaN. The sum tells in nearly all cases, without a tensor of flags."""
    return not bool(tensor.sum().isfinite()) and bool(tensor.isnan().any())


class TensorReader:
    """Reads the tensors of a file, one after the other. sha256: takes all bytes; None where no checksum is needed."""

    def __init__(self, f: BinaryIO, sha256: Any):
        self._f, self._sha256 = f, sha256

    def tensor(self, dtype: torch.dtype, shape: list[int], held: Tensor | None) -> Tensor:
        """The next tensor of the file, or `held`, on whatever device, if it is the same to the byte.

        One of inference mode is not returned, because nobody can tell whether it is written to.
        """
        if held is None or held.dtype != dtype or list(held.shape) != shape or held.is_inference():
            return self._rest(torch.empty(shape, dtype=dtype), 0)
        same = _bytes(held.detach().cpu().contiguous())
        memory = torch.empty(min(CHUNK_OF_FILE, len(same)), dtype=torch.uint8)
        for begin in range(0, len(same), CHUNK_OF_FILE):
            end = min(begin + CHUNK_OF_FILE, len(same))
            chunk = memory[: end - begin]
            self._fill(chunk)
            if not torch.equal(chunk, same[begin:end]):
                other = torch.empty(shape, dtype=dtype)
                _bytes(other)[:begin], _bytes(other)[begin:end] = same[:begin], chunk
                return self._rest(other, end)
        return held.detach()

    def _rest(self, tensor: Tensor, begin: int) -> Tensor:
        self._fill(_bytes(tensor)[begin:])
        return tensor

    def _fill(self, part: Tensor) -> None:
        memory = part.numpy().data
        if self._f.readinto(memory) != len(memory):  # type: ignore[attr-defined]
            raise ValueError("it has changed meanwhile")
        if self._sha256 is not None:
            self._sha256.update(memory)


def _bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor on the CPU, of whatever type, as uint8."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)  # one number is contiguous whatever its strides


def _memory(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, of whatever type."""
    return _bytes(tensor).numpy().data


def _first(f: BinaryIO, count: int) -> bytes:
    f.seek(0)
    return f.read(count)


def _header(f: BinaryIO, size: int) -> tuple[list[tuple[str, torch.dtype, list[int]]], int]:
    """(name, type, shape) of the tensors in the order in which they lie in the file, without gaps; and where they do.

    Raises ValueError and others for a header of another kind, before anything is allocated for a tensor.
    """
    length = int.from_bytes(f.read(8), "little")
    if not 0 < length <= size - 8:
        raise ValueError("its header is longer than the file")
    header = parse_json(f.read(length))
    header.pop("__metadata__", None)
    end, entries = 0, []
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape = TYPES[entry["dtype"]], [operator.index(n) for n in entry["shape"]]
        after = end + math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or entry["data_offsets"] != [end, after]:
            raise ValueError(f"{name} has another size than its shape")
        end = after
        entries.append((name, dtype, shape))
    if 8 + length + end != size:
        raise ValueError("its tensors are not all that it holds")
    return entries, 8 + length


def copies_of(
    rows: list[int], tensors: dict[str, Tensor], chains: int | None, buffer: Tensor | None = None
) -> dict[str, Tensor]:
    """Copies on the CPU of these rows of the tensors (C, ...).

    buffer: tensors that are views of it are copied from an accelerator together, so that the host waits once.
    """
    which = slice(None) if len(rows) == (chains or 1) else rows
    if buffer is None or buffer.device.type == "cpu":
        return {k: v[which].to("cpu", copy=True) for k, v in tensors.items()}
    whole, start = buffer.detach().cpu(), buffer.data_ptr()

    def copy(v: Tensor) -> Tensor:
        place, rest = divmod(v.data_ptr() - start, v.element_size())
        if v.dtype != whole.dtype or rest or not 0 <= place < whole.numel():
            return v[which].to("cpu", copy=True)
        return whole.as_strided(v.shape, v.stride(), place)[which]

    return {k: copy(v) for k, v in tensors.items()}


class FrozenPart:
    """The tensors of a network, or of a stack of chains, that do not change while it is sampled, if any.

    Args:
        net: the network, or a `bdl.ChainStack`, whose chains share the frozen part.
        sampler: the one that moves the network's parameters. A stack of bdl does without.
        names: the names of the frozen tensors, where an earlier sample has decided them; None finds them.

    Attributes:
        tensors: the frozen tensors by name, without an axis of chains.
    """

    def __init__(self, net: nn.Module, sampler: Sampled | None = None, names: Collection[str] | None = None):
        if isinstance(net, ChainStack):
            net, names = net.net, net.frozen_names
        if names is not None:
            present = named_tensors(net)
            tensors = {name: present[name].detach() for name in names}
        elif sampler is None or sampler.chains is not None:
            tensors = {}  # in a stack that a user built every tensor has an axis of chains, and stays in the samples
        else:
            tensors = frozen_tensors(net, {id(p) for p in sampler.sampled})
        self.tensors = dict(sorted(tensors.items()))
        self._sha256: str | None = None
        self._seen: list[tuple[int, int]] = []

    def entry(self) -> dict[str, Any]:
        """What target.json says of it; nothing where everything is sampled."""
        shapes = {name: list(t.shape) for name, t in self.tensors.items()}
        return {KEY: {"sha256": self.sha256(), "shapes": shapes}} if shapes else {}

    def sha256(self) -> str | None:
        """The checksum of its file, computed again only if somebody has written to a tensor; None without tensors."""
        own = list(self.tensors.values())
        seen = [(t.data_ptr(), version) for t, version in zip(own, versions(own), strict=True)]
        if seen != self._seen:
            self._sha256, self._seen = digest(*file_parts(self.tensors)), seen
        return self._sha256

    def differs_from(self, target: Mapping[str, Any]) -> bool:
        """Whether target.json knows another frozen part."""
        return frozen_entry(target).get("sha256") != self.sha256()

    def first_difference(self, recorded: Mapping[str, Tensor]) -> str:
        """The first name whose tensor differs in its values; "a type" where types alone differ."""
        here = self.tensors
        same = {name for name in here.keys() & recorded.keys() if torch.equal(here[name].cpu(), recorded[name])}
        return min({*here, *recorded} - same, default="a type")

    def file_parts(self) -> list[bytes | memoryview]:
        """The content of its file, see `file_parts`."""
        return file_parts(self.tensors)


def frozen_entry(target: Mapping[str, Any]) -> Mapping[str, Any]:
    """What target.json says of the frozen part, {} where everything was sampled."""
    return target.get(KEY) or {}


def frozen_names(target: Mapping[str, Any]) -> Collection[str]:
    """The names of the tensors that target.json calls frozen."""
    return frozen_entry(target).get("shapes", {})


def sampled_part(module: nn.Module, target: Mapping[str, Any]) -> nn.Module:
    """The module or its submodule, in the order of `named_modules`, whose tensors target.json names.

    It names the tensors of the samples and of the frozen part. The module may be a stack of chains, of which it is
    then one plain copy. It is the module itself where target.json names no shapes.

    Raises StoreError where nothing fits; it names the first tensor that differs.
    """
    if target.get("shapes") is None:
        return module
    frozen = frozen_entry(target).get("shapes", {})
    wanted = {name: tuple(shape) for name, shape in {**target["shapes"], **frozen}.items()}
    shapes_of = {part: {name: tuple(t.shape) for name, t in named_tensors(part).items()} for part in module.modules()}
    for part, shapes in shapes_of.items():
        if shapes == wanted:
            return part
    for part, shapes in shapes_of.items():
        if shapes.keys() == wanted.keys() and all(
            shapes[k][1:] == wanted[k] or k in frozen and shapes[k] == wanted[k] for k in wanted
        ):
            first = {k: t.detach()[0].clone() for k, t in named_tensors(part).items() if tuple(t.shape) != wanted[k]}
            return replace_tensors(copy.deepcopy(part), first)
    present = shapes_of[module]
    name = next(n for n in [*present, *wanted] if present.get(n) != wanted.get(n))
    there, here = (f"the shape {shapes[name]}" if name in shapes else "no place" for shapes in (wanted, present))
    raise StoreError(
        f"the run holds samples of another network: {name} has {there} in them, and {here} in {type(module).__name__}; "
        "pass the net of the run, or the module that holds it"
    )
