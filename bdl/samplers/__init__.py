"""Samplers: dynamics, weightings, priors, and the shell that joins them to torch.

One convention. Data set of N items, prior p(θ), potential U(θ) = -Σ_i log p(y_i|x_i,θ) - log p(θ) in nats. Law meant:
exp(-U/T). Users write the mean negative log-likelihood of the batch; g = ∇(U/N) is estimated on it, prior included;
tau = T/N; lr is in SGD's units.
"""

from bdl.samplers.clipping import ClipNorm, ClipValue
from bdl.samplers.dynamics import SGD, SGHMC, SGLD, Kinetic, Position
from bdl.samplers.priors import Gaussian, Uniform
from bdl.samplers.sampler import Sampler
from bdl.samplers.weighting import AdaptiveWeight, Contour, Flat, RobbinsMonro

__all__ = [
    "SGD",
    "SGHMC",
    "SGLD",
    "AdaptiveWeight",
    "ClipNorm",
    "ClipValue",
    "Contour",
    "Flat",
    "Gaussian",
    "Kinetic",
    "Position",
    "RobbinsMonro",
    "Sampler",
    "Uniform",
]
