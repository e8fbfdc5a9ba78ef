"""A simulated accelerator: tensors that say "cuda:0" (or "mps:0") and hold their numbers on the CPU.

    with Device("cuda") as device:
        net.to("cuda")
        with device.counted() as seen:
            ...
    assert not seen.waits, seen

The real code runs, with real numbers, and the rules of an accelerator hold: tensors of two devices do not meet, but for
a CPU tensor of one number; a generator draws on its own device; "mps" has no float64; a capture neither waits, nor uses
memory of the host, nor draws from a stream that is not registered with the graph; two streams do not touch the same
memory in an order that is left to chance. Kernels and waits of the host are counted by the line of bdl that caused
them.

A generator of the device draws the CPU's numbers, so that a run can be compared with one on the CPU to the bit. It
cannot show what depends on cuDNN, autocast, memory or time.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from streams import Stream, Streams
from tape import Tape, mapped, tensors, written
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

aten: Any = torch.ops.aten
CPU = torch.device("cpu")
READS = {aten._local_scalar_dense, aten.is_nonzero, aten.equal, aten.item}
SHAPED = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"}  # by their numbers
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
COPIES = {"_to_copy", "copy_", "_foreach_copy_", "set_"}
RANDOM = {
    "normal", "normal_", "uniform_", "random_", "bernoulli", "bernoulli_", "exponential_", "randn", "rand", "randint",
    "randperm", "native_dropout", "multinomial", "rand_like", "randn_like", "randint_like",
}  # fmt: skip
FREE = {  # no kernel
    "view", "_unsafe_view", "expand", "t", "transpose", "permute", "unsqueeze", "squeeze", "select", "slice", "split",
    "split_with_sizes", "unbind", "as_strided", "detach", "alias", "empty", "empty_like", "empty_strided", "new_empty",
    "new_empty_strided", "_reshape_alias", "unfold", "diagonal", "lift_fresh", "is_same_size", "real", "view_as_real",
    "record_stream",
}  # fmt: skip


@dataclass
class Counts:
    """What happened on the device. Keys are (operator, line of bdl)."""

    kernels: Counter[tuple[str, str]] = field(default_factory=Counter)
    waits: Counter[tuple[str, str]] = field(default_factory=Counter)  # the host reads a number, or copies and blocks
    copies: Counter[tuple[str, str]] = field(default_factory=Counter)  # from the host, without a wait
    launches: int = 0  # of recorded graphs

    def __str__(self) -> str:
        parts = {name: getattr(self, name) for name in ("kernels", "waits", "copies")}
        lines = [f"{name}: {sum(found.values())}" for name, found in parts.items()]
        lines += [f"  {n} {name} {op} {line}" for name, found in parts.items() for (op, line), n in found.most_common()]
        return "\n".join([f"launches: {self.launches}", *lines])

    def kernels_by_line(self) -> Counter[str]:
        lines: Counter[str] = Counter()
        for (_, line), n in self.kernels.items():
            lines[line] += n
        return lines


class DeviceTensor(Tensor):
    """A tensor of the device. To torch's C++ it is a "meta" tensor, since autograd would ask a driver for "cuda"."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> DeviceTensor:
        made: Any = Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            layout=inner.layout, device="meta",
        )  # fmt: skip
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return Device.present().run(func, args, kwargs or {})

    @property
    def device(self) -> torch.device:
        return Device.present().device

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def is_mps(self) -> bool:
        return self.device.type == "mps"

    is_meta = is_cpu = False

    def get_device(self) -> int:
        return 0

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: DeviceTensor) -> None:
        Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.inner = value.inner

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        copy = kwargs.pop("copy", False)
        device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
        device, dtype = self.device if device is None else Device.present().full(device), dtype or self.dtype
        if (device, dtype, copy, layout) == (self.device, self.dtype, False, None):
            return self
        more = {} if layout is None else {"memory_format": layout}
        return aten._to_copy.default(self, device=device, dtype=dtype, non_blocking=non_blocking, **more)

    def cpu(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.to("cpu")

    def tolist(self) -> Any:
        return self.to("cpu").tolist()

    def numpy(self, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy: use Tensor.cpu() first")

    def type_as(self, other: Tensor) -> Tensor:
        return self.to(other)

    def __repr__(self, **kwargs: Any) -> str:
        return f"DeviceTensor({self.inner!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:  # a file holds the numbers, as if it was read with map_location
        Device.present().waits("save")
        return self.inner.detach().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Tensor:
        if id(self) not in memo:
            new: Any = DeviceTensor(self.inner.detach().clone())
            new = nn.Parameter(new, self.requires_grad) if isinstance(self, nn.Parameter) else new
            memo[id(self)] = new
        return memo[id(self)]


class Generator(torch.Generator):
    """A CPU generator that says whose device it is."""

    of: torch.device

    def __new__(cls, device: torch.device | str = "cpu") -> Generator:
        made: Any = super().__new__(cls)
        made.of = torch.device(device) if Device._present is None else Device._present.full(device)
        _generators[made._cdata] = made
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.of


_generators: dict[int, Generator] = {}  # by address, which C++ hands on in place of the object


class CUDAGraph:
    """Repeats the kernels of a capture on the same memory."""

    def __init__(self) -> None:
        self.tape = Tape()

    def register_generator_state(self, generator: Generator) -> None:
        self.tape.streams.append((generator, generator.get_state()))

    def replay(self) -> None:
        Device.present().launch(self.tape)


class Device(TorchDispatchMode):
    """Inside its block there is an accelerator of this kind, "cuda" or "mps", and no other one."""

    _present: Device | None = None

    def __init__(self, kind: str = "cuda", root: str = "/bdl/"):
        """root: part of the path of the files whose lines are named."""
        super().__init__()
        self.device, self._root = torch.device(kind.removesuffix(":0"), 0), root
        self._counts: list[Counts] = []  # of the blocks that count
        self._tape: Tape | None = None  # of the capture under way
        self.streams = Streams()
        self._patches = contextlib.ExitStack()

    @staticmethod
    def present() -> Device:
        assert Device._present is not None, "a tensor of the simulated device outside of its block"
        return Device._present

    @staticmethod
    def is_present() -> bool:
        return Device._present is not None

    def full(self, device: torch.device | str) -> torch.device:
        """The device with its number; "meta" is what C++ reads of one of its tensors."""
        device = torch.device(device)
        return self.device if device.type in (self.device.type, "meta") else device

    @contextlib.contextmanager
    def counted(self) -> Iterator[Counts]:
        seen = Counts()
        self._counts.append(seen)
        try:
            yield seen
        finally:
            self._counts.remove(seen)

    @contextlib.contextmanager
    def _capture(self, graph: CUDAGraph, **settings: Any) -> Iterator[None]:
        self._tape = graph.tape
        self.streams.begin_capture()
        try:
            yield
        finally:
            self._tape = None
            graph.tape.finish()
            self.streams.end_capture()

    def launch(self, tape: Tape) -> None:
        for seen in self._counts:
            seen.launches += 1
        tape.launch()

    def __enter__(self) -> Device:
        torch._C._ensureCUDADeviceGuardSet()  # type: ignore[attr-defined]
        tensor, as_tensor = torch.tensor, torch.as_tensor
        self._patch(torch.cuda, "_lazy_init", lambda: None)
        self._patch(torch, "Generator", Generator)
        self._patch(torch.cuda, "CUDAGraph", CUDAGraph)
        self._patch(torch.cuda, "graph", self._capture)
        self._patch(torch.cuda, "Stream", Stream)
        self._patch(torch.cuda, "stream", self.streams.on)
        self._patch(torch.cuda, "current_stream", lambda device=None: self.streams.current)
        self._patch(torch, "compile", lambda function, **_: function)  # its traces would hold on to parameters
        # Without a generator of its own the device draws from the CPU's stream
        self._patch(torch.cuda, "get_rng_state", lambda device=None: torch.get_rng_state())
        self._patch(torch.cuda, "set_rng_state", lambda state, device=None: torch.set_rng_state(state))
        self._patch(torch.cuda, "get_device_name", lambda device=None: "simulated")
        # C++ would ask a driver for the device
        self._patch(torch, "tensor", lambda data, device=None, **more: self._there(tensor(data, **more), device))
        self._patch(
            torch, "as_tensor", lambda data, dtype=None, device=None: self._there(as_tensor(data, dtype=dtype), device)
        )
        self._patches.enter_context(torch.autograd.set_multithreading_enabled(False))
        swaps = torch.__future__.get_swap_module_params_on_conversion()
        self._patches.callback(torch.__future__.set_swap_module_params_on_conversion, swaps)
        torch.__future__.set_swap_module_params_on_conversion(True)  # `.to` keeps the parameter objects, as on a GPU
        assert Device._present is None
        Device._present = self
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        Device._present = None
        _generators.clear()
        self._patches.close()

    def _patch(self, owner: Any, name: str, value: Any) -> None:
        self._patches.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def _there(self, value: Tensor, device: Any) -> Tensor:
        return value if device is None else value.to(device)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of an operator, if it keeps the rules."""
        given = tensors((args, kwargs))
        here = [t for t in given if isinstance(t, DeviceTensor)]
        host = [t for t in given if not isinstance(t, DeviceTensor)]
        asked = None if kwargs.get("device") is None else self.full(kwargs["device"])
        if not here and asked != self.device:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        self._judge(func, name, args, kwargs, here, host, asked or self.device)
        inner_args, inner_kwargs = mapped(lambda t: t.inner if isinstance(t, DeviceTensor) else t, (args, kwargs))
        inner_kwargs |= {} if asked is None else {"device": CPU}
        inner_kwargs |= {"pin_memory": False} if inner_kwargs.get("pin_memory") else {}
        run = func if self._tape is None else lambda *a, **k: self._tape.call(func, a, k)  # type: ignore[union-attr]
        changed = [] if len(self.streams.all) == 1 else list(written(func, inner_args, inner_kwargs))
        result = run(*inner_args, **inner_kwargs)
        if len(self.streams.all) > 1 and name not in FREE:
            self.streams.see(
                tensors((inner_args, inner_kwargs)), [*changed, *tensors(result)], f"{name} at {self._line()}"
            )
        same = {id(t.inner): t for t in here}
        return mapped(lambda t: same[id(t)] if id(t) in same else self._own(t, name, asked), result)

    def _own(self, value: Tensor, name: str, asked: torch.device | None) -> Tensor:
        if asked == CPU:
            return value
        if self.device.type == "mps" and value.dtype in (torch.float64, torch.complex128):
            raise TypeError(f"MPS has no float64: {name} at {self._line()}")
        return DeviceTensor(value)

    def _judge(self, func: Any, name: str, args: Any, kwargs: Any, here: Any, host: Any, out: torch.device) -> None:
        """Raise for what an accelerator refuses, and count the rest."""
        if name in RANDOM:
            given = kwargs.get("generator")
            of = self.device if given is None else getattr(_generators.get(given._cdata), "of", CPU)
            if of != self.device:
                raise RuntimeError(f"Expected a {self.device} generator, got one of {of}: {name} at {self._line()}")
            streams = () if self._tape is None else self._tape.streams
            if given is None or not any(given._cdata == stream._cdata for stream, _ in streams):
                self._refuse_in_capture(f"{name} draws from a stream that is not registered with the graph")
        if name in COPIES:
            self._judge_copy(name, args, kwargs, out)
        elif func.overloadpacket in READS or name in SHAPED:
            self.waits(name)
        elif name == "repeat_interleave" and kwargs.get("output_size") is None and len(args) < 3:
            self.waits(name)
        elif name in INDEXED:
            self._judge_index(name, args, host)
        elif any(t.ndim > 0 for t in host) or host and not here:
            shapes = [tuple(t.shape) for t in host]
            raise RuntimeError(f"Expected all tensors on {self.device}, got {shapes} on cpu: {name} at {self._line()}")
        elif host:
            self._refuse_in_capture(f"{name} uses memory of the host")
        if name not in FREE and out != CPU and func.overloadpacket not in READS and self._tape is None:
            self._count("kernels", name)

    def _judge_copy(self, name: str, args: Any, kwargs: Any, out: torch.device) -> None:
        first = lambda t: t[0] if isinstance(t, list | tuple) else t  # noqa: E731
        source, there = first(args[0] if name == "_to_copy" else args[1]), out != CPU
        if name != "_to_copy":
            there = isinstance(first(args[0]), DeviceTensor)
        blocks = not (kwargs.get("non_blocking") or name != "_to_copy" and len(args) > 2 and args[2])
        if isinstance(source, DeviceTensor) and not there:
            self.waits(name)
        elif there and not isinstance(source, DeviceTensor):
            self._refuse_in_capture(f"{name} copies from the host")
            self._count("waits" if blocks else "copies", name)

    def _judge_index(self, name: str, args: Any, host: Any) -> None:
        indices = [t for t in args[1] if isinstance(t, Tensor)]
        filled = "put" in name and len(indices) == 1 and args[2].numel() == 1  # torch fills where a mask is true
        if any(t.dtype == torch.bool for t in indices) and not filled:
            self.waits(name)
        if any(not isinstance(t, DeviceTensor) for t in indices):
            self.waits(name)
        if not all(any(t is i for i in indices) or t.ndim == 0 for t in host):
            raise RuntimeError(f"Expected all tensors on {self.device}: {name} at {self._line()}")

    def waits(self, name: str) -> None:
        self._refuse_in_capture(f"{name} waits for the device")
        self.streams.synchronise()
        self._count("waits", name)

    def _refuse_in_capture(self, what: str) -> None:
        if self._tape is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}, at {self._line()}")

    def _count(self, kind: str, name: str) -> None:
        if self._counts:
            line = self._line()
            for seen in self._counts:
                getattr(seen, kind)[name, line] += 1

    def _line(self) -> str:
        """The innermost line of bdl under way, or "?"."""
        frame: Any = sys._getframe(2)
        while frame is not None:
            path = frame.f_code.co_filename
            if self._root in path:
                return f"{path.rpartition(self._root)[2]}:{frame.f_lineno}"
            frame = frame.f_back
        return "?"
