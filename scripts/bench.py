"""Speed, as ratios of medians measured side by side: python scripts/bench.py [update] [train] [chains] [--json FILE].

update: Sampler.step against its floor (one normal draw and one fused SGD step) and peers that are installed ([bench]).
train:  Landsat, 8 chains through Trainer.fit, against a bare single-chain loop and against Lightning with a DataLoader.
chains: ways to run a stack of networks as one.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.data import LandsatDataModule
from bdl.models import MLP, ResNet

Times = dict[str, list[float]]  # name -> milliseconds per step, one per round
SIZES = (36, 30, 30, 6)
CHAINS, BATCH = 8, 100


def interleave(contestants: dict[str, Callable[[], float]], rounds: int) -> Times:
    """Every contestant once a round, so that a noisy neighbour slows them alike; the first round warms up."""
    times: Times = {name: [] for name in contestants}
    for i in range(rounds + 1):
        for name, run in contestants.items():
            milliseconds = run()
            if i:
                times[name].append(milliseconds)
    return times


def timed(step: Callable[[], object], count: int) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        for _ in range(count):
            step()
        return (time.perf_counter() - start) / count * 1e3

    return run


# ---- update ----------------------------------------------------------------------------------------------------------


def bench_update(rounds: int) -> tuple[Times, dict[str, float]]:
    contestants = {"floor: normal_ + fused SGD": timed(floor(), 50), "bdl SGHMC": timed(ours(), 50)}
    contestants["per-tensor SGHMC loop"] = timed(per_tensor(), 50)
    for name, make in (("posteriors SGHMC", posteriors_sghmc), ("torch-uncertainty SGHMC", torch_uncertainty_sghmc)):
        try:
            contestants[name] = timed(make(), 50)
        except ImportError as missing:
            print(f"without {name}: {missing}; pip install -e '.[bench]'")
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


@torch.no_grad()
def plain_sghmc(momenta: dict, lr: float, num_data: int, friction: float = 0.1, precision: float = 1.0) -> None:
    """SGHMC as people write it: a loop over tensors."""
    std = (2 * friction * lr / num_data) ** 0.5
    for p, m in momenta.items():
        g = p.grad + precision / num_data * p
        m.mul_(1 - friction).add_(g, alpha=-lr).add_(torch.randn_like(p), alpha=std)
        p.add_(m)


def posteriors_sghmc() -> Callable[[], object]:
    """Its update wants a log posterior: one whose gradient is the gradient at hand, at the cost of one dot product."""
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
    """One chain, data in memory, no framework: the step that the same mathematics costs at least in plain torch."""
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


class PlainSGHMC(torch.optim.Optimizer):
    def __init__(self, params, num_data: int):
        super().__init__(params, {"lr": 0.1})
        self.num_data = num_data
        self.momenta = {p: torch.zeros_like(p) for p in self.param_groups[0]["params"]}

    def step(self, closure):  # type: ignore[override]
        with torch.enable_grad():
            loss = closure()
        plain_sghmc(self.momenta, lr=self.param_groups[0]["lr"], num_data=self.num_data)
        return loss


class PlainModule(L.LightningModule):
    """What the tutorials show: a DataLoader, one chain, self.log at every step."""

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


class Clock(L.Callback):
    """Milliseconds per step between the 50th batch and the last."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx: int) -> None:
        if trainer.global_step == 50:
            self.start, self.first = time.perf_counter(), trainer.global_step
        self.stop, self.last = time.perf_counter(), trainer.global_step

    @property
    def milliseconds(self) -> float:
        return (self.stop - self.start) / (self.last - self.first) * 1e3


def fit(module: L.LightningModule, loader, steps: int, callbacks: list, logger) -> float:
    clock = Clock()
    trainer = L.Trainer(
        accelerator="cpu", max_steps=steps, max_epochs=-1, logger=logger, callbacks=[*callbacks, clock],
        enable_checkpointing=False, enable_model_summary=False, enable_progress_bar=bool(callbacks),
    )  # fmt: skip
    trainer.fit(module, loader)
    return clock.milliseconds


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


def bench_chains(rounds: int) -> tuple[Times, dict[str, float]]:
    nets = {
        "MLP": (MLP(SIZES), torch.randn(CHAINS, BATCH, 36), 30),
        "ResNet8": (ResNet(8), torch.randn(4, 16, 3, 32, 32), 1),
    }
    contestants, ratios = {}, {}
    for name, (net, x, count) in nets.items():
        for method in ("bmm", "vmap", "loop") if name == "MLP" else ("vmap", "loop"):
            stack = bdl.ChainStack(net, len(x), method=method)
            contestants[f"{name} x {len(x)}, {method}"] = timed(functools.partial(forward_backward, stack, x), count)
    times = interleave(contestants, rounds)
    for name, t in times.items():
        loop = times[name.rsplit(", ", 1)[0] + ", loop"]
        ratios[f"{name} / loop"] = ratio(t, loop)
    return times, ratios


def forward_backward(stack: bdl.ChainStack, x: torch.Tensor) -> None:
    stack.zero_grad()
    stack(x).square().mean().backward()


# ---- report ----------------------------------------------------------------------------------------------------------


def ratio(a: list[float], b: list[float]) -> float:
    return statistics.median(a) / statistics.median(b)


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
    benches = {"update": bench_update, "train": bench_train, "chains": bench_chains}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*benches, []], help="which; all unless given")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    console, found = Console(), {}
    for name in arguments.names or benches:
        times, ratios = benches[name](arguments.rounds)
        show(name, times, ratios, console)
        found[name] = {"milliseconds": {k: statistics.median(t) for k, t in times.items()}, "ratios": ratios}
    machine = {"torch": str(torch.__version__), "threads": arguments.threads, "machine": platform.machine()}
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
