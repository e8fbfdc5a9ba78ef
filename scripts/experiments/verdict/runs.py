"""Simulated runs whose target distributions are known, and the metrics that bdl would measure of them."""

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from literature.targets import Chains, GaussianLaw
from scipy import special

from bdl.likelihoods import HeteroscedasticNLL
from bdl.posterior.diagnostics import mixing, repeat_error, trace_error
from bdl.posterior.metrics import constant_class_losses, constant_value_losses
from bdl.posterior.value_evaluation import PRIOR_RESIDUALS
from experiments.verdict.laws import Law, means_of, measured_of

EVERY = 10  # steps between samples of a sampler, and between its configurational temperatures
TRUSTED = ("converged", "law", "linear")  # groups of scenarios that a verdict should trust
LATENT = 8  # directions of the target distribution, at which test items look


@dataclass(frozen=True)
class Sampled:
    """Settings of a sampler of bdl. Every 10th step is kept, after `burn_in` of those."""

    dynamics: Any
    lr: float
    gradient_noise: float | None = None
    burn_in: int = 20


@dataclass(frozen=True)
class Scenario:
    """A target distribution, a sampler and a budget.

    The target is standard normal in 8 directions; the logit, or the mean, of an item is a mixture of them. A chain is
    an autoregression whose draws are worth `draws / slow` independent ones.
    """

    group: str
    name: str
    chains: int = 4
    draws: int = 250
    items: int = 50
    slow: float | tuple[float, ...] = 1.0  # draws of one chain for each independent one, in all directions or in each
    apart: float = 0.0  # distance between two equal modes, of which each chain knows one, in standard deviations
    switch: float = 0.0  # probability that a chain changes its mode between two draws
    start: float = 0.0  # where all chains start, in standard deviations
    frozen: int = 0  # directions that all chains start from one place, and that need 100 runs for one independent draw
    memory: tuple[float, float] | None = None  # (share of the variance, draws for each independent one of that share)
    slow_chains: tuple[int, float] | None = None  # (chains, draws of these for each independent one)
    stopped: float = 0.0  # share of the draws, the last ones, in which one chain does not move
    starts: float = 0.0  # standard deviation of the starts in these directions
    drift: tuple[float, float] | None = None  # drift of all chains, from first to last draw, in standard deviations
    along: Literal["one", "all", "items", "spread"] = "one"  # direction, or directions, or items, or width of the draws
    touched: int | None = None  # the items at which modes differ, or that drift; None: all of them
    tails: float = math.inf  # degrees of freedom of Student's law in place of a normal one
    stray: bool = False  # one chain lies 2 standard deviations from the others
    heat: float = 1.0  # temperature of the draws over T
    level: float = 1.0  # standard deviation of the logits of single networks
    signal: float = 1.5  # standard deviation of what they have learnt over the items
    shift: float = 0.0  # mean of the logits over the items: one class is rare
    numbers: bool = False  # regression
    chance: bool = False  # the average has learnt nothing
    wide: bool = False  # y lies closer to the average than the networks do
    law: Law | None = None  # many directions in place of 8, each with a T of its own
    sampler: Sampled | None = None  # a sampler whose chains stand in place of autoregressions
    metrics: Mapping[str, float] = field(default_factory=dict)  # temperatures and scores that differ from the law's

    @property
    def right(self) -> bool | None:
        """Whether a verdict of trust would be right; None where either answer can be defended."""
        return None if self.group == "between" else self.group in TRUSTED


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
    """The metrics of chains (chains, draws, 8), or as many directions as the law has."""
    items = np.random.default_rng([0, zlib.crc32(s.name.encode())])
    loadings = items.normal(size=(theta.shape[-1], s.items))
    loadings *= s.level / np.linalg.norm(loadings, axis=0)
    offsets = s.shift + s.signal * items.normal(size=s.items)
    touched = s.level * (np.arange(s.items) < (s.items if s.touched is None else s.touched))
    outputs = theta @ loadings + s.apart * (sides(s, rng) - 0.5)[..., None] * touched
    if s.drift and s.along == "items":
        outputs += np.linspace(*s.drift, s.draws)[:, None] * touched
    if s.stray:
        outputs[0] += 2 * s.level
    networks = outputs + (np.zeros(s.items) if s.chance else offsets)  # what they have learnt
    predictions = networks if s.numbers else sigmoid(networks)
    energies = np.square(theta).sum(-1) / 2
    if s.law is None:
        other = 5 * autoregression(s.chains, s.draws, 1, slowest(s), rng)[..., 0]  # 50 more directions, nats
        stop(s, other)
        energies += other
    metrics = mixing(networks, energies, networks.astype(np.float32))
    metrics |= {} if s.law is None else measured_of(s.law, theta, rng)
    metrics |= scores(s, predictions, offsets, rng) | {"temperature": 1.0, **temperatures}
    scale = math.sqrt(1 + s.level**2) * metrics.get("mcse/unit", 1.0) if s.numbers else 1.0
    metrics |= repeat_error(predictions.mean(1)[..., None], scale, predictions[:1] / scale)
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
    if s.law is not None:
        return np.sqrt(s.law.temperature) * autoregression(s.chains, s.draws, s.law.directions, s.slow, rng)
    theta = math.sqrt(s.heat) * autoregression(s.chains, s.draws, LATENT, s.slow, rng)
    if s.memory:
        share, slow = s.memory
        theta *= math.sqrt(1 - share)
        theta += math.sqrt(share) * autoregression(s.chains, s.draws, LATENT, slow, rng)
    if s.slow_chains:
        count, slow = s.slow_chains
        theta[:count] = autoregression(count, s.draws, LATENT, slow, rng)
    if s.tails < math.inf:
        theta = theta / np.sqrt(rng.chisquare(s.tails, theta.shape) / s.tails)
    if s.frozen:
        start = s.starts * rng.normal(size=(s.chains, 1, s.frozen))
        steps = rng.normal(size=(s.chains, s.draws, s.frozen)) / math.sqrt(50 * s.draws)
        theta[..., : s.frozen] = start + np.cumsum(steps, 1)
    if s.drift and s.along != "items":
        path = np.linspace(*s.drift, s.draws)[:, None]
        moved = np.arange(LATENT) < (LATENT if s.along == "all" else 1)
        theta = theta * path if s.along == "spread" else theta + path * moved
    theta = theta + s.start * np.power(coefficient(slowest(s)), np.arange(s.draws))[:, None]
    stop(s, theta)
    return theta


