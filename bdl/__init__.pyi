# The only list of public names. Type checkers and editors read it as a stub. At run time lazy_loader reads it and
# imports each name where it is first used, so that `import bdl` costs next to nothing.
from . import data, likelihoods, metrics, models, schedules
from .checkpoint import CheckpointStart
from .contrib.baselines import SWAG, LastLayerLaplace, MCDropout, ScaledPoint
from .contrib.control.variate import ControlVariate
from .contrib.covariance_controlled import CCHMC
from .contrib.density.sample import sample_density
from .contrib.distillation.distil import Distilled
from .contrib.distillation.training import Distillation
from .contrib.isokinetic import SMILE
from .contrib.landscape.callback import LearningCoefficient
from .contrib.landscape.coefficient import learning_coefficient
from .contrib.landscape.estimate import CoefficientEstimate
from .contrib.recipe.recipe import Recipe
from .contrib.thin import Thinning
from .engine.gradient import per_example_gradients
from .engine.noise_draws import noise_draws
from .engine.stack import ChainStack
from .errors import BdlError, BdlWarning, ConfigError, DivergedError, ReplicaError, StoreError, VerdictWarning
from .lightning import callbacks
from .lightning.callbacks import (
    CollectSamples,
    ModelAverage,
    Monitor,
    SaveLast,
    Schedule,
    StepProgress,
    TimeLimit,
)
from .lightning.module import BayesianModule
from .likelihoods import (
    BernoulliNLL,
    CategoricalNLL,
    GammaNLL,
    GaussianNLL,
    HeteroscedasticNLL,
    HurdleNLL,
    LogNormalNLL,
    MultiCategoricalNLL,
    MultivariateNormalNLL,
    NegativeBinomialNLL,
    ObservedNLL,
    OrdinalNLL,
    PoissonNLL,
    StudentTNLL,
    WeightedNLL,
    with_constant_scale,
)
from .posterior import plot
from .posterior.calibration import ConformalIntervals, ConformalSets, TemperatureScaling
from .posterior.ood import ood
from .posterior.predict import Posterior
from .posterior.prediction import ClassColumnsPrediction, LabelPrediction, Prediction, ValuePrediction
from .posterior.store import SampleStore
from .run.in_python import Report, report, sample
from .run.predict import predict_table
from .samplers.clipping import ClipNorm, ClipValue
from .samplers.dynamics.base import Dynamics, FullBatch, Kinetic, Position, Thermostatted
from .samplers.dynamics.langevin import BAOAB, SGD, SGHMC, SGLD, SGLRW
from .samplers.dynamics.metropolis import HMC, MALA, AcceptReject, Metropolis
from .samplers.dynamics.microcanonical import MCLMC
from .samplers.dynamics.preconditioned import PSGLD, SGFS, SGRLD
from .samplers.dynamics.underdamped import SGNHT
from .samplers.dynamics.variational import MeanField
from .samplers.exchange import Exchange
from .samplers.priors.blocks import Block
from .samplers.priors.gaussian_prior import GaussianPrior
from .samplers.priors.independent import Gaussian, Laplace, ScaleMixture, StudentT, Uniform
from .samplers.priors.learned import Learned
from .samplers.sampler import Sampler
from .samplers.weighting.base import Flat, RobbinsMonro
from .samplers.weighting.weightings import AdaptiveWeight, Contour
from .start import AdamWStart
from .tune.choice import Tuning
from .tune.find import find_settings

__version__: str

__all__ = [
    "BAOAB",
    "CCHMC",
    "HMC",
    "MALA",
    "MCLMC",
    "PSGLD",
    "SGD",
    "SGFS",
    "SGHMC",
    "SGLD",
    "SGLRW",
    "SGNHT",
    "SGRLD",
    "SMILE",
    "AcceptReject",
    "AdamWStart",
    "AdaptiveWeight",
    "BayesianModule",
    "BdlError",
    "BdlWarning",
    "BernoulliNLL",
    "Block",
    "CategoricalNLL",
    "ClassColumnsPrediction",
    "CheckpointStart",
    "ChainStack",
    "ClipNorm",
    "ClipValue",
    "CoefficientEstimate",
    "CollectSamples",
    "ConfigError",
    "ConformalIntervals",
    "ConformalSets",
    "Contour",
    "ControlVariate",
    "DivergedError",
    "Distillation",
    "Distilled",
    "Dynamics",
    "Exchange",
    "Flat",
    "FullBatch",
    "GammaNLL",
    "Gaussian",
    "GaussianNLL",
    "GaussianPrior",
    "HeteroscedasticNLL",
    "HurdleNLL",
    "Kinetic",
    "LabelPrediction",
    "Laplace",
    "LastLayerLaplace",
    "Learned",
    "LearningCoefficient",
    "LogNormalNLL",
    "MCDropout",
    "MeanField",
    "Metropolis",
    "ModelAverage",
    "Monitor",
    "MultiCategoricalNLL",
    "MultivariateNormalNLL",
    "NegativeBinomialNLL",
    "ObservedNLL",
    "OrdinalNLL",
    "PoissonNLL",
    "Position",
    "Posterior",
    "Prediction",
    "Recipe",
    "ReplicaError",
    "Report",
    "RobbinsMonro",
    "SampleStore",
    "Sampler",
    "SaveLast",
    "SWAG",
    "ScaleMixture",
    "ScaledPoint",
    "Schedule",
    "StepProgress",
    "StoreError",
    "StudentT",
    "StudentTNLL",
    "TemperatureScaling",
    "Thermostatted",
    "Thinning",
    "TimeLimit",
    "Tuning",
    "Uniform",
    "ValuePrediction",
    "VerdictWarning",
    "WeightedNLL",
    "callbacks",
    "data",
    "find_settings",
    "learning_coefficient",
    "likelihoods",
    "metrics",
    "models",
    "noise_draws",
    "ood",
    "per_example_gradients",
    "plot",
    "predict_table",
    "report",
    "sample",
    "sample_density",
    "schedules",
    "with_constant_scale",
]
