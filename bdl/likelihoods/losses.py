"""What a loss stands for: its likelihood, the outputs that it reads, and which law it samples instead."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.identity import identity
from bdl.likelihoods.base import Likelihood, Outputs
from bdl.likelihoods.categorical import IGNORED, BernoulliNLL, CategoricalNLL
from bdl.likelihoods.class_columns import MultiCategoricalNLL
from bdl.likelihoods.counts import NegativeBinomialNLL, PoissonNLL
from bdl.likelihoods.hurdle import HurdleNLL
from bdl.likelihoods.multivariate import MultivariateNormalNLL
from bdl.likelihoods.observed import ObservedNLL
from bdl.likelihoods.ordinal import OrdinalNLL
from bdl.likelihoods.positive import GammaNLL, LogNormalNLL
from bdl.likelihoods.values import GaussianNLL, HeteroscedasticNLL, StudentTNLL
from bdl.likelihoods.weighted import WeightedNLL
from bdl.torch_private import mean_over

_CLASSES = (
    BernoulliNLL, CategoricalNLL, GammaNLL, GaussianNLL, HeteroscedasticNLL, HurdleNLL, LogNormalNLL,
    MultiCategoricalNLL, MultivariateNormalNLL, NegativeBinomialNLL, ObservedNLL, OrdinalNLL, PoissonNLL, StudentTNLL,
    WeightedNLL,
)  # fmt: skip
BDL_LOSSES: dict[str, type[Likelihood]] = {f"bdl.{likelihood.__name__}": likelihood for likelihood in _CLASSES}
INSIDE = {"likelihood", "of"}  # the fields that hold a likelihood
LOG_PROBABILITIES = ("torch.nn.modules.loss.NLLLoss", "torch.nn.functional.nll_loss")  # logits, and sum to 1 already
CLASS_LOSSES = ("torch.nn.modules.loss.CrossEntropyLoss", "torch.nn.functional.cross_entropy")
LABELS = ("torch.nn.modules.loss.BCEWithLogitsLoss", "torch.nn.functional.binary_cross_entropy_with_logits")
SQUARE_LOSSES = ("torch.nn.modules.loss.MSELoss", "torch.nn.functional.mse_loss")
COUNTS = ("torch.nn.modules.loss.PoissonNLLLoss", "torch.nn.functional.poisson_nll_loss")
NORMAL = ("torch.nn.modules.loss.GaussianNLLLoss", "torch.nn.functional.gaussian_nll_loss")
VALUES = (
    "torch.nn.modules.loss.L1Loss", "torch.nn.functional.l1_loss", "torch.nn.modules.loss.SmoothL1Loss",
    "torch.nn.functional.smooth_l1_loss", "torch.nn.modules.loss.HuberLoss", "torch.nn.functional.huber_loss",
)  # fmt: skip  # losses that stand for no likelihood here
EXAMPLES = (  # what messages propose where a loss says nothing
    "likelihood=bdl.CategoricalNLL() for classes, bdl.BernoulliNLL() for labels or bdl.HeteroscedasticNLL() for numbers"
)

ENOUGH = 10  # numbers that lie between 0 and 1 by chance in 1 of 1,000 networks at most
NORMALISED = 1e-3  # half precision rounds a sum of probabilities so far from 1


def likelihood_of(loss: Any, num_outputs: int = 1, axes: int = 2) -> Likelihood | None:
    """The likelihood that a loss stands for, or None where it is none that bdl knows.

    It may be a likelihood, a loss of torch, or what `bdl.identity` made of one, as target.json holds it.

    >>> from torch import nn
    >>> likelihood_of(nn.CrossEntropyLoss()), likelihood_of({"type": "bdl.GaussianNLL", "std": 0.5})
    (CategoricalNLL(), GaussianNLL(std=0.5))
    >>> round(likelihood_of(nn.MSELoss()).std, 4), likelihood_of(lambda outputs, y: outputs.mean())
    (0.7071, None)

    Args:
        num_outputs: how many the network has. A mean over k squared errors, as `nn.MSELoss` takes it, means a variance
            of k/2.
        axes: how many the network's outputs (B, ...) have. `nn.CrossEntropyLoss` reads the classes of (B, K, H, W) on
            axis 1.
    """
    if isinstance(loss, Likelihood):
        return loss
    name, settings = _named(loss)
    if name in BDL_LOSSES:
        fields = {f.name for f in dataclasses.fields(BDL_LOSSES[name])}  # type: ignore[arg-type]
        given = {k: v for k, v in settings.items() if k in fields}
        inside = {k: likelihood_of(given[k], num_outputs, axes) for k in INSIDE & given.keys()}
        return None if None in inside.values() else BDL_LOSSES[name](**given | inside)
    if name in (*CLASS_LOSSES, *LOG_PROBABILITIES):
        return CategoricalNLL(class_axis=1 - axes)
    if name in LABELS:
        return BernoulliNLL()
    if name in SQUARE_LOSSES:
        return GaussianNLL(math.sqrt(num_outputs / 2))
    if name in COUNTS and settings.get("log_input", True):
        return PoissonNLL()
    return None


def in_words(loss: Any) -> str:
    """What a loss is called: a likelihood with its settings, a loss of torch or a function by its name.

    >>> in_words({"type": "bdl.GaussianNLL", "std": 0.5}), in_words(None)
    ('GaussianNLL(std=0.5)', 'unknown')
    >>> in_words({"type": "torch.nn.modules.loss.CrossEntropyLoss", "reduction": "mean"})
    'CrossEntropyLoss'
    """
    name, settings = _named(loss)
    if loss is None:
        return "unknown"
    known = likelihood_of(loss) if isinstance(loss, Likelihood) or name in BDL_LOSSES else None
    if known is not None:
        return str(known)
    if name.startswith("torch.nn."):
        return name.rpartition(".")[2]
    given = ", ".join(f"{key}={value!r}" for key, value in settings.items() if key != "type")
    return f"{name}({given})" if settings else name


def outputs_of(loss: Any) -> Outputs:
    """What a network trained with the loss puts out: "logits", "labels", "values", or "unknown".

    >>> from torch import nn
    >>> outputs_of(CategoricalNLL()), outputs_of(nn.MSELoss()), outputs_of(lambda outputs, y: outputs.mean())
    ('logits', 'values', 'unknown')
    """
    likelihood = likelihood_of(loss)
    if likelihood is not None:
        return likelihood.outputs
    return "values" if _named(loss)[0] in (*VALUES, *NORMAL, *COUNTS) else "unknown"


def law_note(loss: Any) -> str | None:
    """Why a loss is not the mean negative log-likelihood of the data, or None. The sampled law is exp(-N loss / T)."""
    name = _named(loss)[0]
    if name in SQUARE_LOSSES:
        return (
            "MSELoss is the likelihood of Gaussian errors with std sqrt(1/2), or sqrt(k/2) for k outputs, whatever the "
            "data: use bdl.GaussianNLL(std)"
        )
    if name in VALUES:
        return (
            f"{name.rpartition('.')[2]} is the likelihood of errors whose scale is 1, whatever the data: use "
            "bdl.StudentTNLL(), which tolerates far values too, or bdl.HeteroscedasticNLL()"
        )
    if getattr(loss, "label_smoothing", 0.0):
        return f"label_smoothing={loss.label_smoothing} samples the posterior of smoothed labels, not of the data"
    if getattr(loss, "weight", None) is None and getattr(loss, "pos_weight", None) is None:
        return None
    if name in LABELS:
        return "weights sample the posterior of re-weighted data, not of the data: use bdl.BernoulliNLL()"
    return "class weights sample the posterior of re-weighted data, not of the data"


def mean_note(loss: Any, outputs: Tensor, y: Any) -> str | None:
    """Why a loss takes the outputs for something else, or counts items by other weights than 1; or None.

    It counts each of the k outputs (B, k) or targets of an item 1/k times, where it is the mean of its values for each
    by itself, as torch's losses of numbers and labels are; or it is a mean over the items that have a label alone.
    """
    name = _named(loss)[0]
    if name in (*CLASS_LOSSES, *LOG_PROBABILITIES) and isinstance(y, Tensor) and not y.is_floating_point():
        left_out = getattr(loss, "ignore_index", IGNORED)
        if share := float((y == left_out).double().mean()):
            remedy = "" if left_out == IGNORED else f", with {IGNORED} for {left_out}"
            return (
                f"{name.rpartition('.')[2]} is a mean over the items with a label, and {share:.0%} of a batch have the "
                f"label {left_out}, for none: the others count {1 / max(1 - share, 1e-9):.3g} times. Use "
                f"bdl.CategoricalNLL(){remedy}, which adds nothing for these"
            )
    if outputs_of(loss) == "labels" and outputs.numel() >= ENOUGH and bool(((outputs >= 0) & (outputs <= 1)).all()):
        return (
            "all outputs of the first batch lie between 0 and 1, and the loss takes logits, to which it applies a "
            "sigmoid itself: remove the sigmoid, if the network ends in one"
        )
    k = y.shape[1] if isinstance(y, Tensor) and y.ndim == outputs.ndim == 2 else 0
    told = name not in VALUES and law_note(loss) is not None
    if isinstance(loss, Likelihood) or k < 2 or told:
        return None
    try:
        if y.shape == outputs.shape:
            each = sum(float(loss(outputs[:, j : j + 1], y[:, j : j + 1])) for j in range(k))
            whole = float(loss(outputs, y))
            averages = abs(whole - each / k) < 1e-4 * abs(whole)
        else:  # several outputs for each target, in an order that only the loss knows
            with torch.enable_grad():
                averages = mean_over(loss(outputs.detach().requires_grad_(), y)) == y.shape
    except Exception:  # somebody's own loss may need all outputs
        return None
    if not averages:
        return None
    each_of = f"{k} {'outputs' if y.shape == outputs.shape else 'targets'}"
    use = {**dict.fromkeys(LABELS, "bdl.BernoulliNLL()"), **dict.fromkeys(COUNTS, "bdl.PoissonNLL()")}.get(
        name, "a likelihood of bdl, or a loss that adds up the outputs, such as (...).sum(-1).mean()"
    )
    return (
        f"{name.rpartition('.')[2]} is a mean over the {each_of} of an item, so that the posterior is that of 1/{k} "
        f"of the data: use {use}"
    )


def check_loss(loss: Any) -> None:
    """Raise ConfigError for a loss that cannot be called with outputs and targets alone."""
    if isinstance(loss, type) or loss is not None and not callable(loss):
        raise ConfigError(f"a loss is a likelihood such as bdl.CategoricalNLL(), or a function, got {loss!r}")
    if _named(loss)[0] in NORMAL:
        raise ConfigError(
            "GaussianNLLLoss takes the variance as a third argument: use bdl.HeteroscedasticNLL(), whose outputs are "
            "means and log variances"
        )


def refuse_targets_of(loss: Any, y: Any, error: Exception) -> None:
    """Raise ConfigError, from torch's error, for complex targets, and for classes as (B, 1) or as floats."""
    if isinstance(y, Tensor) and y.is_complex():
        line = f"the targets are {y.dtype}, and a likelihood is one of real numbers: "
        raise ConfigError(f"{line}give their real and imaginary parts as two targets, torch.view_as_real(y)") from error
    name = _named(loss)[0]
    if name not in (*CLASS_LOSSES, *LOG_PROBABILITIES) or not isinstance(y, Tensor):
        return
    whole = not y.is_floating_point() or bool((y == y.round()).all())
    calls = ".squeeze(-1)" * (y.ndim == 2 and y.shape[-1] == 1) + ".long()" * y.is_floating_point()
    if whole and calls:
        line = (
            f"{name.rpartition('.')[2]} takes the class of each item as an integer (B,), and the targets are {y.dtype} "
        )
        raise ConfigError(f"{line}{tuple(y.shape)}: give y{calls}") from error


