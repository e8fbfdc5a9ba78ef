"""`bench.py cifar`: images per second of ResNet20 under SGHMC, against a hand-written loop and plain Lightning.

The images are random bytes in CIFAR's shape, which cost as much as CIFAR's. Every contestant trains in batches of 128
that are padded by 4, cropped, flipped and normalised. The parts of bdl's step are load (select, augment and normalise a
batch), forward + backward, update, and the rest: Lightning, Schedule and Monitor. The whole step and the forward +
backward of a bare network take turns every few steps.
"""

import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

import bdl
from bdl.data import Augment, Normalise, TensorBatches
from bdl.models import ResNet
from bdl.run.machine import compile_if_possible
from benchmarks.speed.timing import PlainModule, TakeTurns, Times, endless, fit, interleave, plain_sghmc, ratio, timed

BATCH, WARM_UP = 128, 3
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Setup:
    """What all contestants share: images, steps per round, device, precision, compilation and worker processes."""

    def __init__(self, images: int, steps: int, device: str, precision: str, compiled: bool, workers: int):
        self.steps, self.device, self.precision = steps, torch.device(device), precision
        self.compiled, self.workers = compiled, workers
        draw = torch.Generator().manual_seed(0)
        self.x = torch.randint(256, (images, 3, 32, 32), generator=draw, dtype=torch.uint8)
        self.y = torch.randint(10, (images,), generator=draw)

    def net(self) -> nn.Module:
        net = ResNet(20)
        if self.compiled:
            compile_if_possible(net)
        return net

    def loader(self) -> DataLoader:
        """The loader of torchvision's examples and of csgmcmc: single images, through PIL, in worker processes."""
        return DataLoader(
            Pictures(self.x, self.y), BATCH, shuffle=True, drop_last=True, num_workers=self.workers,
            persistent_workers=self.workers > 0, pin_memory=self.device.type == "cuda",
        )  # fmt: skip

    def batches(self) -> TensorBatches:
        batches = TensorBatches(self.x, self.y, BATCH, augment=Augment(), transform=Normalise(MEAN, STD, True))
        return batches.to(self.device)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16-mixed")

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def timed(self, step: Callable[[], object], count: int) -> Callable[[], float]:
        return timed(step, count, self.wait)

    def fit(self, module: L.LightningModule, loader: Any, callbacks: list, steps: int | None = None) -> float:
        accelerator = "gpu" if self.device.type == "cuda" else "cpu"
        return fit(
            module, loader, WARM_UP + (steps or self.steps), callbacks, False, warm_up=WARM_UP, wait=self.wait,
            accelerator=accelerator, devices=1, precision=self.precision,
        )  # fmt: skip


class Pictures(Dataset):
    """torchvision's CIFAR10 without its file."""

    def __init__(self, x: Tensor, y: Tensor):
        self.x, self.y = np.ascontiguousarray(x.permute(0, 2, 3, 1).numpy()), y.tolist()
        steps = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
        self.transform = transforms.Compose([*steps, transforms.Normalize(MEAN, STD)])

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return self.transform(Image.fromarray(self.x[i])), self.y[i]


def bench_cifar(rounds: int, setup: Setup) -> tuple[Times, dict[str, float]]:
    pieces, whole = parts(setup), "bdl Trainer.fit"
    overhead = take_turns(setup, pieces["forward + backward"], 4 * rounds)  # before a loader forks its workers
    hand = hand_written(setup)
    contestants = {
        "csgmcmc-style loop": setup.timed(hand, setup.steps),
        "plain Lightning + DataLoader": lambda: setup.fit(PlainModule(setup.net(), len(setup.y)), setup.loader(), []),
        whole: lambda: fit_bdl(setup),
        **{f"of it: {name}": setup.timed(step, setup.steps) for name, step in pieces.items()},
    }
    times = interleave(contestants, rounds)
    part_times = {name: times[f"of it: {name}"] for name in pieces}
    ratios = {f"{name}: images/s": BATCH / ratio(t, [1.0]) * 1e3 for name, t in times.items() if "of it" not in name}
    ratios |= {
        f"{whole} / forward + backward": overhead,
        f"throughput of {whole} / plain Lightning": ratio(times["plain Lightning + DataLoader"], times[whole]),
        f"throughput of {whole} / csgmcmc-style loop": ratio(times["csgmcmc-style loop"], times[whole]),
    }
    shares = {name: ratio(part_times[name], times[whole]) for name in ("load", "update")}
    if overhead >= 1:  # else the step is no sum of its parts: its forward and backward pass are a graph
        shares["forward + backward"] = 1 / overhead
        shares["the rest"] = 1 - sum(shares.values())
    return times, {**ratios, **{f"share of the step: {name}": share for name, share in shares.items()}}


def hand_written(setup: Setup) -> Callable[[], None]:
    """The loop of the cSG-MCMC authors' code: torchvision's images, an update per tensor, the loss read every step."""
    net = ResNet(20).to(setup.device)
    momenta = {p: torch.zeros_like(p) for p in net.parameters()}
    stream = endless(setup.loader())

    def step() -> None:
        x, y = (t.to(setup.device) for t in next(stream))
        net.zero_grad()
        with setup.autocast():
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        plain_sghmc(momenta, lr=0.1, num_data=len(setup.y))
        loss.item()

    return step


def sampler_of(setup: Setup) -> Callable[..., bdl.Sampler]:
    return functools.partial(
        bdl.Sampler, dynamics=bdl.SGHMC(), num_data=len(setup.y), lr=0.1, temperature=1e-4, prior=bdl.Gaussian(25.0)
    )


def take_turns(setup: Setup, step: Callable[[], object], blocks: int) -> float:
    """The time of a Trainer's step divided by that of `step`: the median over pairs of short blocks."""
    turns = TakeTurns(max(1, setup.steps // 2), step, setup.wait)
    fit_bdl(setup, [turns], turns.block * (1 + blocks))
    pairs = zip(turns.trainer_times, turns.step_times, strict=True)
    return statistics.median(trainer / alone for trainer, alone in pairs)


def fit_bdl(setup: Setup, callbacks: Sequence[L.Callback] = (), steps: int | None = None) -> float:
    module = bdl.BayesianModule(bdl.ChainStack(setup.net(), 1, shared=True), sampler_of(setup))
    schedule = bdl.Schedule(lr=bdl.schedules.Constant(0.1), temperature=bdl.schedules.Constant(1e-4))
    ours = [schedule, bdl.Monitor(50), bdl.callbacks.StepProgress()]
    return setup.fit(module, setup.batches(), [*ours, *callbacks], steps)


def parts(setup: Setup) -> dict[str, Callable[[], object]]:
    """The parts of one network's step, each to be timed by itself."""
    stream = endless(setup.batches())
    x, y = next(stream)
    net = setup.net().to(setup.device)
    sampler = sampler_of(setup)(net.named_parameters())

    def forward_backward() -> None:
        net.zero_grad()
        with setup.autocast():
            loss = F.cross_entropy(net(x), y)
        loss.backward()

    forward_backward()
    return {"load": lambda: next(stream), "forward + backward": forward_backward, "update": sampler.step}
