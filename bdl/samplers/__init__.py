"""Samplers: dynamics, accept/reject kernels, weightings, priors, and the shell that joins them to torch.

One convention holds everywhere. The data set has N items and the prior is p(θ). The potential is
U(θ) = -Σ_i log p(y_i|x_i,θ) - log p(θ), in nats, and the intended law is exp(-U/T). Users write the mean negative
log-likelihood of the batch. g = ∇(U/N) is estimated on the batch, prior included; tau = T/N; lr is in SGD's units.
"""

from bdl.samplers.clipping import ClipNorm, ClipValue
from bdl.samplers.dynamics.base import AcceptReject, Dynamics, Kinetic, Position, Thermostatted
from bdl.samplers.dynamics.langevin import BAOAB, SGD, SGHMC, SGLD, SGNHT
from bdl.samplers.dynamics.metropolis import HMC, MALA, Metropolis
from bdl.samplers.dynamics.preconditioned import PSGLD, SGFS, SGRLD
from bdl.samplers.dynamics.variational import MeanField
from bdl.samplers.exchange import Exchange
from bdl.samplers.extras import per_example_gradients
from bdl.samplers.priors import Gaussian, Laplace, ScaleMixture, StudentT, Uniform
from bdl.samplers.sampler import Sampler
from bdl.samplers.weighting.weightings import AdaptiveWeight, Contour, Flat, RobbinsMonro

__all__ = [
    "BAOAB",
    "HMC",
    "MALA",
    "PSGLD",
    "SGD",
    "SGFS",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SGRLD",
    "AcceptReject",
    "AdaptiveWeight",
    "ClipNorm",
    "ClipValue",
    "Contour",
    "Dynamics",
    "Exchange",
    "Flat",
    "Gaussian",
    "Kinetic",
    "Laplace",
    "MeanField",
    "Metropolis",
    "Position",
    "RobbinsMonro",
    "Sampler",
    "ScaleMixture",
    "StudentT",
    "Thermostatted",
    "Uniform",
    "per_example_gradients",
]
