"""Many chains of one method on Landsat as one stack, their predictions averaged as they come: no state is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

import bdl
from bdl.data.landsat import LandsatDataModule
from bdl.likelihoods import mean_loss
from bdl.models import MLP
from bdl.samplers.dynamics.base import Dynamics
from bdl.samplers.weighting.weightings import Weighting
from literature.experiment import Context

SIZES = (36, 30, 30, 6)
DECAY = 40  # of decreasing steps: lr_k = lr (1 + DECAY k / K)^-gamma, so that a shorter run has the same shape
BURN_IN = 0.3  # share of the steps
BATCH, ROWS = 100, 500  # of a step, of an evaluation
LOSS = bdl.CategoricalNLL()


@dataclass(frozen=True)
class Setting:
    """What is tuned: lr at the first step, in SGD's units; T; the power with which the step decreases, 0 = constant."""

    lr: float
    temperature: float = 0.0
    gamma: float = 0.0

    def __str__(self) -> str:
        parts = [f"lr {self.lr:g}"]
        parts += [f"T {self.temperature:g}"] * (self.temperature > 0) + [f"γ {self.gamma:g}"] * (self.gamma > 0)
        return ", ".join(parts)


@dataclass(frozen=True)
class Method:
    """A row of the table."""

    name: str
    dynamics: Dynamics
    grid: tuple[Setting, ...]
    published: tuple[float, float] | None = None  # fit and prediction error, %
    weighting: Weighting = field(default_factory=bdl.Flat)


class Averages:
    """Predictions of C chains on n rows: the weighted average of each chain, and the mean error of single states."""

    def __init__(self, x: Tensor, y: Tensor, chains: int):
        self.x, self.y = x, y
        self.probs = torch.zeros(chains, len(y), SIZES[-1])
        self.single = torch.zeros(chains)  # % of rows
        self.weight, self.count = torch.zeros(chains), 0

    def add(self, probs: Tensor, weight: Tensor) -> None:
        """probs: (C, n, 6) of the present states. weight: (C,)."""
        self.weight += weight
        self.count += 1
        self.probs.lerp_(probs, (weight / self.weight).view(-1, 1, 1))
        self.single.lerp_(error(probs, self.y), 1 / self.count)

    def scores(self, group: int) -> dict[str, Tensor]:
        """Errors in % and negative log-likelihoods in nats a row, (C / group,) each: of every `group` chains in turn.

        one, chain, all: of one state, of one chain's average (means over the group), of the group's average.
        """
        together = self.probs.unflatten(0, (-1, group)).mean(1)
        each = {"one": self.single, "chain": error(self.probs, self.y), "chain_nll": nll(self.probs, self.y)}
        return {
            **{name: value.view(-1, group).mean(1) for name, value in each.items()},
            "all": error(together, self.y),
            "all_nll": nll(together, self.y),
        }


@dataclass
class Run:
    """What C chains of one method left."""

    averages: dict[str, Averages]  # per split
    steps: list[int] = field(default_factory=list)  # at which the next two were recorded
    errors: list[Tensor] = field(default_factory=list)  # (C,) each, % of the first split's rows
    energies: list[Tensor] = field(default_factory=list)  # (C,) each, -Σ log p(y|x,θ) over the first split, nats
    multiplier: float = 1.0  # of the gradient, mean after burn-in
    t_eff: float = 0.0  # about the temperature that the batches make of T, mean over chains at the end


def sample(
    method: Method,
    settings: list[Setting],
    data: LandsatDataModule,
    splits: Sequence[str],
    steps: int,
    kept: int,
    context: Context,
) -> Run:
    """One chain per setting, each with a start, batches and noise of its own; `kept` of its states averaged."""
    chains = len(settings)
    stack = bdl.ChainStack(lambda: MLP(SIZES), chains, seed=data.seed, stack=data.stack)
    sampler = _sampler(method, settings, data, stack)
    lr, gamma = torch.tensor([s.lr for s in settings]), torch.tensor([s.gamma for s in settings])
    run = Run({split: Averages(*data.tensors(split), chains) for split in splits})
    batches, multipliers = _endless(data.train_dataloader()), []
    burn_in, every = round(BURN_IN * steps), round((1 - BURN_IN) * steps / kept)
    for k in context.track(range(steps), method.name):
        rate = lr * (1 + DECAY * k / steps) ** -gamma
        sampler.param_groups[0]["lr"] = rate
        _step(sampler, stack, *next(batches))
        if k >= burn_in:
            multipliers.append(sampler.multiplier.mean())
        if (k + 1 - burn_in) % every == 0:
            # step-size weights: Welling & Teh 2011, eq. 11; an optimiser's states weigh the same
            weight = rate if settings[0].temperature > 0 else torch.ones(chains)
            _evaluate(run, stack, k + 1, weight if k >= burn_in else None)
    sampler.check()
    run.multiplier, run.t_eff = torch.stack(multipliers).mean().item(), sampler.t_eff.mean().item()
    return run


def _sampler(method: Method, settings: list[Setting], data: LandsatDataModule, stack: bdl.ChainStack) -> bdl.Sampler:
    alike = len({s.temperature for s in settings}) == 1  # then one pilot's range serves all chains
    return bdl.Sampler(
        stack.parameters(),
        method.dynamics,
        num_data=data.num_data,
        lr=torch.tensor([s.lr for s in settings]),
        temperature=settings[0].temperature if alike else torch.tensor([s.temperature for s in settings]),
        prior=bdl.Gaussian(1.0),
        weighting=method.weighting,
        chains=len(settings),
        seed=data.seed,
        stack=data.stack,
    )


def _endless(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from batches


def _step(sampler: bdl.Sampler, stack: bdl.ChainStack, x: Tensor, y: Tensor) -> None:
    """x (C, B, 36), y (C, B)."""

    def closure() -> Tensor:
        sampler.zero_grad()
        losses = mean_loss(LOSS, stack(x), y, stack.chains)  # (C,)
        losses.sum().backward()
        return losses.detach()

    sampler.step(closure)


@torch.no_grad()
def _evaluate(run: Run, stack: bdl.ChainStack, step: int, weight: Tensor | None) -> None:
    """Record the path on the first split, and average the predictions of a state that has a weight (C,)."""
    for i, average in enumerate(run.averages.values()):
        if i > 0 and weight is None:
            continue
        probs = torch.cat([stack.broadcast(x).softmax(-1) for x in average.x.split(ROWS)], 1)  # (C, n, 6)
        if i == 0:
            run.steps.append(step)
            run.errors.append(error(probs, average.y))
            run.energies.append(nll(probs, average.y) * len(average.y))
        if weight is not None:
            average.add(probs, weight)


def error(probs: Tensor, y: Tensor) -> Tensor:
    """(...,) % of the rows whose most probable class is not y: probs (..., n, 6), y (n,)."""
    return 100 * (probs.argmax(-1) != y).float().mean(-1)


def nll(probs: Tensor, y: Tensor) -> Tensor:
    """(...,) mean of -log p(y), nats: probs (..., n, 6), y (n,)."""
    own = probs.gather(-1, y.expand(probs.shape[:-1]).unsqueeze(-1)).squeeze(-1)
    return -own.clamp_min(1e-30).log().mean(-1)
