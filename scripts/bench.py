"""Speed, as ratios of medians measured side by side: python scripts/bench.py [update] [train] [chains] [cifar].

update: Sampler.step against its floor (one normal draw and one fused SGD step) and against the peers of the extra
        [bench], where they are installed.
train:  Landsat, 8 chains through Trainer.fit, against a bare single-chain loop and against Lightning with a DataLoader.
chains: three ways to run a stack of networks: batched matrix products, vmap and a loop.
cifar:  ResNet20 on images, against a hand-written loop and plain Lightning; on a GPU add `--device cuda --precision
        bf16-mixed --compile`. A run without names leaves it out.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import statistics
import tempfile
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path

import lightning as L
import torch
import torch.nn.functional as F
from bench_cifar import Setup, bench_cifar
from bench_tools import PlainSGHMC, Times, fit, interleave, no_wait, plain_sghmc, ratio, timed
from lightning.pytorch.loggers import CSVLogger
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.data import LandsatDataModule
from bdl.models import MLP, ResNet
from bdl.run.machine import keep_freed_memory
from bdl.run.provenance import provenance

SIZES = (36, 30, 30, 6)
CHAINS, BATCH = 8, 100


# ---- update ----------------------------------------------------------------------------------------------------------


def bench_update(rounds: int) -> tuple[Times, dict[str, float]]:
    contestants = {"floor: normal_ + fused SGD": timed(floor(), 50), "bdl SGHMC": timed(ours(), 50)}
    contestants["per-tensor SGHMC loop"] = timed(per_tensor(), 50)
    for name, make in (("posteriors SGHMC", posteriors_sghmc), ("torch-uncertainty SGHMC", torch_uncertainty_sghmc)):
        try:
            contestants[name] = timed(make(), 50)
        except ImportError as error:
            print(f"{name} is left out ({error}): install it with pip install -e '.[bench]'")
    times = interleave(contestants, rounds)
    base = times["floor: normal_ + fused SGD"]
    return times, {f"{name} / floor": ratio(t, base) for name, t in times.items() if not name.startswith("floor")}


def resnet_with_gradients() -> nn.Module:
    net = ResNet(20)
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    return net


def floor() -> Callable[[], None]:
    net = resnet_with_gradients()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-9, momentum=0.9, fused=True)
    z = torch.empty(sum(p.numel() for p in net.parameters()))

    def step() -> None:
        z.normal_()
        optimizer.step()

    return step


def ours() -> Callable[[], object]:
    return bdl.Sampler(resnet_with_gradients().parameters(), bdl.SGHMC(), num_data=50_000, lr=1e-9).step


@torch.no_grad()
def per_tensor() -> Callable[[], None]:
    net = resnet_with_gradients()
    momenta = {p: torch.zeros_like(p) for p in net.parameters()}
    return functools.partial(plain_sghmc, momenta, lr=1e-9, num_data=50_000)


def posteriors_sghmc() -> Callable[[], object]:
    """posteriors calls a log posterior: this one has the given gradients, at the cost of one dot product."""
    import posteriors  # type: ignore[import-not-found]

    net = resnet_with_gradients()
    grads = {k: p.grad for k, p in net.named_parameters()}

    def log_posterior(params: dict, batch: object) -> tuple[torch.Tensor, torch.Tensor]:
        return sum((grads[k] * v).sum() for k, v in params.items()), torch.zeros(())  # type: ignore[return-value]

    transform = posteriors.sgmcmc.sghmc.build(log_posterior, lr=1e-9)
    state = transform.init({k: p.detach().clone() for k, p in net.named_parameters()})
    return lambda: transform.update(state, None, inplace=True)


def torch_uncertainty_sghmc() -> Callable[[], object]:
    from torch_uncertainty.optim.sghmc import SGHMC  # type: ignore[import-not-found]

    return SGHMC(resnet_with_gradients().parameters(), lr=1e-9).step


# ---- train -----------------------------------------------------------------------------------------------------------


def bench_train(rounds: int) -> tuple[Times, dict[str, float]]:
    data = LandsatDataModule(BATCH)
    contestants = {
        "bare loop, 1 chain": timed(bare_loop(data), 300),
        "Lightning + DataLoader + self.log, 1 chain": lambda: fit_plain(data, 300),
        f"bdl Trainer.fit, {CHAINS} chains, SGHMC": lambda: fit_bdl(300, bdl.Flat()),
        f"bdl Trainer.fit, {CHAINS} chains, AWSGHMC": lambda: fit_bdl(300, bdl.AdaptiveWeight(low=0.0, high=8000.0)),
    }
    times = interleave(contestants, rounds)
    bare, plain = times["bare loop, 1 chain"], times["Lightning + DataLoader + self.log, 1 chain"]
    ratios = {}
    for name, t in times.items():
        if name.startswith("bdl"):
            ratios[f"{name}: chain-step / bare loop"] = ratio(t, bare) / CHAINS
            ratios[f"{name}: chain-step / Lightning"] = ratio(t, plain) / CHAINS
    return times, ratios


def bare_loop(data: LandsatDataModule) -> Callable[[], None]:
    """One chain, data in memory, no framework: the least that a step costs in plain torch."""
    net, (x, y) = MLP(SIZES), data.tensors("train")
    momenta = {p: torch.zeros_like(p) for p in net.parameters()}
    order = torch.randperm(len(x))
    position = 0

    def step() -> None:
        nonlocal order, position
        if position + BATCH > len(x):
            order, position = torch.randperm(len(x)), 0
        rows = order[position : position + BATCH]
        position += BATCH
        net.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        plain_sghmc(momenta, lr=0.1, num_data=len(x))

    return step


class PlainModule(L.LightningModule):
    """The module of Lightning's tutorials: a DataLoader, one chain, self.log at every step."""

    def __init__(self, num_data: int):
        super().__init__()
        self.net, self.num_data = MLP(SIZES), num_data

    def training_step(self, batch, batch_idx: int):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return PlainSGHMC(self.parameters(), self.num_data)