def refuse_misfit(loss: Any, outputs: Tensor, y: Any) -> None:
    """Raise ConfigError where a loss silently takes outputs (..., B, K) for something else than they are.

    Losses of numbers broadcast (B, 1) against (B,), each item with all others; a softmax of probabilities is nearly
    uniform, whatever the network has learnt.
    """
    name = _named(loss)[0]
    if name in (*SQUARE_LOSSES, *VALUES, *COUNTS) and isinstance(y, Tensor) and y.shape != outputs.shape:
        raise ConfigError(
            f"{name.rpartition('.')[2]} broadcasts outputs of shape {tuple(outputs.shape)} against targets of shape "
            f"{tuple(y.shape)}: give the targets the shape of the outputs, as y.unsqueeze(-1) does, or use "
            f"{'bdl.PoissonNLL()' if name in COUNTS else 'bdl.GaussianNLL(std)'}, which does so itself"
        )
    plain = isinstance(y, Tensor) and y.shape == outputs.shape[:-1]  # the classes are on the last axis
    if name in LOG_PROBABILITIES and plain and bool((outputs.detach().logsumexp(-1).abs() > NORMALISED * 10).any()):
        raise ConfigError(
            "the loss takes log probabilities, and the network puts out numbers that are none: end it in "
            "nn.LogSoftmax(-1), or use bdl.CategoricalNLL(), which takes logits"
        )
    if outputs_of(loss) == "logits" and outputs.ndim > 1 and outputs.is_floating_point():
        sums = outputs.detach().sum(-1)
        if outputs.shape[-1] > 1 and bool((outputs >= 0).all()) and bool(((sums - 1).abs() < NORMALISED).all()):
            raise ConfigError(
                "the network puts out probabilities, and the loss takes logits, to which it applies softmax itself: "
                "remove the softmax at the end of the network"
            )


def _named(loss: Any) -> tuple[str, Mapping[str, Any]]:
    """(full name, settings) of a loss, or of the identity of one."""
    described = loss if isinstance(loss, Mapping | str) else identity(loss)
    return (described["type"], described) if isinstance(described, Mapping) else (str(described), {})
