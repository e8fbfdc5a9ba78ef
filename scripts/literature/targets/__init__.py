"""Laws with known answers, batched over chains, and the loop that runs chains on them."""

from literature.targets.base import DataTarget, Target
from literature.targets.benchmark import FUNCTIONS, Ackley, Benchmark, Rastrigin, Sphere, SumSquares, benchmark
from literature.targets.chains import Chains
from literature.targets.gaussians import STARTS, GaussianLaw, Mixture, grid25
from literature.targets.logistic import LogisticRegression, simulate_logistic
from literature.targets.published import PUBLISHED, Settings
from literature.targets.quadrature import Quadrature, integrate
from literature.targets.regression import LinearRegression, simulate_linear
from literature.targets.surfaces import RuggedSurface
from literature.targets.toy import ToyRegression
from literature.targets.volatility import StochasticVolatility, simulate_volatility
from literature.targets.welling_teh import WellingTeh, simulate_welling_teh
