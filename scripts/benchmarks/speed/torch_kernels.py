"""SGHMC in torch on a Problem: as train.py runs it, as a loop over bdl's Sampler, and without bdl."""

import functools
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor

import bdl
from bdl.data import TensorSlices
from bdl.likelihoods import mean_loss
from bdl.models import MLP
from bdl.posterior.store import SampleStore
from benchmarks.speed.problem import Problem
from benchmarks.speed.timing import endless, fit, plain_sghmc


def fit_like_train(
    problem: Problem, chains: int, folder: str, steps: int, warm_up: int, every: int, test: TensorSlices | None = None
) -> float:
    """Milliseconds per step of Trainer.fit with the callbacks and the logger of `scripts/train.py`.

    Samples lie in the folder: every `every`-th state after warm_up steps. test: the loader of ModelAverage, which needs
    classes.
    """
    keep = bdl.schedules.EveryStep(warm_up, every)
    callbacks = [
        bdl.Schedule(lr=bdl.schedules.Constant(problem.lr), temperature=bdl.schedules.Constant(problem.temperature)),
        bdl.CollectSamples(keep, folder),
        *([] if test is None else [bdl.ModelAverage(keep, test, name="test")]),
        bdl.Monitor(50),
        bdl.callbacks.StepProgress(),
        bdl.callbacks.TimeLimit(None),
        bdl.SaveLast(Path(folder) / "checkpoints", every=5000),
    ]
    module = bdl.BayesianModule(problem.stack(chains), problem.sampler, loss=problem.loss())
    return fit(
        module, problem.batches(chains), steps, callbacks, CSVLogger(folder), warm_up=warm_up,
        enable_checkpointing=True, default_root_dir=folder, num_sanity_val_steps=0,
    )  # fmt: skip


def time_like_train(problem: Problem, chains: int, steps: int, warm_up: int, every: int, test: TensorSlices) -> float:
    """`fit_like_train` in a folder that is removed."""
    with tempfile.TemporaryDirectory() as folder:
        return fit_like_train(problem, chains, folder, steps, warm_up, every, test)


def samples(problem: Problem, folder: str) -> np.ndarray:
    """(samples, chains, d) parameters that CollectSamples wrote, in the network's order."""
    store, names = SampleStore(folder), MLP(problem.sizes).state_dict()
    states = (store.read(record) for record in store.records())
    return torch.stack([torch.cat([state[name].flatten(1) for name in names], 1) for state in states]).numpy()


class SamplerLoop:
    """`Sampler.step(closure)` on a ChainStack, in a loop without Lightning."""

    def __init__(self, problem: Problem, chains: int):
        stack, loss = problem.stack(chains), problem.loss()
        self.stack, self.batches = stack, endless(problem.batches(chains))
        self.sampler = problem.sampler(stack.named_parameters(), chains)

        def closure() -> Tensor:
            x, y = next(self.batches)
            stack.zero_grad()
            losses = mean_loss(loss, stack(x), y, chains)
            losses.sum().backward()
            return losses.detach()

        self.step = functools.partial(self.sampler.step, torch.enable_grad()(closure))

    def theta(self) -> np.ndarray:
        """(chains, d) parameters."""
        return torch.cat([p.detach().flatten(1) for p in self.stack.parameters()], 1).numpy().copy()


class BareLoop:
    """One chain, data in memory, no framework: the least that a step costs in plain torch."""

    def __init__(self, problem: Problem):
        self.problem, self.net = problem, MLP(problem.sizes)
        self.momenta = {p: torch.zeros_like(p) for p in self.net.parameters()}
        self.order, self.position = torch.randperm(problem.num_data), 0

    def step(self) -> None:
        p = self.problem
        if self.position + p.batch > p.num_data:
            self.order, self.position = torch.randperm(p.num_data), 0
        rows = self.order[self.position : self.position + p.batch]
        self.position += p.batch
        x, y = p.x[rows], p.y[rows]
        self.net.zero_grad()
        loss = F.cross_entropy(self.net(x), y) if p.classes else 0.5 * F.mse_loss(self.net(x), y)
        loss.backward()
        plain_sghmc(self.momenta, p.lr, p.num_data, p.friction, temperature=p.temperature)

    def theta(self) -> np.ndarray:
        """(1, d) parameters."""
        return torch.cat([p.detach().flatten() for p in self.net.parameters()]).numpy()[None].copy()
