"""What `bench.py gpu` measures on a device: its sizes, and a function for each section of the page."""

import functools
import os
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from torch.profiler import profile

import bdl
from bdl.data import Augment, Normalise, TensorBatches
from bdl.engine.branches import Branches
from bdl.engine.choose import of_stack
from bdl.engine.forward import Method
from bdl.engine.gradient import Autograd, Gradient, InTurn, OnLeaves
from bdl.engine.graphs import record_on_cuda
from bdl.fused import Fused
from bdl.models import ResNet
from benchmarks import frozen_part
from benchmarks.speed.cifar import MEAN, STD
from benchmarks.speed.problem import landsat
from benchmarks.speed.timing import fit, timed

MINUTES = 9  # and the imports: ten minutes, for machines that end a command then
WEIGHTINGS = {"SGHMC": bdl.Flat(), "AWSGHMC": bdl.AdaptiveWeight(zeta=1.0, low=0.0, high=8000.0)}
T = TypeVar("T")
Row = dict[str, Any]
Rows = Iterator[Row]


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    chains: Sequence[tuple[int, int]] = ((8, 2000), (64, 2000), (512, 600), (4096, 200))  # chains, timed steps
    jax_block: int = 100  # steps in one call of a jitted scan
    gradients: Sequence[tuple[int, int, Method, bool]] = (  # networks, images a batch, way, whether compiled
        (1, 256, "auto", False), (8, 128, "branches", False), (1, 256, "auto", True), (8, 128, "branches", True),
        (8, 128, "vmap", False), (8, 128, "loop", False),
    )  # fmt: skip
    # networks, images a batch, compile, by Trainer.fit
    networks: Sequence[tuple[int, int, Any]] = ((1, 256, "auto"), (8, 128, "auto"), (1, 256, True), (8, 128, True))
    part: tuple[int, int, int] = (frozen_part.WIDTH, frozen_part.LAYERS, 10)  # of the encoder; turns
    depth: int = 20
    images: int = 50_000
    warm_up: int = 100  # steps
    steps: int = 300
    profiled: int = 50
    rounds: int = 3


SMALL = Size(
    chains=((2, 4),), jax_block=5, gradients=((2, 2, "loop", False), (2, 2, "branches", True)),
    networks=((2, 4, "auto"), (1, 4, True)), depth=8, images=8, warm_up=1, steps=2, profiled=2, rounds=1,
    part=(8, 2, 1),
)  # fmt: skip


@dataclass
class Bench:
    """A device, how much is measured on it, and until when."""

    device: torch.device
    size: Size
    end: float = field(default_factory=lambda: time.monotonic() + 60 * MINUTES)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def peak(self) -> float | None:
        """The peak of memory since the last call, MiB; None on a CPU."""
        if self.device.type != "cuda":
            return None
        peak = torch.cuda.max_memory_allocated() / 2**20
        torch.cuda.reset_peak_memory_stats()
        return peak

    def fit(self, module: Any, loader: Any, steps: int, callbacks: Sequence[Any] = (), **options: Any) -> float:
        """Milliseconds a step of Trainer.fit, with what a run always has: a schedule and a Monitor."""
        lr, t = (bdl.schedules.Constant(x) for x in (0.01, 0.01))
        always = [bdl.Schedule(lr=lr, temperature=t), bdl.Monitor(50), *callbacks]
        warm_up, count = self.size.warm_up, self.size.warm_up + steps
        return fit(
            module, loader, count, always, False, warm_up=warm_up, wait=self.wait, accelerator=self.device.type,
            devices=1 if self.device.index is None else [self.device.index], enable_progress_bar=False, **options,
        )  # fmt: skip

    def precision(self) -> Any:
        """bf16, but for a CPU, which may have to emulate it."""
        return torch.autocast(self.device.type, torch.bfloat16, self.device.type != "cpu", cache_enabled=False)

    def images(self, chains: int, batch: int) -> TensorBatches:
        """Random bytes in CIFAR's shape, which cost as much as CIFAR's."""
        draw = torch.Generator().manual_seed(0)
        x = torch.randint(256, (self.size.images, 3, 32, 32), generator=draw, dtype=torch.uint8)
        y = torch.randint(10, (self.size.images,), generator=draw)
        return TensorBatches(x, y, batch, chains=chains, augment=Augment(), transform=Normalise(MEAN, STD, True))


