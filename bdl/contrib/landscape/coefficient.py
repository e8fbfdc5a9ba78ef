"""learning_coefficient: how fast the loss grows around a trained network, as a dimension."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bdl.batch import Reader, joined, map_tensors, rows_of
from bdl.contrib.landscape.estimate import CoefficientEstimate
from bdl.engine.choose import Compile
from bdl.engine.losses import mean_losses
from bdl.engine.stack import ChainStack
from bdl.errors import ConfigError, check_positive
from bdl.frozen import Only
from bdl.likelihoods import Loss
from bdl.samplers.dynamics.base import Transition
from bdl.samplers.dynamics.langevin import BAOAB
from bdl.samplers.priors import Gaussian, Prior
from bdl.tune.batch import choose_batch
from bdl.tune.step import heat_of, measure_noise, warm_up
from bdl.tune.trial import Items, Problem, Trial

CHUNK = 4096  # items of all chains together that are evaluated at once, at least one for each chain
FIRST_ORDER = 5.0  # by how much lr is smaller where its error is of first order: 2 % of energy, not 10 %
COOLER = 0.3  # times the lr at which batches heat by 10 %
SEARCH = 0.2  # share of the steps that find lr
EVALUATION = 3  # gradients that cost as much as a forward pass over as many items


def learning_coefficient(
    net: nn.Module,
    loss: Loss,
    loader: Iterable[Any],
    *,
    dynamics: Transition = BAOAB(friction=0.1),  # noqa: B008
    chains: int = 8,
    steps: int = 4000,
    burn_in: int | None = None,
    temperature: float | None = None,
    localization: float = 1.0,
    only: Only = None,
    num_data: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    seed: int = 0,
    compiled: Compile = "auto",
) -> CoefficientEstimate:
    """The local learning coefficient of a network w* (Lau et al. 2023, definition 1), with its error and a verdict.

        λ̂ = N (E[L(w)] - L(w*)) / T,    E over exp(-N L(w) / T - γ |w - w*|² / 2),    T = log N

    L is the mean loss over the N items. Chains begin at w*, under a Gaussian prior centred there. A regular model with
    d parameters has λ = d/2, a degenerate one less (Watanabe 2009). The network stays as it is; it is evaluated in eval
    mode, without dropout and with the statistics of BatchNorm as they are.

    N is finite, and so are two errors. The localization takes from every direction of curvature h of L the share
    γ / (N h / T + γ) of its 1/2; see `CoefficientEstimate.held`. On a singular model with multiplicity m the
    expectation lies below λ by about (m - 1) / log(N / T).

        >>> net = nn.Linear(3, 1).double()
        >>> x = torch.randn(500, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, net(x).detach()), 500)
        >>> found = learning_coefficient(net, lambda f, y: (f - y).square().sum(-1).mean() / 2, batches, steps=1000)
        >>> abs(found.value + found.held - 4 / 2) < 5 * found.std_error + 0.05
        True

    Args:
        net: a network at a minimum of the loss.
        loss: a negative log-likelihood per item (`bdl.likelihoods`), or any loss that returns its mean over the batch.
        loader: labelled batches, which a `bdl.batch.Reader` splits into inputs and target. It is read once, and its
            items are kept in memory.
        dynamics: how the chains move. The default has no error on a Gaussian; the step size is smaller for others.
        chains: C.
        steps: after the burn-in.
        burn_in: steps that do not count; None means half of `steps`.
        temperature: T > 0; None means log N.
        localization: γ > 0, the precision of the posterior's prior at w*.
        only: patterns of names, such as "head.*": the coefficient of these parameters, the others fixed.
        num_data: N; None means the items of the loader. A loss that is a mean over tokens needs the number of tokens.
        batch_size: items of a step; None means all of up to 2,048, and then as `find_settings` chooses.
        lr: step size in SGD's units; None finds it by the curvature of the loss and the batch noise.
        seed: with the same seed and data, and on the same machine, the estimate is the same.
        compiled: see `compile` of `BayesianModule`.

    Raises ConfigError for values out of range and for a loader without items, DivergedError where even a tiny lr
    diverges.
    """
    _check(steps, burn_in, temperature, localization, dynamics, lr)
    device = next(net.parameters()).device
    items = gathered(loader, Reader(net), device)
    n = num_data or len(items[1])
    if n < 2:
        raise ConfigError(f"a learning coefficient needs at least 2 items, got {n}: T = log N")
    stack = ChainStack(net, chains, only=only, start="given", seed=seed, shared=False)
    parameters = sum(p[0].numel() for p in stack.parameters() if p.requires_grad)
    size = len(items[1]) if dynamics.full_batch else batch_size or choose_batch(len(items[1]), parameters).value
    problem = Problem(
        stack, loss, items, n, min(size, len(items[1])), temperature or math.log(n), seed, compiled, train=False
    )
    prior = problem.centred(Gaussian(localization * problem.temperature, mean="start"))
    lr = lr or find_lr(problem, dynamics, prior, steps)
    chain = _Chains(problem, dynamics, prior, lr)
    chain.run(steps // 2 if burn_in is None else burn_in, steps)
    return chain.estimate(localization, parameters)


def find_lr(problem: Problem, dynamics: Transition, prior: Prior, steps: int) -> float:
    """The lr that the curvature along the way allows, and the noise of batches."""
    trial = Trial(problem, dynamics, prior, 1e-3, "coefficient lr")
    limits = warm_up(trial, max(1, round(SEARCH * steps)))
    a = dynamics.friction
    by_energy = min(limits.by_energy(a), limits.diverged_at / 4)
    if problem.batch_size < len(problem.items[1]):
        limits = measure_noise(trial, limits)
    exact = isinstance(dynamics, BAOAB) or dynamics.full_batch
    return min(by_energy if exact else by_energy / FIRST_ORDER, COOLER * limits.by_noise(a))


def gathered(loader: Iterable[Any], read: Reader, device: torch.device) -> Items:
    """All inputs and targets of a loader, on the device. torch's global random stream stays as it is."""
    with torch.random.fork_rng(devices=[]):
        pairs = [read(batch) for batch in loader]
    if not pairs:
        raise ConfigError("the loader has no batch: give it the items on which the network was trained")
    inputs, targets = zip(*pairs, strict=True)
    if not all(isinstance(y, Tensor) for y in targets):
        raise ConfigError("a learning coefficient needs labelled batches: (x, y), or a dict with labels")
    return map_tensors(lambda t: t.to(device), joined(inputs)), torch.cat(targets).to(device)