def fit_plain(data: LandsatDataModule, steps: int) -> float:
    x, y = data.tensors("train")
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True, drop_last=True)
    with tempfile.TemporaryDirectory() as folder:
        return fit(PlainModule(len(x)), loader, steps, [], CSVLogger(folder))


def fit_bdl(steps: int, weighting) -> float:
    data = LandsatDataModule(BATCH, chains=CHAINS)
    build = functools.partial(
        bdl.Sampler, dynamics=bdl.SGHMC(), num_data=data.num_data, lr=0.1, temperature=0.2, weighting=weighting
    )
    module = bdl.BayesianModule(bdl.ChainStack(MLP(SIZES), CHAINS), build)
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [
            bdl.Schedule(lr=bdl.schedules.Constant(0.1), temperature=bdl.schedules.Constant(0.2)),
            bdl.Monitor(50),
            bdl.callbacks.StepProgress(),
        ]
        return fit(module, data.train_dataloader(), steps, callbacks, CSVLogger(folder))


# ---- chains ----------------------------------------------------------------------------------------------------------


def bench_chains(rounds: int, device: torch.device) -> tuple[Times, dict[str, float]]:
    nets = {
        "MLP": (MLP(SIZES), torch.randn(CHAINS, BATCH, 36), 30),
        "ResNet8": (ResNet(8), torch.randn(4, 16, 3, 32, 32), 1),
    }
    wait = torch.cuda.synchronize if device.type == "cuda" else no_wait
    contestants, ratios = {}, {}
    for name, (net, x, count) in nets.items():
        for method in ("bmm", "vmap", "loop") if name == "MLP" else ("vmap", "loop"):
            stack = bdl.ChainStack(net, len(x), method=method).to(device)
            step = functools.partial(forward_backward, stack, x.to(device))
            contestants[f"{name} x {len(x)}, {method}"] = timed(step, count, wait)
    times = interleave(contestants, rounds)
    for name, t in times.items():
        loop = times[name.rsplit(", ", 1)[0] + ", loop"]
        ratios[f"{name} / loop"] = ratio(t, loop)
    return times, ratios


def forward_backward(stack: bdl.ChainStack, x: torch.Tensor) -> None:
    stack.zero_grad()
    stack(x).square().mean().backward()


# ---- report ----------------------------------------------------------------------------------------------------------


def show(name: str, times: Times, ratios: dict[str, float], console: Console) -> None:
    table = Table(title=name, box=None, title_justify="left")
    for title in ("", "median ms", "min", "max"):
        table.add_column(title, justify="left" if not title else "right")
    for contestant, t in times.items():
        table.add_row(contestant, *(f"{v:.3f}" for v in (statistics.median(t), min(t), max(t))))
    console.print(table)
    for what, value in ratios.items():
        console.print(f"  {what}: {value:.3f}", highlight=False)


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    keep_freed_memory()  # as train.py does; here it serves all contestants
    silence()
    console, results = Console(), {}
    for name in arguments.names or [*BENCHES, "chains"]:
        times, ratios = run(name, arguments)
        show(name, times, ratios, console)
        results[name] = {"milliseconds": {k: statistics.median(t) for k, t in times.items()}, "ratios": ratios}
    machine = {**provenance(torch.device(arguments.device)), "cores": os.cpu_count(), "date": str(date.today())}
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, **results}, indent=1) + "\n")


BENCHES = {"update": bench_update, "train": bench_train}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*BENCHES, "chains", "cifar"]
    parser.add_argument("names", nargs="*", choices=[*names, []], help=f"any of {', '.join(names)}; default: not cifar")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="device of chains and cifar; the others run on the CPU")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    cifar = parser.add_argument_group("cifar")
    cifar.add_argument("--images", type=int, default=50_000)
    cifar.add_argument("--steps", type=int, default=10, help="steps of every contestant in a round")
    cifar.add_argument("--precision", default="32-true", choices=["32-true", "bf16-mixed"])
    cifar.add_argument("--compile", action="store_true")
    cifar.add_argument("--workers", type=int, default=2, help="worker processes of the DataLoaders")
    return parser.parse_args()


def silence() -> None:
    """Keep the warnings and notes of Lightning out of the report."""
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)


def run(name: str, a: argparse.Namespace) -> tuple[Times, dict[str, float]]:
    if name == "cifar":
        return bench_cifar(a.rounds, Setup(a.images, a.steps, a.device, a.precision, a.compile, a.workers))
    if name == "chains":
        return bench_chains(a.rounds, torch.device(a.device))
    return BENCHES[name](a.rounds)


if __name__ == "__main__":
    main()