def stop(s: Scenario, values: np.ndarray) -> None:
    """Hold the first of the chains (chains, draws, ...) where it is at the beginning of its last draws."""
    moves = round((1 - s.stopped) * s.draws)
    values[0, moves:] = values[0, moves : moves + 1]


def sides(s: Scenario, rng: np.random.Generator) -> np.ndarray:
    """(chains, draws) the mode of every draw, 0 or 1. Chains never all start in one mode: nothing could see that."""
    start = rng.integers(2, size=s.chains)
    while s.chains > 1 and 0 < s.apart and start.sum() in (0, s.chains):
        start = rng.integers(2, size=s.chains)
    changes = np.cumsum(rng.random((s.chains, s.draws)) < s.switch, 1)
    return (start[:, None] + changes) % 2


def scores(s: Scenario, predictions: np.ndarray, offsets: np.ndarray, rng: np.random.Generator) -> dict[str, float]:
    """Scores of the average, of single networks and of a constant on y, which follows the right average."""
    average = predictions.mean((0, 1))
    if s.numbers:
        total = 1 + s.level**2
        y = rng.normal(offsets, 1.0 if s.chance or s.wide else math.sqrt(total))
        known = torch.as_tensor(y)
        losses = normal_losses(y - average, total)
        constant, least = (constant_value_losses(known, HeteroscedasticNLL(), seen).numpy() for seen in (None, known))
        unit = min((np.square(y - average).sum() / total + PRIOR_RESIDUALS) / (s.items + PRIOR_RESIDUALS), 1.0)
        shown = {"test/bma/rmse": math.sqrt(np.square(y - average).mean()), "mcse/unit": math.sqrt(unit)}
        draws, claim = normal_losses(y - predictions, 1.0), math.log1p(average.var() / total) / 2
    else:
        p = sigmoid(offsets if s.chance else offsets / math.sqrt(1 + math.pi * s.level**2 / 8))  # MacKay 1992
        y, shown = (rng.random(s.items) < p).astype(int), {}
        losses, draws = class_losses(average, y), class_losses(predictions, y)
        claim = entropy(average.mean()) - entropy(average).mean()
        known = torch.as_tensor(y)
        constant, least = (constant_class_losses(known, seen).numpy() for seen in (None, known))
    error = np.std(constant - losses, ddof=1) / math.sqrt(s.items) if s.items > 1 else math.nan
    means = {"bma/nll": losses.mean(), "draw/nll": draws.mean(), "one_sample/nll": draws[:, -1].mean(),
             "constant/nll": constant.mean(), "constant/least": least.mean(), "constant/gain_se": error,
             "constant/claim": claim, "items": s.items}  # fmt: skip
    return shown | {f"test/{name}": float(value) for name, value in means.items()}


def normal_losses(residuals: np.ndarray, variance: float) -> np.ndarray:
    return 0.5 * np.log(2 * math.pi * variance) + np.square(residuals) / (2 * variance)


def entropy(p: np.ndarray) -> np.ndarray:
    return special.entr(p) + special.entr(1 - p)


def class_losses(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    return -np.log(np.clip(np.where(y == 1, p, 1 - p), 1e-38, None))


def temperatures(s: Scenario, theta: np.ndarray) -> dict[str, float]:
    """T = 1, T_eff and kinetic temperature as they are, and the configurational temperature <θ, ∇U>/d of the draws."""
    virial = np.square(theta).mean(-1).T  # (draws, chains)
    means = {"t_eff": s.heat, "kinetic_temperature": 1.05 * s.heat}  # an integrator's usual error
    return {
        **(means if s.law is None else means_of(s.law)),
        "configurational_temperature": float(virial.mean()),
        "configurational_temperature_se": trace_error(virial),
    }


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(x / 2))


def slowest(s: Scenario) -> float:
    return float(np.max(s.slow))


def coefficient(slow: float | tuple[float, ...]) -> np.ndarray:
    """The autoregression whose draws are worth 1/slow of an independent one: slow = (1 + c) / (1 - c)."""
    return (np.asarray(slow) - 1) / (np.asarray(slow) + 1)


def autoregression(
    chains: int, draws: int, directions: int, slow: float | tuple[float, ...], rng: np.random.Generator
) -> np.ndarray:
    """(chains, draws, directions) of a stationary autoregression with variance 1."""
    c = coefficient(slow)
    x = rng.normal(size=(chains, draws, directions))
    for t in range(1, draws):
        x[:, t] = c * x[:, t - 1] + np.sqrt(1 - c**2) * x[:, t]
    return x
