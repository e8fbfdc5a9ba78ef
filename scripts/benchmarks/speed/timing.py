"""Tools of bench.py: contestants that take turns, a timed Trainer, and SGHMC as it is commonly written."""

import contextlib
import io
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F

import bdl

Times = dict[str, list[float]]  # name -> milliseconds per step, one per round


def interleave(contestants: dict[str, Callable[[], float]], rounds: int) -> Times:
    """Run every contestant once a round; a busy machine then slows all of them alike. The first round warms up."""
    times: Times = {name: [] for name in contestants}
    for i in range(rounds + 1):
        for name, run in contestants.items():
            milliseconds = run()
            if i:
                times[name].append(milliseconds)
    return times


@contextlib.contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Keep this process on the first `count` of its cores, where the operating system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def no_wait() -> None:
    """On a CPU a measurement waits for nothing."""


def timed(step: Callable[[], object], count: int, wait: Callable[[], object] = no_wait) -> Callable[[], float]:
    """A function that times `count` steps, in milliseconds per step. wait: blocks until the device has finished."""

    def run() -> float:
        wait()
        start = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        return (time.perf_counter() - start) / count * 1e3

    return run


def per_step(run: Callable[[], float], steps: int) -> Callable[[], float]:
    """A timer of calls that each make `steps` steps, as a timer of one step."""
    return lambda: run() / steps


def ratio(a: list[float], b: list[float]) -> float:
    return statistics.median(a) / statistics.median(b)


@torch.no_grad()
def plain_sghmc(momenta: dict, lr: float, num_data: int, friction: float = 0.1, temperature: float = 1.0) -> None:
    """One step of SGHMC as it is commonly written: a loop over tensors. The prior is a standard normal."""
    std = (2 * friction * lr * temperature / num_data) ** 0.5
    for p, m in momenta.items():
        g = p.grad + p / num_data
        m.mul_(1 - friction).add_(g, alpha=-lr).add_(torch.randn_like(p), alpha=std)
        p.add_(m)


class PlainSGHMC(torch.optim.Optimizer):
    """`plain_sghmc` as an optimizer for Lightning."""

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
    """The module of Lightning's tutorials: one chain, an update per tensor, self.log at every step."""

    def __init__(self, net: torch.nn.Module, num_data: int):
        super().__init__()
        self.net, self.num_data = net, num_data

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return PlainSGHMC(self.parameters(), self.num_data)


def endless(loader: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batch after batch, epoch after epoch."""
    while True:
        yield from loader


class Clock(bdl.callbacks.StepCallback):
    """Milliseconds per step, from the end of the first batch at or after step `warm_up` to the last batch's end.

    A batch may hold many steps, so the clock counts by differences of `global_step`.
    """

    def __init__(self, warm_up: int, wait: Callable[[], object]):
        self.warm_up, self.wait = warm_up, wait
        self.first: int | None = None  # the step at which the clock started

    def must_see(self, step: int) -> bool:
        return self.first is None and step >= self.warm_up

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx: int) -> None:
        step = trainer.global_step
        if self.first is None and step >= self.warm_up:
            self.wait()
            self.first, self.start = step, time.perf_counter()
        elif self.first is not None and step >= trainer.max_steps:
            self.wait()
            self.milliseconds = (time.perf_counter() - self.start) / (step - self.first) * 1e3


class TakeTurns(bdl.callbacks.StepCallback):
    """After every `block` steps of the Trainer or a few more, run and time `block` calls of `step`.

    Turns this short compare what differs by less than the machine drifts in a minute. The first block warms up.
    trainer_times, step_times: milliseconds per step, one per block.
    """

    def __init__(self, block: int, step: Callable[[], object], wait: Callable[[], object]):
        self.block, self.wait = block, wait
        self.time_step = timed(step, block, wait)
        self.trainer_times: list[float] = []
        self.step_times: list[float] = []
        self.last = 0  # the step at which the last turn ended

    def must_see(self, step: int) -> bool:
        return step - self.last >= self.block

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx: int) -> None:
        steps = trainer.global_step - self.last
        if steps < self.block:
            return
        self.wait()
        if self.last:
            self.trainer_times.append((time.perf_counter() - self.start) / steps * 1e3)
            self.step_times.append(self.time_step())
        else:
            self.time_step()
        self.last = trainer.global_step
        self.start = time.perf_counter()


def fit(
    module: L.LightningModule, loader: Any, steps: int, callbacks: list, logger: Any, *,
    warm_up: int = 50, wait: Callable[[], object] = no_wait, **options: Any,
) -> float:  # fmt: skip
    """Milliseconds per step of Trainer.fit. options: passed to the Trainer."""
    clock = Clock(warm_up, wait)
    defaults = {"accelerator": "cpu", "enable_checkpointing": False, "enable_progress_bar": bool(callbacks)}
    trainer = L.Trainer(
        max_steps=steps, max_epochs=-1, logger=logger, callbacks=[*callbacks, clock], enable_model_summary=False,
        **(defaults | options),
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):  # the progress of the contestants is no part of the report
        trainer.fit(module, loader)
    return clock.milliseconds
