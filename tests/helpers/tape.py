"""A stand-in for CUDA graphs on a CPU, as strict as they are."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

READS = (torch.ops.aten._local_scalar_dense, torch.ops.aten.is_nonzero, torch.ops.aten.equal, torch.ops.aten.nonzero)


class Outside:
    """A tensor that a tape uses and does not keep alive."""

    def __init__(self, tensor: Tensor):
        self.storage = StorageWeakRef(tensor.untyped_storage())
        self.layout = tensor.storage_offset(), tensor.shape, tensor.stride()
        self.dtype = tensor.dtype

    def tensor(self) -> Tensor:
        storage: Any = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        assert storage is not None, "a graph uses memory that has been freed"
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.layout)


class Tape(TorchDispatchMode):
    """Records the kernels of a function and repeats them on the same memory, with the same Python numbers.

    As with a CUDA graph, recording leaves no trace: tensors that existed keep their values, new ones hold NaN. Nor does
    a tape keep the memory alive that it did not allocate. Reading a number while recording fails.

    streams: generators from which the kernels draw. Recording leaves them where they are, and every launch draws anew.
    """

    def __init__(self, work: Callable[[], Any] | None = None, streams: Sequence[torch.Generator] = ()):
        super().__init__()
        self.streams = [(stream, stream.get_state()) for stream in streams]
        self.calls: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.inside: dict[int, Tensor] = {}  # tensors made while recording, by their memory
        self.changed: list[tuple[Tensor, Tensor]] = []  # tensors that recording has written to, as they were
        self.launches = 0
        if work is not None:
            with self:
                self.result = work()  # its tensors are overwritten by every launch
            self.finish()

    def finish(self) -> None:
        """Leave no trace of the recording."""
        for tensor, before in reversed(self.changed):
            tensor.copy_(before)
        for stream, state in self.streams:
            stream.set_state(state)
        for tensor in self.inside.values():
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)
        self.changed.clear()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.call(func, args, kwargs or {})

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of one kernel, which is recorded."""
        assert func.overloadpacket not in READS, "a graph cannot wait for the device"
        self.changed += [(t, t.clone()) for t in written(func, args, kwargs) if memory(t) not in self.inside]
        known = {memory(t) for t in tensors((args, kwargs))}
        result = func(*args, **kwargs)
        self.inside |= {memory(t): t for t in tensors(result) if memory(t) not in known}
        args, kwargs = mapped(self._weak, (args, kwargs))
        self.calls.append((func, args, kwargs, [t for t in tensors(result) if memory(t) in self.inside]))
        return result

    def launch(self) -> None:
        self.launches += 1
        with torch._C._DisableTorchDispatch():  # nobody counts or judges the kernels of a launch
            for func, args, kwargs, before in self.calls:
                args, kwargs = mapped(alive, (args, kwargs))
                for old, new in zip(before, tensors(func(*args, **kwargs)), strict=False):
                    if memory(old) != memory(new):
                        old.copy_(new)

    def _weak(self, tensor: Tensor) -> Any:
        return tensor if memory(tensor) in self.inside else Outside(tensor)


class Tapes:
    def __init__(self) -> None:
        self.made: list[Tape] = []

    def __call__(
        self, work: Callable[[], Any], streams: Sequence[torch.Generator] = ()
    ) -> tuple[Callable[[], object], Any]:
        self.made.append(Tape(work, streams))
        return self.made[-1].launch, self.made[-1].result

    @property
    def launches(self) -> int:
        return sum(tape.launches for tape in self.made)


def memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def alive(value: Tensor | Outside) -> Tensor:
    return value.tensor() if isinstance(value, Outside) else value


def tensors(tree: Any) -> list[Tensor]:
    """The tensors among an operator's arguments or results, which lie in tuples, lists and dictionaries."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, tuple | list):
        return []
    return [tensor for part in tree for tensor in tensors(part)]


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same arguments or results with `change` of their tensors. torch's `tree_map` takes ten times as long."""
    if isinstance(tree, Tensor | Outside):
        return change(tree)
    if type(tree) in (tuple, list):
        return type(tree)([mapped(change, part) for part in tree])
    if type(tree) is dict:
        return {name: mapped(change, part) for name, part in tree.items()}
    return tree


def written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The arguments that an operator writes to."""
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    for argument in func._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in given:
            yield from tensors(given[argument.name])
    if func.overloadpacket.__name__ == "native_batch_norm" and given.get("training"):  # its schema does not say so
        yield from tensors((given["running_mean"], given["running_var"]))
