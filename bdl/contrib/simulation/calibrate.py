"""Simulation-based calibration of a run's own model and sampler settings. See conf/calibrate.yaml."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from rich.table import Table
from torch import Tensor

import bdl
from bdl.contrib.certificate.certify import StoredRun
from bdl.contrib.simulation.prior_draws import draw_from
from bdl.contrib.simulation.ranks import Ranks
from bdl.data import TensorBatches
from bdl.display import print_whole
from bdl.errors import ConfigError
from bdl.likelihoods import Likelihood
from bdl.likelihoods.base import mean_loss
from bdl.run.config import plain
from bdl.run.console import WorkProgress
from bdl.run.records import write_json
from bdl.run.sampler_settings import SamplerSettings
from bdl.run.section import Section
from bdl.seeding import derive_seed, generator

FOLDER, RESULT = "calibration_law", "ranks.json"
ITEMS = 8  # items whose outputs are ranked


@dataclass(frozen=True)
class SimulatedProblem:
    """A run whose y can be drawn again.

    x: (N, ...) all inputs, as the network sees them. y: the recorded targets, for shape and type. at: items that are
    ranked. steps, first: of a replication, and the step after which its states count.
    """

    stored: StoredRun
    likelihood: Likelihood
    x: Tensor
    y: Tensor
    at: Tensor
    steps: int
    first: int
    share: float  # of the length of the run

    @classmethod
    def of(cls, stored: StoredRun, share: float) -> SimulatedProblem:
        """Raises ConfigError for a run whose targets cannot be simulated."""
        items, records = stored.items(), stored.posterior.records
        likelihood = stored.posterior.likelihood(items)
        if stored.temperature != 1:
            raise ConfigError(f"calibrate: at T = {stored.temperature:g} a run samples no posterior of simulated data")
        x = torch.cat([x for x, _ in items])
        with torch.no_grad():
            outputs = stored.posterior.net.eval()(x[:2])
        if outputs.ndim != 2 or likelihood.outputs == "unknown":
            raise ConfigError(
                "calibrate: targets can be simulated where an item has one row of outputs of a likelihood"
            )
        steps, first = (max(1, round(share * records[i].step)) for i in (-1, 0))
        at = torch.linspace(0, len(x) - 1, ITEMS).long().unique()
        return cls(stored, likelihood, x, items.y, at, steps, first, share)

    def simulated(self, net: Callable[[Tensor], Tensor], seed: int) -> Tensor:
        """(N, ...) targets that this network implies."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.likelihood.distribution(net(self.x)).sample().view_as(self.y).to(self.y.dtype)

    def quantities(self, outputs: Tensor) -> Tensor:
        """(s, q) quantities to rank, of outputs (s, n, K): an output of each item in turn, logits less their mean."""
        if self.likelihood.outputs == "logits":
            outputs = outputs - outputs.mean(-1, keepdim=True)
        rows = torch.arange(outputs.shape[1])
        return outputs[:, rows, rows % outputs.shape[2]].double()

    def log_likelihood(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(s,) log p(y|θ) of all items, nats."""
        return -torch.stack([self.likelihood(each, y).double().sum() for each in outputs])

    def settings(self, seed: int, num_data: int) -> SamplerSettings:
        """The sampler of a replication. It adapts for its share of the steps."""
        node = plain(self.stored.config.sampler)
        if "adapt_steps" in node["dynamics"]:
            node["dynamics"]["adapt_steps"] = int(self.share * node["dynamics"]["adapt_steps"])
        return replace(SamplerSettings.of(Section(node)), gradient=None, seed=seed, num_data=num_data)

    def drawn(self, x: Tensor, y: Tensor, seed: int, draws: int) -> Iterator[torch.nn.Module]:
        """Stacks of chains at states that the sampler of the run visits, evenly spaced: `draws` of each chain."""
        stored, config, settings = self.stored, self.stored.config, self.settings(seed, len(x))
        chains, start = int(stored.sampler.chains or 1), "given" if settings.only else "fresh"
        stack = bdl.ChainStack(stored.posterior.net, chains, only=settings.only, seed=seed, start=start)
        sampler = settings(stack.net.named_parameters(), chains)
        size = config.data.get("batch_size")
        batch = min(size, len(x)) if isinstance(size, int) else len(x)
        batches, schedule = TensorBatches(x, y, batch, chains=chains, seed=seed), Section.optional(config.schedule.lr)
        lr = None if schedule is None else schedule.build()
        kept = {round(s) for s in np.linspace(self.first, self.steps, draws).tolist()}
        for step, (inputs, targets) in zip(range(1, self.steps + 1), endless(batches), strict=False):
            if lr is not None:
                sampler.param_groups[0]["lr"] = lr(int(step / self.share))

            def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
                sampler.zero_grad()
                losses = mean_loss(stored.loss, stack(inputs), targets, chains)
                losses.sum().backward()
                return losses

            sampler.step(closure)
            if step in kept:
                yield stack.eval()
                stack.train()


def endless(batches: TensorBatches) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from batches


def calibrate(cfg: DictConfig) -> None:
    """Redraw y and sample again, `replications` times; print and write how the true networks rank."""
    run = Path(str(cfg.run)).expanduser()
    problem = SimulatedProblem.of(StoredRun.load(run, cfg.trust, cfg.device), cfg.length)
    found = []
    with WorkProgress("calibrating") as progress:
        for number in range(cfg.replications):
            found.append(replicate(problem, cfg.origin, derive_seed("calibrate", cfg.seed, number), cfg.draws))
            progress(number + 1, cfg.replications)
    names = ["log p(y|θ)", *(f"output of item {i}" for i in problem.at.tolist())]
    ranks = Ranks(names, torch.stack(found))
    write_json(run / FOLDER / RESULT, ranks.plain() | {"from": cfg.origin, "length": cfg.length})
    table = Table("quantity", "ranks of the truth, low to high", "p of uniform", box=None, pad_edge=False)
    for name, picture, p in ranks.rows():
        table.add_row(name, picture, f"{p:.3f}")
    print_whole(table)
    print(f"{ranks.sentence()}: {run / FOLDER / RESULT}")


@torch.no_grad()
def replicate(problem: SimulatedProblem, origin: str, seed: int, draws: int) -> Tensor:
    """(q,) the share of draws below the truth for each quantity, ties broken by chance.

    From the prior: θ ~ p(θ), y ~ p(y|θ), draws from p(θ|y) (Talts et al. 2018). From the posterior: θ of the run, and
    draws from p(θ|y, y'), y the data of the run and y' the simulated data (Säilynoja et al. 2025).
    """
    random = generator("cpu", "calibrate", seed)
    truth = true_network(problem.stored, origin, random)
    y = problem.simulated(lambda x: truth.broadcast(x)[0], seed)
    x, targets = problem.x, y
    if origin == "posterior":
        x, targets = torch.cat([x, x]), torch.cat([problem.y, y])

    def measured(net: Any) -> Tensor:
        outputs = net.broadcast(problem.x)
        return torch.cat([problem.log_likelihood(outputs, y)[:, None], problem.quantities(outputs[:, problem.at])], 1)

    right = measured(truth)
    with torch.enable_grad():
        states = problem.drawn(x, targets, seed, draws)
        each = torch.cat([measured(net).detach() for net in states])  # (draws x chains, q)
    below = (each < right).double() + (each == right).double() * torch.rand(right.shape, generator=random).double()
    return below.mean(0)


def true_network(stored: StoredRun, origin: str, random: torch.Generator) -> bdl.ChainStack:
    """One network, drawn from the prior or from the samples of the run."""
    truth = bdl.ChainStack(stored.posterior.net, 1, only=stored.sampler.only, start="given").eval()
    if origin == "prior":
        put(truth, draw_from(stored.sampler.prior, stored.sampler.chain.theta.shape[-1], random))
        return truth
    records = stored.posterior.records
    record = records[int(torch.randint(len(records), (), generator=random))]
    tensors = stored.posterior.read_record(record)
    row = int(torch.randint(len(record.chains), (), generator=random))
    present = dict(truth.net.named_parameters()) | dict(truth.net.named_buffers())
    for name, value in tensors.items():
        present[name].copy_(value[row : row + 1])
    return truth


def put(stack: bdl.ChainStack, theta: Tensor) -> None:
    """Give the sampled parameters of a stack of one chain the values θ (d,)."""
    live = [p for p in stack.net.parameters() if p.requires_grad]
    for p, part in zip(live, theta.split([p.numel() for p in live]), strict=True):
        p.copy_(part.view_as(p))
