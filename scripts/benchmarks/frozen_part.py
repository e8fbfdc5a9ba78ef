"""A part of a large network, sampled by SGHMC and fine-tuned by AdamW: time of a step, and memory.

    python scripts/bench.py frozen_part OUT.json

The network is an encoder of 10^8 parameters. Its last layer, its last block, or adapters (LoRA, where peft is
installed) are sampled through `Trainer.fit`; the same parameters are fine-tuned by `torch.optim.AdamW` in a plain loop.
Steps of the two take turns in one process, and `time` is the ratio of the medians. `memory` is the difference of their
peaks, each in a process of its own, in bytes for each frozen parameter.
"""

import functools
import os
import statistics
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import lightning as L
import torch
import torch.nn.functional as F
from tools.chains import QUIET
from tools.command import Said
from tools.results import about, save
from torch import Tensor, nn

import bdl
from bdl.contrib.language.lora import ADAPTERS, lora
from bdl.data import TensorBatches
from bdl.frozen import freeze
from benchmarks.peak_memory import Transformer, in_new_processes, peak_above, status
from benchmarks.speed import silence
from benchmarks.speed.timing import TakeTurns, no_wait

WIDTH, LAYERS = 768, 14  # 10^8 parameters
ITEMS, BATCH = 64, 8
TURN = 2  # steps of one contestant before the other's turn
PARTS: dict[str, Sequence[str]] = {
    "the last layer": ["classify.*"],
    "the last block": ["encode.layers.{last}.*", "classify.*"],
    "LoRA, r = 8": [ADAPTERS, "classify.*"],
}


def prepare() -> None:
    """One thread; and no fast path of torch's encoders in eval mode, which would leave out adapters."""
    silence()
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)


def network(part: str, width: int, layers: int) -> tuple[nn.Module, list[str]]:
    torch.manual_seed(0)
    net: nn.Module = Transformer(width, layers)
    if part.startswith("LoRA"):
        net = lora(net, r=8, target_modules=["linear1", "linear2"])
    return net, [pattern.format(last=layers - 1) for pattern in PARTS[part]]


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(ITEMS, 784), torch.randint(10, (ITEMS,))


def fine_tuning(net: nn.Module, only: Sequence[str], device: torch.device) -> Callable[[], None]:
    """A step of AdamW on the part, whose batches lie on the device."""
    live = freeze(dict(net.named_parameters()), only)
    net = net.to(device).train()
    optimizer = torch.optim.AdamW([p for name, p in net.named_parameters() if name in live], lr=1e-4)
    batches = [(x.to(device), y.to(device)) for x, y in zip(*(t.split(BATCH) for t in data()), strict=True)]
    steps = iter(range(10**9))

    def step() -> None:
        x, y = batches[next(steps) % len(batches)]
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


def sample(
    net: nn.Module, only: Sequence[str], steps: int, device: torch.device, callbacks: Sequence[L.Callback] = ()
) -> None:
    """Steps of SGHMC on the part, with what a run always has: a schedule and a Monitor."""
    build = functools.partial(bdl.Sampler, dynamics=bdl.SGHMC(0.1), num_data=ITEMS, lr=1e-4, only=list(only))
    always = [bdl.Schedule(lr=bdl.schedules.Constant(1e-4)), bdl.Monitor(50), *callbacks]
    options: dict[str, Any] = {**QUIET, "accelerator": device.type}
    trainer = L.Trainer(max_steps=steps, callbacks=always, **options)
    trainer.fit(bdl.BayesianModule(net, build), TensorBatches(*data(), BATCH))


def times(
    part: str,
    width: int,
    layers: int,
    turns: int,
    device: str | torch.device = "cpu",
    wait: Callable[[], object] = no_wait,
) -> dict[str, Any]:
    """Milliseconds of a step of both, which take turns."""
    prepare()
    there, (net, only) = torch.device(device), network(part, width, layers)
    take_turns = TakeTurns(TURN, fine_tuning(*network(part, width, layers), there), wait)
    sample(net, only, TURN * (turns + 1), there, [take_turns])
    bdl_ms, adamw_ms = map(statistics.median, (take_turns.trainer_times, take_turns.step_times))
    count = {live: sum(p.numel() for p in net.parameters() if p.requires_grad == live) for live in (True, False)}
    return {
        "part": part, "sampled": count[True], "frozen": count[False], "SGHMC, ms": bdl_ms, "AdamW, ms": adamw_ms,
        "time": bdl_ms / adamw_ms,
    }  # fmt: skip


def peak(part: str, width: int, layers: int, sampled: bool) -> int:
    """Bytes on a CPU, above those of the network, that steps of one of the two take at most."""
    prepare()
    net, only = network(part, width, layers)
    base = status("VmRSS")
    if sampled:
        return peak_above(base, lambda: sample(net, only, 4, torch.device("cpu")))
    step = fine_tuning(net, only, torch.device("cpu"))
    return peak_above(base, lambda: [step() for _ in range(4)])


def measured(width: int, layers: int, turns: int) -> list[dict[str, Any]]:
    parts = [part for part in PARTS if not part.startswith("LoRA") or find_spec("peft") is not None]
    rows = in_new_processes(times, [(part, width, layers, turns) for part in parts])
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(
        2**16
    )  # freed memory goes back, so that gaps between blocks do not count
    peaks = in_new_processes(peak, [(part, width, layers, sampled) for part in parts for sampled in (True, False)])
    for i, row in enumerate(rows):
        row["memory"] = (peaks[2 * i] - peaks[2 * i + 1]) / row["frozen"]
    return rows


def main(
    out: Annotated[Path, Said(metavar="OUT.json")],
    *,
    turns: Annotated[int, Said("turns of each, of two steps")] = 8,
    width: Annotated[int, Said("of the encoder, a multiple of 4")] = WIDTH,
    layers: Annotated[int, Said("of the encoder")] = LAYERS,
) -> None:
    machine = {**about(), "torch": torch.__version__, "threads": 1, "cores": os.cpu_count()}
    rows = measured(width, layers, turns)
    save(out, {"machine": machine | {"load": round(os.getloadavg()[2], 1)}, "rows": rows})
    for row in rows:
        print(
            f"{row['part']}: a step takes {row['time']:.3f} of AdamW's, {row['memory']:+.3f} bytes a frozen parameter"
        )
