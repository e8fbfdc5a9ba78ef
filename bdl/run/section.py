"""Section: a part of the configuration that says how to build one object; and what the data add to some of them.

The data decide the law that is sampled in N, the likelihood of the task and the ends of the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import nn

from bdl.advice import override
from bdl.errors import BdlError, ConfigError
from bdl.likelihoods import Likelihood, Loss, outputs_of
from bdl.models.mlp import AUTO, hidden_layers
from bdl.posterior.calibrated import CalibrationRequest
from bdl.posterior.trained import BaselineLike
from bdl.run.config import plain

if TYPE_CHECKING:
    from bdl.data import DataModule  # of Lightning, which no prediction needs

T = TypeVar("T")
LOSSES = {"classification": "bdl.CategoricalNLL", "regression": "bdl.HeteroscedasticNLL", "counts": "bdl.PoissonNLL"}
COVARIANCE = "bdl.MultivariateNormalNLL"
OF_DATA = ("_target_", "classes", "augment", "val_fraction", "split_seed", "fold")  # recorded in target.json


@dataclass(frozen=True)
class Section(Generic[T]):
    """How to build a T: the name of its class or function, `_target_`, and its arguments as plain values."""

    node: Mapping[str, Any]

    @classmethod
    def of(cls, section: DictConfig) -> Section[T]:
        """A section, with its interpolations resolved."""
        return cls(plain(section))

    @classmethod
    def optional(cls, section: DictConfig | None) -> Section[T] | None:
        """A section; None where it is null or names nothing to build."""
        return cls.of(section) if section is not None and section.get("_target_") else None

    @property
    def target(self) -> str:
        return self.node["_target_"]

    def get(self, argument: str, default: object = None) -> Any:
        """The plain value of an argument."""
        return self.node.get(argument, default)

    def having(self, **arguments: object) -> Section[T]:
        """The section with these arguments in place of its own."""
        return Section({**self.node, **arguments})

    def build(self) -> T:
        """A new T. An error of bdl's is raised without what Hydra wraps around it, which not every process keeps."""
        try:
            return instantiate(dict(self.node), _convert_="all")
        except InstantiationException as error:
            if isinstance(error.__cause__, BdlError):
                raise error.__cause__ from None
            raise


def check_num_data(num_data: int | None, data: DataModule) -> int:
    """N, counted in the data. Raises ConfigError if the configuration gives another number."""
    if num_data not in (None, data.num_data):
        raise ConfigError(
            f"sampler.num_data = {num_data}, but the training data have {data.num_data} items: leave it null"
        )
    return data.num_data


def complete_loss(loss: dict[str, Any], data: DataModule) -> Section[Loss]:
    """The loss with its class, with what the data know of a likelihood of this class, and without `scale`.

    `covariance` makes it a likelihood of all targets together. Where some of several targets are missing, it is the
    likelihood of the others.

    Raises ConfigError for a likelihood that does not fit the task or the number of targets.
    """
    node = {key: value for key, value in loss.items() if key not in ("scale", "covariance")}
    node["_target_"] = node.get("_target_") or data.loss.get("_target_") or LOSSES[data.task]
    if loss.get("covariance"):
        if data.num_targets < 2:
            raise ConfigError("loss.covariance=true is of several targets, and data.target names one: leave it out")
        node["_target_"] = COVARIANCE
    if node["_target_"] in (LOSSES["regression"], COVARIANCE):
        node = {key: value for key, value in node.items() if key not in ("min_std", "outliers") or value is not None}
    if node["_target_"] in (data.loss.get("_target_"), COVARIANCE):
        of_data = {
            key: value for key, value in data.loss.items() if node["_target_"] != COVARIANCE or key != "outliers"
        }
        node = {**of_data, **node}
    if data.gaps and not data.class_columns:
        node = {"_target_": "bdl.ObservedNLL", "of": node}
    section: Section[Loss] = Section(node)
    kind = outputs_of(built := section.build())
    if kind != "unknown" and (kind == "values") == (data.task == "classification"):
        about = "numbers" if kind == "values" else "classes"
        raise ConfigError(
            f"loss._target_={section.target} is a likelihood of {about}, and the task is {data.task}: loss=auto "
            "chooses one that fits, data.task another task"
        )
    if data.has_offset and not getattr(built, "counts", False):
        raise ConfigError(
            f"data.exposure is the offset of a log rate, which loss._target_={section.target} does not have: "
            "loss=auto chooses Poisson, loss=negative_binomial allows more spread"
        )
    if not data.weighted:
        return section
    if not isinstance(built, Likelihood):
        raise ConfigError(f"data.weight weighs log densities, and loss._target_={section.target} has none: loss=auto")
    return Section({"_target_": "bdl.likelihoods.WeightedNLL", "likelihood": dict(section.node)})


