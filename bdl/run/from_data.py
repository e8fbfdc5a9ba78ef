"""What the configuration leaves to the data: N, steps, the likelihood of the task, and the ends of the network."""

from __future__ import annotations

from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from bdl.data.module import DataModule
from bdl.errors import ConfigError
from bdl.likelihoods import Likelihood, outputs_of
from bdl.run.config import fill_in, run_settings
from bdl.run.derived import found_values

LOSSES = {"classification": "bdl.CategoricalNLL", "regression": "bdl.HeteroscedasticNLL", "counts": "bdl.PoissonNLL"}


def fill_in_from_data(cfg: DictConfig, datamodule: DataModule, steps: int | float) -> DictConfig:
    """A copy of the configuration in which nothing is left to the data.

    Raises ConfigError for another N than that of the data, a likelihood that does not fit the task, and a network whose
    inputs are not those of the data.
    """
    num_data = check_num_data(cfg.sampler.num_data, datamodule)
    loss, scale = complete_loss(cfg.loss, datamodule)
    model = complete_model(cfg.model, datamodule, instantiate(loss), scale)
    return fill_in(cfg, sampler__num_data=num_data, steps=steps, loss=loss, model=model)


def settings_of(given: DictConfig, complete: DictConfig) -> dict[str, Any]:
    """What config.yaml records, the same for all stacks: what was given, and what the data decided."""
    settings = run_settings(
        fill_in(given, sampler__num_data=complete.sampler.num_data, steps=complete.steps, **found_values(given))
    )
    decided = {key: OmegaConf.to_container(complete[key], resolve=True) for key in ("model", "loss")}
    found = OmegaConf.to_container(given.found, resolve=True) if given.get("found") else None
    return settings | decided | ({"found": found} if found else {})


def target_fact(datamodule: DataModule) -> dict[str, str]:
    """What a report says of a table's target: its name, its task, and what 1 is in the units of the metrics."""
    target = (datamodule.preprocessing() or {}).get("target")
    if target is None:
        return {}
    unit = f", standardised: 1 is {target['std']:.4g}" if target["task"] == "regression" else ""
    return {"target": f"{target['name']} ({target['task']}{unit})"}


def check_num_data(num_data: int | None, datamodule: DataModule) -> int:
    """N, counted in the data. Raises ConfigError if the configuration gives another number."""
    if num_data not in (None, datamodule.num_data):
        raise ConfigError(
            f"sampler.num_data = {num_data}, but the training data have {datamodule.num_data} items: leave it null"
        )
    return datamodule.num_data


def complete_loss(loss: DictConfig, datamodule: DataModule) -> tuple[dict[str, Any], str]:
    """The loss with its class and without `scale`, and the value of `scale`: "input" or "learned".

    Raises ConfigError for a likelihood that does not fit the task.
    """
    plain: Any = OmegaConf.to_container(loss, resolve=True)
    scale, task = plain.pop("scale", "input"), datamodule.task
    if plain.get("_target_") is None:
        plain["_target_"] = LOSSES[task]
    if scale not in ("input", "learned"):
        raise ConfigError(f"loss.scale must be input or learned, got {scale!r}")
    kind = outputs_of(instantiate(plain))
    if kind != "unknown" and (kind == "values") == (task == "classification"):
        about = "numbers" if kind == "values" else "classes"
        raise ConfigError(
            f"loss._target_={plain['_target_']} is a law of {about}, and the task is {task}: loss=auto chooses one "
            "that fits, data.task another task"
        )
    return plain, scale


def complete_model(model: DictConfig, datamodule: DataModule, loss: Any, scale: str = "input") -> dict[str, Any]:
    """The model with its input and output sizes; with `scale` learned, one more parameter per target behind it.

    Raises ConfigError for an MLP over inputs that are no rows of numbers.
    """
    plain: Any = OmegaConf.to_container(model, resolve=True)
    outputs = count_outputs(loss, datamodule)
    if scale == "learned":
        outputs -= datamodule.num_targets
    hidden = plain.pop("hidden", None)
    if "sizes" in plain and plain["sizes"] is None:
        shape = datamodule.input_shape
        if len(shape) != 1:
            raise ConfigError(
                f"the model, {plain['_target_']}, does not take inputs of shape {shape}: choose another model, e.g. "
                "model=resnet20"
            )
        plain["sizes"] = [*shape, *(hidden or []), outputs]
    if "num_classes" in plain and plain["num_classes"] is None:
        plain["num_classes"] = outputs
    if scale == "learned":
        return {"_target_": "bdl.likelihoods.with_constant_scale", "net": plain, "targets": datamodule.num_targets}
    return plain


def count_outputs(loss: Any, datamodule: DataModule) -> int:
    """Outputs that the likelihood needs for the classes or numbers of the data."""
    count = datamodule.num_classes or datamodule.num_targets
    return loss.num_outputs(count) if isinstance(loss, Likelihood) else count