def watched(work: Callable[[], T]) -> tuple[T, float, str | None]:
    """The result, the seconds, and why torch's compiler has failed, if it has."""
    start = time.monotonic()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", bdl.BdlWarning)
        result = work()
    failed = [str(w.message) for w in seen if "torch.compile failed" in str(w.message)]
    return result, time.monotonic() - start, failed[0][:120] if failed else None


def small_networks(bench: Bench) -> Rows:
    """Landsat's 36-30-30-6, batch 100, through Trainer.fit: us a step of all chains, beside JAX's jit(scan(vmap)).

    `compiled` is compile=true, whose start takes so many seconds more. JAX walks through orders of batches that lie on
    the device before its clock starts; bdl makes its own.
    """
    for chains, steps in bench.size.chains:
        row: Row = {"chains": chains}
        bench.peak()
        seconds: dict[str, float] = {}
        for name, weighting, compiled in (
            ("SGHMC", WEIGHTINGS["SGHMC"], "auto"), ("AWSGHMC", WEIGHTINGS["AWSGHMC"], "auto"),
            ("compiled", WEIGHTINGS["SGHMC"], True),
        ):  # fmt: skip
            module = stacked(chains, weighting, compiled)
            run = functools.partial(bench.fit, module, landsat().batches(chains), steps)
            step, seconds[name], row["failed"] = watched(run)
            row[f"{name}, us"] = 1e3 * step
        row["MiB"] = bench.peak()
        row["compiler, s"] = seconds["compiled"] - seconds["SGHMC"]
        row["JAX, us"] = jax = jax_scan(chains, bench)
        row["AWSGHMC / SGHMC"] = row["AWSGHMC, us"] / row["SGHMC, us"]
        row["SGHMC / JAX"] = None if jax is None else row["SGHMC, us"] / jax
        row["compiled / JAX"] = None if jax is None else row["compiled, us"] / jax
        yield row


def stacked(chains: int, weighting: Any, compiled: Any = "auto") -> bdl.BayesianModule:
    problem = landsat()
    build = functools.partial(bdl.Sampler, dynamics=bdl.SGHMC(), num_data=problem.num_data, lr=0.1, weighting=weighting)
    return bdl.BayesianModule(problem.stack(chains), build, compile=compiled)


def jax_scan(chains: int, bench: Bench) -> float | None:
    """us a step of all chains in JAX; None without JAX, and where it lacks the kind of device."""
    block = bench.size.jax_block
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes most of the GPU's memory
    try:
        from benchmarks.speed.jax_kernels import JaxScan, jax
    except ImportError:
        return None
    if (jax.default_backend() == "gpu") != (bench.device.type == "cuda"):
        return None
    scan = JaxScan(landsat(), chains, block)
    rows = scan.epochs.rows(block)
    run = timed(lambda: jax.block_until_ready(scan.scan(scan.state, scan.key, rows)), 3)
    run()
    return 1e3 * statistics.median(run() for _ in range(3)) / block


def gradients(bench: Bench) -> Rows:
    """The gradient of ResNet20 by itself, bf16: ms kernel by kernel, ms and images/s as a graph."""
    for chains, batch, method, compiled in bench.size.gradients:
        row, seconds, failed = watched(functools.partial(gradient, bench, chains, batch, method, compiled))
        yield {**row, "s in all": seconds, "failed": failed}


def gradient(bench: Bench, chains: int, batch: int, method: Method, compiled: bool) -> Row:
    stack = bdl.ChainStack(ResNet(bench.size.depth), chains, method=method).to(bench.device)
    x = torch.randn(chains * batch, 3, 32, 32, device=bench.device).contiguous(memory_format=torch.channels_last)
    x, y = x.unflatten(0, (chains, batch)), torch.randint(10, (chains, batch), device=bench.device)
    loss, plain = bdl.CategoricalNLL(), of_stack(stack, bdl.CategoricalNLL())
    if method in ("loop", "branches"):
        branches = Branches(bench.device) if method == "branches" else None
        form: Gradient = InTurn(stack, loss, bench.precision, branches, compiled)
    else:
        losses_of = Fused(plain.losses_of) if compiled else plain.losses_of
        form = OnLeaves(Autograd(losses_of, plain.params, bench.precision), stack)
    out = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in form.params]
    bench.peak()
    form.write(x, y, out)  # what is compiled, is now
    single, graph = milliseconds(bench, lambda: form.write(x, y, out)), None
    if bench.device.type == "cuda":
        graph = milliseconds(bench, record_on_cuda(lambda: form.write(x, y, out))[0])
    return {
        "networks": chains, "images": batch, "way": method, "compiled": str(compiled), "single kernels, ms": single,
        "graph, ms": graph, "images/s": 1e3 * chains * batch / (graph or single), "MiB": bench.peak(),
    }  # fmt: skip


