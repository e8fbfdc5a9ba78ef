"""Laws with known answers, batched over chains, and the loop that runs chains on them."""

from bdl.targets.base import DataTarget, Target, gradient
from bdl.targets.benchmark import (
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
from bdl.targets.chains import Chains
from bdl.targets.curved import Banana, DoubleWell, Funnel
from bdl.targets.gaussians import STARTS, GaussianLaw, Mixture, grid25
from bdl.targets.logistic import LogisticRegression, simulate_logistic
from bdl.targets.normal_inverse_gamma import NormalInverseGamma
from bdl.targets.published import PUBLISHED, Settings
from bdl.targets.quadrature import Quadrature, integrate
from bdl.targets.regression import KnownNoiseRegression, LinearRegression, simulate_linear
from bdl.targets.surfaces import RuggedSurface
from bdl.targets.toy import ToyRegression, simulate_toy
from bdl.targets.volatility import StochasticVolatility, simulate_volatility
from bdl.targets.welling_teh import WellingTeh, simulate_welling_teh

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