def scale_for(likelihood: str, baseline: Section[BaselineLike] | None) -> str:
    """How the scale of the likelihood, whose class this is, is found where `loss.scale` does not say it."""
    return baseline.build().scale if baseline is not None and likelihood == LOSSES["regression"] else "input"


def complete_model(model: dict[str, Any], data: DataModule, loss: Loss, scale: str) -> Section[nn.Module]:
    """The model with its input and output sizes; with the scale "learned", one more parameter per target behind it,
    and with the offset of a rate around it.

    Raises ConfigError for an MLP over inputs that are no rows of numbers, and for another scale than "input".
    """
    if scale not in ("input", "learned"):
        raise ConfigError(f"loss.scale must be input or learned, got {scale!r}")
    node = {key: value for key, value in model.items() if key != "hidden"}
    outputs = count_outputs(loss, data)
    constants = outputs - data.num_targets if scale == "learned" else 0  # all but one output for each target
    outputs -= constants
    if "sizes" in node and node["sizes"] is None:
        if len(data.input_shape) != 1:
            raise ConfigError(
                f"the model, {node['_target_']}, does not take inputs of shape {data.input_shape}: choose another "
                "model, e.g. model=resnet20"
            )
        inputs = data.input_shape[0] - data.has_offset
        hidden = model.get("hidden") or []
        hidden = hidden_layers(data.num_data, inputs, data.num_classes) if hidden == AUTO else hidden
        node["sizes"] = [inputs, *hidden, outputs]
    for key in ("num_classes", "vocabulary", "context"):
        if key in node and node[key] is None:
            node[key] = data.input_shape[0] if key == "context" else outputs
    if scale == "learned":
        node = {"_target_": "bdl.likelihoods.with_constant_scale", "net": node, "targets": constants}
    if data.has_offset:
        node = {"_target_": "bdl.likelihoods.WithOffset", "net": node, "targets": data.num_targets}
    return Section(node)


def count_outputs(loss: Loss, data: DataModule) -> int:
    """Outputs that the likelihood needs for the classes or numbers of the data."""
    count = data.num_classes or data.num_targets
    return loss.num_outputs(count) if isinstance(loss, Likelihood) else count


def target_of(model: Section[nn.Module], data_section: dict[str, Any], data: DataModule) -> dict[str, Any]:
    """What target.json records besides the sampler's law: the model, and the settings and the identity of the data."""
    settings = {key: value for key, value in data_section.items() if key in OF_DATA}
    return {"model": dict(model.node), "data": settings | data.identity()}


def check_calibration(request: CalibrationRequest, loss: object, data: DataModule) -> None:
    """Raise ConfigError where the data or the likelihood do not allow the calibration, before anything is sampled."""
    if data.class_columns:
        names = list(data.class_columns)
        raise ConfigError(
            f"calibrate={request.method} is made for one column of classes, and data.target names {len(names)}: make a "
            f"run for each, such as {override('data.target', names[0])}"
        )
    likelihood, has_val = own_likelihood(loss), data.has("val")
    validation = getattr(data.slices("val"), "dataset", None) if has_val else None
    count, units = len(validation) if isinstance(validation, Sized) else None, "items"
    if (groups := data.groups.get("val")) is not None:
        count, units = len(groups.unique()), "groups of items"
    if has_val and data.gaps:  # each target is fitted on the items that have it
        seen = ~data.items("val")[1].isnan()
        groups = torch.arange(len(seen)) if groups is None else groups
        count, units = min(len(groups[rows].unique()) for rows in seen.T), f"{units} that have each target"
    request.check("" if likelihood is None else likelihood.outputs, has_val, data.has("test"), count, units)


def own_likelihood(loss: object) -> Likelihood | None:
    """The loss if it is a likelihood. target.json names one of the user's own, but cannot build it."""
    return loss if isinstance(loss, Likelihood) else None