class _Chains:
    """Chains around the network, and what is seen of them.

    On full batches the loss of a step is that of all items, at the θ before it. Otherwise all items are evaluated every
    few steps, at about the cost of the steps themselves.
    """

    def __init__(self, problem: Problem, dynamics: Transition, prior: Prior, lr: float):
        self.problem, self.prior = problem, prior
        self.trial = Trial(problem, dynamics, prior, lr, "coefficient")
        self.full = problem.batch_size >= len(problem.items[1])
        n, b = len(problem.items[1]), problem.batch_size
        self.every = 1 if self.full else max(1, round(n / (EVALUATION * b)))
        self.losses: list[Tensor] = []  # (C,) mean loss over all items
        self.held: list[Tensor] = []  # (C,) energy of the prior, nats
        self.configurational: list[Tensor] = []  # (C,)
        self.loss = float(self._all_losses(problem.stack).mean())

    def run(self, burn_in: int, steps: int) -> None:
        self.trial.run_stably(burn_in + steps, self._see, self.every)
        self.kept = max(1, steps // self.every)

    def estimate(self, localization: float, parameters: int) -> CoefficientEstimate:
        p = self.problem
        losses = torch.stack(self.losses[-self.kept :], 1)
        seen = self.configurational[len(self.configurational) // 2 :]
        measured = torch.stack(seen).double().mean(0).cpu() if seen else torch.full((p.stack.chains,), math.nan)
        return CoefficientEstimate(
            trace=(losses - self.loss) * (p.num_data / p.temperature), loss=self.loss, num_data=p.num_data,
            temperature=p.temperature, localization=localization, parameters=parameters, lr=self.trial.lr,
            held=float(torch.stack(self.held[-self.kept :]).mean()) / p.temperature,
            heat=0.0 if self.full else heat_of(self.trial.sampler), configurational=measured / p.temperature,
        )  # fmt: skip

    def _all_losses(self, stack: ChainStack) -> Tensor:
        """(C,) mean loss of every chain over all items, double."""
        x, y = self.problem.items
        parts = torch.arange(len(y), device=y.device).split(max(1, CHUNK // stack.chains))
        batches = ((rows_of(x, rows), y[rows]) for rows in parts)
        return mean_losses(batches, stack, self.problem.loss, stack.chains).double().cpu()

    def _see(self, trial: Trial) -> None:
        p, energy = self.problem, trial.energies[-1].double().cpu()
        if self.full:
            losses = trial.losses[-1].double().cpu()
            self.held.append(energy - losses * p.num_data)
        else:
            losses = self._all_losses(trial.stack)
            self.held.append(torch.as_tensor(self.prior.energy(trial.sampler.chain.theta)).double().cpu())
        self.losses.append(losses)
        if trial.sampler.configurational_temperature is not None:
            self.configurational.append(trial.sampler.configurational_temperature.clone())


def _check(
    steps: int, burn_in: int | None, temperature: float | None, localization: float, dynamics: Transition, lr: Any
) -> None:
    if steps < 1 or burn_in is not None and burn_in < 0:
        raise ConfigError(f"steps must be at least 1 and burn_in at least 0, got {steps} and {burn_in}")
    for name, value in (("temperature", temperature), ("localization", localization), ("lr", lr)):
        if value is not None:
            check_positive(name, value)
    if not dynamics.noisy or dynamics.variational or dynamics.adapt_steps:
        raise ConfigError(f"a learning coefficient needs a sampler that does not adapt, got {dynamics}: bdl.SGLD()")
    if lr is None and not (dynamics.full_batch or "lr" in dynamics.tunable):
        raise ConfigError(f"lr of {dynamics} cannot be found, because it preconditions its step: give lr")
