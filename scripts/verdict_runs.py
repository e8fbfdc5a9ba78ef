"""Simulated runs whose laws are known, and the metrics that bdl would measure of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from bdl.posterior.convergence import mixing, repeat_error, trace_error

LATENT, ITEMS = 8, 12  # directions of the law, and test items that look at them


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
    metrics: Mapping[str, float] = field(default_factory=dict)  # temperatures and scores that differ from the law's


@dataclass(frozen=True)
class SimulatedRun:
    """The metrics of one run, and the averages (items,) by which the runs of a scenario differ."""

    metrics: dict[str, float]
    averages: np.ndarray


def simulate(s: Scenario, seed: int) -> SimulatedRun:
    """One run of the scenario. All runs of a scenario have the same items."""
    items = np.random.default_rng([0, len(s.name)])
    rng = np.random.default_rng([1, len(s.name), seed])
    loadings = items.normal(size=(LATENT, ITEMS))
    loadings *= s.level / np.linalg.norm(loadings, axis=0)
    offsets = 1.5 * items.normal(size=ITEMS)
    theta = draw(s, rng)
    outputs = theta @ loadings + s.apart * s.level * (sides(s, rng) - 0.5)[..., None]
    known = np.zeros(ITEMS) if s.chance else offsets  # what the networks have learnt
    predictions = known + outputs if s.numbers else sigmoid(known + outputs)
    total = math.sqrt(1 + s.level**2) if s.numbers else 1.0  # of the predictions; the noise of y has the variance 1
    slow_part = autoregression(s.chains, s.draws, 1, s.slow, rng)[..., 0]
    energies = np.square(theta).sum(-1) / 2 + 5 * slow_part  # nats; other directions bring a variance of 25
    metrics = mixing(outputs, energies)
    metrics |= repeat_error(predictions.mean(1)[..., None], total, predictions[:1] / total)
    metrics |= scores(s, predictions, offsets) | temperatures(s, theta)
    metrics |= {"chains": s.chains, "samples": s.chains * s.draws, **s.metrics}
    return SimulatedRun(metrics, predictions.mean((0, 1)))


def draw(s: Scenario, rng: np.random.Generator) -> np.ndarray:
    """(chains, draws, 8) the chains."""
    theta = math.sqrt(s.heat) * autoregression(s.chains, s.draws, LATENT, s.slow, rng)
    return theta + s.start * np.power(coefficient(s.slow), np.arange(s.draws))[:, None]


def sides(s: Scenario, rng: np.random.Generator) -> np.ndarray:
    """(chains, draws) the mode of every draw, 0 or 1. Several chains never start in one mode: nothing could see that."""
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
        "temperature": 1.0,
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


SCENARIOS = (
    Scenario("converged", "4 chains of 250 independent draws", True),
    Scenario("converged", "4 chains of 1,000 slow draws", True, draws=1000, slow=5),
    Scenario("converged", "8 chains of 100 independent draws", True, chains=8, draws=100),
    Scenario("converged", "8 chains of 400 slow draws", True, chains=8, draws=400, slow=4),
    Scenario("converged", "20 chains of 50 independent draws", True, chains=20, draws=50),
    Scenario("converged", "numbers, 4 chains of 300 independent draws", True, draws=300, numbers=True),
    Scenario("converged", "T_eff is 1.1 T, 4 chains of 300 independent draws", True, draws=300, heat=1.1),
    Scenario("converged", "two modes 2 std apart that all chains visit", True, draws=600, apart=2, switch=0.3),
    Scenario("short", "the draws are worth 20", False, slow=50),
    Scenario("short", "the draws are worth 60, 8 chains", False, chains=8, draws=200, slow=80 / 3),
    Scenario("short", "the draws are worth 80, numbers", False, draws=400, slow=20, numbers=True),
    Scenario("short", "burn-in kept: 4 std away at first", False, draws=500, slow=40, start=4),
    Scenario("short", "burn-in kept: 10 std away at first, and soon there", False, draws=500, slow=12, start=10),
    Scenario("stuck", "modes 1/2 std apart, 4 chains", False, draws=500, apart=0.5),
    Scenario("stuck", "modes 1/2 std apart, 8 chains", False, chains=8, draws=250, apart=0.5),
    Scenario("stuck", "modes 3 std apart, 4 chains", False, apart=3),
    Scenario("stuck", "modes 3 std apart, 4 chains that change once in 250", False, apart=3, switch=1 / 250),
    Scenario("stuck", "numbers, modes 1/2 std apart, 20 chains", False, chains=20, draws=100, apart=0.5, numbers=True),
    Scenario("hot", "T_eff is 1.5 T", False, draws=300, heat=1.5),
    Scenario("hot", "kinetic temperature of 3 T, nothing else measured", False, draws=300,
             metrics={"kinetic_temperature": 3.0, "t_eff": math.nan, "configurational_temperature": math.nan}),
    Scenario("hot", "2 T, of which only the parameters tell", False, draws=300, heat=2.0,
             metrics={"t_eff": 1.0, "kinetic_temperature": math.nan}),
    Scenario("hot", "half of T, of which only the parameters tell", False, draws=300, heat=0.5,
             metrics={"t_eff": 1.0, "kinetic_temperature": math.nan}),
    Scenario("diverged", "logits of 30, the same law for all chains", False, level=30, chance=True),
    Scenario("diverged", "numbers: outputs 10 std away", False, level=10, chance=True, numbers=True),
    Scenario("diverged", "accuracy at chance", False, level=0.1, chance=True),
    Scenario("tiny", "4 chains of 10 independent draws", False, draws=10),
    Scenario("tiny", "20 chains of 5 independent draws", False, chains=20, draws=5),
    Scenario("tiny", "1 chain of 1,000 independent draws", False, chains=1, draws=1000),
    Scenario("tiny", "2 chains of 500 independent draws, in one of two modes", False, chains=2, draws=500),
    Scenario("between", "the draws are worth 200", None, slow=5),
    Scenario("between", "the draws are worth 400", None, draws=400, slow=4),
    Scenario("between", "T_eff is 1.25 T", None, draws=300, heat=1.25),
    Scenario("between", "modes 1/4 std apart, 8 chains", None, chains=8, draws=250, apart=0.25),
)  # fmt: skip
