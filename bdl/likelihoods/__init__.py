"""Likelihoods: laws of y given a network's outputs, negative log densities in nats, and what other losses stand for.

>>> import torch
>>> likelihood = HeteroscedasticNLL()
>>> likelihood.num_outputs(targets=1)
2
>>> outputs = torch.tensor([[1.0, 0.0]])  # mean 1, log variance 0
>>> likelihood.mean(outputs), likelihood.variance(outputs), likelihood.cdf(outputs, torch.tensor([[1.0]]))
(tensor([[1.]]), tensor([[1.]]), tensor([[0.5000]]))
"""

from __future__ import annotations

from bdl.likelihoods.base import Likelihood, Loss, Outputs, as_columns, mean_loss, mean_loss_and_gradient
from bdl.likelihoods.categorical import BernoulliNLL, CategoricalNLL, most_probable
from bdl.likelihoods.class_columns import MultiCategoricalNLL
from bdl.likelihoods.counts import NegativeBinomialNLL, PoissonNLL
from bdl.likelihoods.heads import ConstantOutputs, WithOffset, with_constant_scale
from bdl.likelihoods.hurdle import HurdleNLL
from bdl.likelihoods.losses import (
    EXAMPLES,
    check_loss,
    in_words,
    law_note,
    likelihood_of,
    mean_note,
    outputs_of,
    refuse_misfit,
    refuse_targets_of,
)
from bdl.likelihoods.mixed import MixedLaw
from bdl.likelihoods.multivariate import MultivariateNormalNLL
from bdl.likelihoods.observed import ObservedNLL
from bdl.likelihoods.ordinal import LevelsLaw, OrdinalNLL
from bdl.likelihoods.positive import GammaNLL, LogNormalNLL
from bdl.likelihoods.values import GaussianNLL, HeteroscedasticNLL, StudentTNLL
from bdl.likelihoods.weighted import WeightedNLL, with_weights

_CountNLL = NegativeBinomialNLL | PoissonNLL
ValueNLL = GammaNLL | GaussianNLL | HeteroscedasticNLL | HurdleNLL | LogNormalNLL | OrdinalNLL | StudentTNLL | _CountNLL

__all__ = [
    "EXAMPLES", "BernoulliNLL", "CategoricalNLL", "ConstantOutputs", "GammaNLL", "GaussianNLL", "HeteroscedasticNLL",
    "HurdleNLL", "LevelsLaw", "Likelihood", "LogNormalNLL", "Loss", "MixedLaw", "MultiCategoricalNLL",
    "MultivariateNormalNLL", "NegativeBinomialNLL", "ObservedNLL", "OrdinalNLL", "Outputs", "PoissonNLL",
    "StudentTNLL", "ValueNLL", "WeightedNLL", "WithOffset", "as_columns", "check_loss", "in_words", "law_note",
    "likelihood_of", "mean_loss", "mean_loss_and_gradient", "mean_note", "most_probable", "outputs_of",
    "refuse_misfit", "refuse_targets_of", "with_constant_scale", "with_weights",
]  # fmt: skip