def milliseconds(bench: Bench, work: Callable[[], object]) -> float:
    """The median time of one call."""
    run = timed(work, 1 + bench.size.steps // 10, bench.wait)
    run()
    return statistics.median(run() for _ in range(bench.size.rounds))


def epochs(bench: Bench) -> Rows:
    """SGHMC of ResNet20 on 50,000 augmented images, bf16-mixed, through Trainer.fit."""
    for chains, batch, compiled in bench.size.networks:
        loader = bench.images(chains, batch)
        build = functools.partial(bdl.Sampler, dynamics=bdl.SGHMC(), num_data=bench.size.images, lr=0.01)
        module = bdl.BayesianModule(bdl.ChainStack(ResNet(bench.size.depth), chains), build, compile=compiled)
        bench.peak()
        precision = "32-true" if bench.device.type == "cpu" else "bf16-mixed"
        run = functools.partial(bench.fit, module, loader, bench.size.steps, precision=precision)
        step, seconds, failed = watched(run)
        epoch = step * len(loader) / 1e3
        yield {
            "networks": chains, "images": batch, "compile": str(compiled), "ms a step": step,
            "images/s": 1e3 * chains * batch / step, "s an epoch": epoch, "s in 500 epochs": 500 * epoch,
            "MiB": bench.peak(), "s in all": seconds, "failed": failed,
        }  # fmt: skip


def parts(bench: Bench) -> Rows:
    """A part of a transformer of 10^8 parameters: a step of SGHMC through Trainer.fit, and one of AdamW on that part.

    On a GPU also the memory that the steps take above the network's, in bytes for each frozen parameter.
    """
    width, layers, turns = bench.size.part
    for part in frozen_part.PARTS:
        if part.startswith("LoRA") and find_spec("peft") is None:
            continue
        row = frozen_part.times(part, width, layers, turns, bench.device, bench.wait)
        if bench.device.type == "cuda":
            for name, sampled in (("SGHMC", True), ("AdamW", False)):
                row[f"{name}, bytes"] = held_on_gpu(bench, part, sampled) / row["frozen"]
        yield row


def held_on_gpu(bench: Bench, part: str, sampled: bool) -> int:
    """Bytes that four steps take at most, above those of the network."""
    net, only = frozen_part.network(part, *bench.size.part[:2])
    net = net.to(bench.device)
    step = None if sampled else frozen_part.fine_tuning(net, only, bench.device)
    bench.wait()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    if step is None:
        frozen_part.sample(net, only, 4, bench.device)
    else:
        for _ in range(4):
            step()
    return torch.cuda.max_memory_allocated() - base


class Profiler(bdl.callbacks.StepCallback):
    """Profiles the steps after `first`, to `last`; a block ends at both."""

    def __init__(self, first: int, last: int):
        self.first, self.last = first, last
        self.profile = profile()  # of all that there is: the host, and a GPU

    def must_see(self, step: int) -> bool:
        return step in (self.first, self.last)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.first:
            self.profile.__enter__()
        elif trainer.global_step == self.last:
            self.profile.__exit__(None, None, None)


def block(bench: Bench) -> Rows:
    """What the host calls, and what the device runs, for each step of SGHMC in a block of 64 chains."""
    chains, (first, steps) = min(64, bench.size.chains[-1][0]), (bench.size.warm_up, bench.size.profiled)
    profiler = Profiler(first, first + steps)
    bench.fit(stacked(chains, WEIGHTINGS["SGHMC"]), landsat().batches(chains), steps + 1, [profiler])
    calls, microseconds = Counter[str](), Counter[str]()
    for event in profiler.profile.events() or ():
        calls[event.name] += 1
        microseconds[event.name] += event.device_time_total or event.cpu_time_total
    most = [name for name, _ in microseconds.most_common(12)]
    most += [name for name in calls if name.startswith("cuda") and name not in most]
    for name in most:
        yield {"name": name[:80], "calls a step": calls[name] / steps, "us a step": microseconds[name] / steps}
