"""A table of every target, small; the tests run over it."""

from typing import Any

import torch
from curved import Banana, DoubleWell, Funnel
from literature.targets import (
    FUNCTIONS,
    Ackley,
    GaussianLaw,
    LinearRegression,
    LogisticRegression,
    Mixture,
    RuggedSurface,
    StochasticVolatility,
    ToyRegression,
    WellingTeh,
    benchmark,
    grid25,
    simulate_linear,
    simulate_logistic,
    simulate_volatility,
)

DEVIANT = ("zakharov", "powell", "dixon_price", "levy")  # they have a form `as_published`
LINE = simulate_linear(60)

EXACT: dict[str, Any] = {  # targets with exact draws
    "gaussian": GaussianLaw([1.0, -2.0], [[1.0, 0.8], [0.8, 10.0]]),
    "mixture of 2": Mixture.case(2),
    "mixture of 3": Mixture([0.2, 0.3, 0.5], [[0.0, 0.0], [6.0, 0.0], [3.0, 3.0]], [[1.0, 0.5], [0.5, 1.0]]),
    "grid of 25": grid25(),
    "banana": Banana(3),
    "funnel": Funnel(4, scale=1.0),
    "double well": DoubleWell(2.0, 0.3),
    "linear": LinearRegression(*LINE, prior_mean=0.5, shape=2.0),
    "linear, correlated prior": LinearRegression(*LINE, [1.0, -1.0], [[0.02, 0.01], [0.01, 0.03]], 2.0, 3.0),
}
ALL: dict[str, Any] = EXACT | {
    "rugged": RuggedSurface(),
    "toy": ToyRegression(LINE[0][:30, 1], LINE[1][:30]),
    "Welling and Teh": WellingTeh(),
    "Ackley in 2": Ackley(2),
    "logistic": LogisticRegression(*simulate_logistic(50), prior_precision=2.0),
    "volatility": StochasticVolatility(simulate_volatility(20)[0]),
    **{name: made() for name, made in FUNCTIONS.items()},
    **{f"{name}, as published": benchmark(name, as_published=True) for name in DEVIANT},
}
DATA = {name: target for name, target in ALL.items() if hasattr(target, "num_data")}
WARM = ("gaussian", "banana", "double well", "linear", "linear, correlated prior")


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(target: Any, *lead: int, seed: int = 0) -> torch.Tensor:
    """(*lead, d) standard normal points, where no energy is extreme."""
    return torch.randn(*lead, target.dim, generator=stream(seed), dtype=torch.float64)
