"""Laws with known answers, batched over chains, and the loop that runs chains on them."""

from __future__ import annotations

from literature.targets.base import DataTarget, Target, gradient
from literature.targets.benchmark import (
    FUNCTIONS,
    Ackley,
    Benchmark,
    DixonPrice,
    Griewank,
    Levy,
    Powell,
    Rastrigin,
    Rosenbrock,
    Sphere,
    SumSquares,
    Zakharov,
    benchmark,
)
from literature.targets.chains import Chains
from literature.targets.curved import Banana, DoubleWell, Funnel
from literature.targets.gaussians import STARTS, GaussianLaw, Mixture, grid25
from literature.targets.logistic import LogisticRegression, simulate_logistic
from literature.targets.normal_inverse_gamma import NormalInverseGamma
from literature.targets.published import PUBLISHED, Settings
from literature.targets.quadrature import Quadrature, integrate
from literature.targets.regression import KnownNoiseRegression, LinearRegression, simulate_linear
from literature.targets.surfaces import RuggedSurface
from literature.targets.toy import ToyRegression, simulate_toy
from literature.targets.volatility import StochasticVolatility, simulate_volatility
from literature.targets.welling_teh import WellingTeh, simulate_welling_teh

__all__ = [
    "FUNCTIONS",
    "PUBLISHED",
    "STARTS",
    "Ackley",
    "Banana",
    "Benchmark",
    "Chains",
    "DataTarget",
    "DixonPrice",
    "DoubleWell",
    "Funnel",
    "GaussianLaw",
    "Griewank",
    "KnownNoiseRegression",
    "Levy",
    "LinearRegression",
    "LogisticRegression",
    "Mixture",
    "NormalInverseGamma",
    "Powell",
    "Quadrature",
    "Rastrigin",
    "Rosenbrock",
    "RuggedSurface",
    "Settings",
    "Sphere",
    "StochasticVolatility",
    "SumSquares",
    "Target",
    "ToyRegression",
    "WellingTeh",
    "Zakharov",
    "benchmark",
    "gradient",
    "grid25",
    "integrate",
    "simulate_linear",
    "simulate_logistic",
    "simulate_toy",
    "simulate_volatility",
    "simulate_welling_teh",
]
