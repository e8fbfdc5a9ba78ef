"""bdl: samples from the posterior of a PyTorch network by stochastic-gradient MCMC, inside PyTorch Lightning."""

from bdl import schedules
from bdl.errors import BdlError, BdlWarning, ConfigError, DivergedError, StoreError
from bdl.lightning import callbacks
from bdl.lightning.callbacks import CollectSamples, ModelAverage, Monitor, SaveLast, Schedule
from bdl.lightning.chains import ChainStack
from bdl.lightning.module import BayesianModule
from bdl.likelihoods import CategoricalNLL, GaussianNLL, HeteroscedasticNLL
from bdl.posterior.predict import Posterior, Prediction
from bdl.posterior.store import SampleStore
from bdl.samplers import (
    SGD,
    SGHMC,
    SGLD,
    AdaptiveWeight,
    ClipNorm,
    ClipValue,
    Contour,
    Flat,
    Gaussian,
    Kinetic,
    Position,
    RobbinsMonro,
    Sampler,
    Uniform,
)

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "SGHMC",
    "SGLD",
    "AdaptiveWeight",
    "BayesianModule",
    "BdlError",
    "BdlWarning",
    "CategoricalNLL",
    "ChainStack",
    "ClipNorm",
    "ClipValue",
    "CollectSamples",
    "ConfigError",
    "Contour",
    "DivergedError",
    "Flat",
    "Gaussian",
    "GaussianNLL",
    "HeteroscedasticNLL",
    "Kinetic",
    "ModelAverage",
    "Monitor",
    "Position",
    "Posterior",
    "Prediction",
    "RobbinsMonro",
    "SampleStore",
    "Sampler",
    "SaveLast",
    "Schedule",
    "StoreError",
    "Uniform",
    "callbacks",
    "schedules",
]
