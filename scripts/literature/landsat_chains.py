"""Many chains of one method on Landsat as one stack. Predictions are averaged during the run; no state is stored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

import torch
from torch import Tensor

import bdl
from bdl.data.landsat import LandsatDataModule
from bdl.engine.choose import choose_gradient
from bdl.likelihoods import mean_loss
from bdl.models import MLP
from bdl.samplers.potential import BoundGradient
from literature.experiment import Context
from literature.landsat_methods import Method, Setting

SIZES = (36, 30, 30, 6)
DECAY = 40  # lr_k = lr (1 + DECAY k / K)^-gamma, which has the same shape for every length K of a run
BURN_IN = 0.3  # share of the steps
BATCH, ROWS = 100, 500  # rows in a mini-batch, rows in one evaluation
LOSS = bdl.CategoricalNLL()


class Averages:
    """Predictions of C chains on n rows: each chain's weighted average, and the mean error of its single states."""

    def __init__(self, x: Tensor, y: Tensor, chains: int):
        self.x, self.y = x, y
        self.probs = torch.zeros(chains, len(y), SIZES[-1])
        self.single = torch.zeros(chains)  # error in % of rows
        self.weight, self.count = torch.zeros(chains), 0

    def add(self, probs: Tensor, weight: Tensor) -> None:
        """probs: (C, n, 6) class probabilities of the present states. weight: (C,)."""
        self.weight += weight
        self.count += 1
        self.probs.lerp_(probs, (weight / self.weight).view(-1, 1, 1))
        self.single.lerp_(error(probs, self.y), 1 / self.count)

    def scores(self, group: int) -> dict[str, Tensor]:
        """Errors in % and negative log-likelihoods in nats a row, (C / group,) each, for consecutive groups of chains.

        one: of single states, chain: of one chain's average, both averaged over the group; all: of the group's average.
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
    """The records of C chains of one method."""

    averages: dict[str, Averages]  # per split
    steps: list[int] = field(default_factory=list)  # steps at which `errors` and `energies` were recorded
    errors: list[Tensor] = field(default_factory=list)  # (C,) each, % of the first split's rows
    energies: list[Tensor] = field(default_factory=list)  # (C,) each, -Σ log p(y|x,θ) over the first split, nats
    multipliers: list[Tensor] = field(default_factory=list)  # (C,) each, of the gradient, at kept steps
    t_eff: float = 0.0  # mean T_eff over chains at the end of the run

    @property
    def multiplier(self) -> tuple[float, float, float]:
        """5 %, 50 % and 95 % quantile of the multipliers at kept steps."""
        low, median, high = torch.cat(self.multipliers).double().quantile(torch.tensor([0.05, 0.5, 0.95]).double())
        return low.item(), median.item(), high.item()


def sample(
    method: Method,
    setting: Setting,
    chains: int,
    data: LandsatDataModule,
    splits: Sequence[str],
    steps: int,
    kept: int,
    context: Context,
) -> Run:
    """Run chains of one setting, each with its own start, batches and noise, and average `kept` states of each."""
    stack = bdl.ChainStack(lambda: MLP(SIZES), chains, seed=data.seed, stack=data.stack)
    sampler = _sampler(method, setting, data, stack)
    run = Run({split: Averages(*data.tensors(split), chains) for split in splits})
    batches, step = chain.from_iterable(repeat(data.train_dataloader())), _stepper(sampler, stack)
    burn_in, every = round(BURN_IN * steps), round((1 - BURN_IN) * steps / kept)
    for k in context.track(range(steps), method.name):
        lr = sampler.param_groups[0]["lr"] = setting.lr * (1 + DECAY * k / steps) ** -setting.gamma
        step(*next(batches))
        if (k + 1 - burn_in) % every == 0:
            if k >= burn_in:
                run.multipliers.append(sampler.multiplier.expand(chains).clone())
            # Samples weigh as their steps (Welling & Teh 2011, eq. 11), an optimiser's states all the same
            weight = torch.full((chains,), lr if setting.temperature > 0 else 1.0)
            _evaluate(run, stack, k + 1, weight if k >= burn_in else None)
    sampler.check()
    run.t_eff = sampler.t_eff.mean().item()
    return run


def _sampler(method: Method, setting: Setting, data: LandsatDataModule, stack: bdl.ChainStack) -> bdl.Sampler:
    sampler = bdl.Sampler(
        stack.parameters(),
        method.dynamics,
        num_data=data.num_data,
        lr=setting.lr,
        temperature=setting.temperature,
        prior=bdl.Gaussian(1.0),
        weighting=setting.weighting,
        chains=stack.chains,
        seed=data.seed,
        stack=data.stack,
    )
    x, y = data.tensors("train")
    sampler.full_loss = lambda: mean_loss(LOSS, stack.broadcast(x), y.expand(stack.chains, -1), stack.chains)
    return sampler


def _stepper(sampler: bdl.Sampler, stack: bdl.ChainStack) -> Callable[[Tensor, Tensor], None]:
    """A function that makes one step on a batch x (C, B, 36), y (C, B), without autograd."""
    gradient = choose_gradient(stack, LOSS)

    def step(x: Tensor, y: Tensor) -> None:
        sampler.advance(BoundGradient.of(gradient, x, y), measure=False)

    return step


@torch.no_grad()
def _evaluate(run: Run, stack: bdl.ChainStack, step: int, weight: Tensor | None) -> None:
    """Record error and energy on the first split; average the predictions of all splits if there is a weight (C,)."""
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
    p = probs.gather(-1, y.expand(probs.shape[:-1]).unsqueeze(-1)).squeeze(-1)
    return -p.clamp_min(1e-30).log().mean(-1)
