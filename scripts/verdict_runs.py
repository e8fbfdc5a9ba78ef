"""Simulated runs whose laws are known, and the metrics that bdl would measure of them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from literature.targets import Chains, GaussianLaw

from bdl.posterior.convergence import mixing, repeat_error, trace_error

EVERY = 10  # steps between samples of a sampler, and between its configurational temperatures
LATENT, ITEMS = 8, 12  # directions of the law, and test items that look at them


@dataclass(frozen=True)
class Sampled:
    """Settings of a sampler of bdl. Every 10th step is kept, after `burn_in` of those."""

    dynamics: Any
    lr: float
    gradient_noise: float | None = None
    burn_in: int = 20


@dataclass(frozen=True)
class Scenario:
    """A law, a sampler and a budget.

    The law is standard normal in 8 directions; the logit, or the mean, of an item is a mixture of them. A chain is an
    autoregression whose draws are worth `draws / slow` independent ones. `right`: a verdict of trust would be right;
    None where either answer can be defended.
    """

    group: str
    name: str
    right: bool | None
    chains: int = 4
    draws: int = 250
    slow: float = 1.0  # draws of one chain for each independent one
    apart: float = 0.0  # distance between two equal modes, of which each chain knows one, in standard deviations
    switch: float = 0.0  # probability that a chain changes its mode between two draws
    start: float = 0.0  # where all chains start, in standard deviations
    heat: float = 1.0  # temperature of the draws over T
    level: float = 1.0  # standard deviation of the logits of single networks
    numbers: bool = False  # regression
    chance: bool = False  # the average has learnt nothing
    sampler: Sampled | None = None  # its chains in place of autoregressions
    metrics: Mapping[str, float] = field(default_factory=dict)  # temperatures and scores that differ from the law's


@dataclass(frozen=True)
class SimulatedRun:
    """The metrics of one run, and the averages (items,) by which the runs of a scenario differ."""

    metrics: dict[str, float]
    averages: np.ndarray


def simulate(s: Scenario, runs: int) -> list[SimulatedRun]:
    """Independent runs of the scenario. All of them have the same items."""
    seeds = [np.random.default_rng([1, zlib.crc32(s.name.encode()), seed]) for seed in range(runs)]
    if s.sampler is not None:
        return [measured(s, *part, rng) for part, rng in zip(sampled(s, s.sampler, runs), seeds, strict=True)]
    chains = [draw(s, rng) for rng in seeds]
    return [measured(s, theta, temperatures(s, theta), rng) for theta, rng in zip(chains, seeds, strict=True)]


def measured(
    s: Scenario, theta: np.ndarray, temperatures: Mapping[str, float], rng: np.random.Generator
) -> SimulatedRun:
    """The metrics of chains (chains, draws, 8)."""
    items = np.random.default_rng([0, zlib.crc32(s.name.encode())])
    loadings = items.normal(size=(LATENT, ITEMS))
    loadings *= s.level / np.linalg.norm(loadings, axis=0)
    offsets = 1.5 * items.normal(size=ITEMS)
    outputs = theta @ loadings + s.apart * s.level * (sides(s, rng) - 0.5)[..., None]
    known = np.zeros(ITEMS) if s.chance else offsets  # what the networks have learnt
    predictions = known + outputs if s.numbers else sigmoid(known + outputs)
    total = math.sqrt(1 + s.level**2) if s.numbers else 1.0  # of the predictions; the noise of y has the variance 1
    other = 5 * autoregression(s.chains, s.draws, 1, s.slow, rng)[..., 0]  # 50 more directions, nats
    metrics = mixing(outputs, np.square(theta).sum(-1) / 2 + other)
    metrics |= repeat_error(predictions.mean(1)[..., None], total, predictions[:1] / total)
    metrics |= scores(s, predictions, offsets) | {"temperature": 1.0, **temperatures}
    metrics |= {"chains": s.chains, "samples": s.chains * s.draws, **s.metrics}
    return SimulatedRun(metrics, predictions.mean((0, 1)))


def sampled(s: Scenario, sampler: Sampled, runs: int) -> Iterator[tuple[np.ndarray, dict[str, float]]]:
    """Chains (chains, draws, 8) and temperatures of every run: chains of bdl on the law itself, all runs at once."""
    generator = torch.Generator().manual_seed(0)
    start = s.start + torch.randn(runs * s.chains, LATENT, generator=generator)
    law = GaussianLaw([0.0] * LATENT, np.eye(LATENT).tolist())
    chains = Chains(law, sampler.dynamics, start, lr=sampler.lr, gradient_noise=sampler.gradient_noise, seed=1)
    kept, names = [], ("t_eff", "kinetic_temperature", "configurational_temperature")
    rows: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for step in range(1, EVERY * (s.draws + sampler.burn_in) + 1):
        chains.step()
        if step % EVERY == 0 and step > EVERY * sampler.burn_in:
            kept.append(chains.theta.double().numpy().copy())
            for name in names:
                rows[name].append(getattr(chains.sampler, name).double().numpy().copy())
    traces = {name: np.stack(values) for name, values in rows.items()}  # (draws, all chains)
    for run in range(runs):
        mine = slice(run * s.chains, (run + 1) * s.chains)
        numbers = {name: float(values[:, mine].mean()) for name, values in traces.items()}
        errors = {f"{name}_se": trace_error(traces[name][:, mine]) for name in names[1:]}
        yield np.stack(kept, 1)[mine], numbers | errors


def draw(s: Scenario, rng: np.random.Generator) -> np.ndarray:
    """(chains, draws, 8) the chains."""
    theta = math.sqrt(s.heat) * autoregression(s.chains, s.draws, LATENT, s.slow, rng)
    return theta + s.start * np.power(coefficient(s.slow), np.arange(s.draws))[:, None]


def sides(s: Scenario, rng: np.random.Generator) -> np.ndarray:
    """(chains, draws) the mode of every draw, 0 or 1. Chains never all start in one mode: nothing could see that."""
    start = rng.integers(2, size=s.chains)
    while s.chains > 1 and 0 < s.apart and start.sum() in (0, s.chains):
        start = rng.integers(2, size=s.chains)
    changes = np.cumsum(rng.random((s.chains, s.draws)) < s.switch, 1)
    return (start[:, None] + changes) % 2


def scores(s: Scenario, predictions: np.ndarray, offsets: np.ndarray) -> dict[str, float]:
    """Expected NLL, nats, of the average, of single networks and of a constant, where y follows the offsets."""
    if s.numbers:
        return {
            "test/bma/rmse": 1.0,
            "test/bma/nll": 1.5 + np.square(predictions.mean((0, 1)) - offsets).mean() / 2,
            "test/draw/nll": 1.42 + np.square(predictions - offsets).mean() / 2,
            "test/constant/nll": 1.42 + math.log(1 + offsets.var()) / 2,
        }
    p = sigmoid(offsets)
    average, each = np.clip(predictions.mean((0, 1)), 1e-12, 1 - 1e-12), np.clip(predictions, 1e-12, 1 - 1e-12)
    share = p.mean()
    return {
        "test/bma/nll": float(-(p * np.log(average) + (1 - p) * np.log1p(-average)).mean()),
        "test/draw/nll": float(-(p * np.log(each) + (1 - p) * np.log1p(-each)).mean()),
        "test/constant/nll": float(-(share * np.log(share) + (1 - share) * np.log1p(-share))),
    }


def temperatures(s: Scenario, theta: np.ndarray) -> dict[str, float]:
    """T = 1, T_eff and kinetic temperature as they are, and the configurational temperature <θ, ∇U>/d of the draws."""
    virial = np.square(theta).mean(-1).T  # (draws, chains)
    return {
        "t_eff": s.heat,
        "kinetic_temperature": 1.05 * s.heat,  # an integrator's usual error
        "configurational_temperature": float(virial.mean()),
        "configurational_temperature_se": trace_error(virial),
    }


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(x / 2))


def coefficient(slow: float) -> float:
    """The autoregression whose draws are worth 1/slow of an independent one: slow = (1 + c) / (1 - c)."""
    return (slow - 1) / (slow + 1)


def autoregression(chains: int, draws: int, directions: int, slow: float, rng: np.random.Generator) -> np.ndarray:
    """(chains, draws, directions) of a stationary autoregression with variance 1."""
    c = coefficient(slow)
    x = rng.normal(size=(chains, draws, directions))
    for t in range(1, draws):
        x[:, t] = c * x[:, t - 1] + math.sqrt(1 - c**2) * x[:, t]
    return x
