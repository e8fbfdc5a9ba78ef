"""The search space of an optimising sweep: Hydra's words as Optuna's distributions, the direction, the sampler.

This module imports Optuna only when a sweep begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.utils import instantiate
from omegaconf import DictConfig

from bdl.errors import ConfigError

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

GRID = "optuna.samplers.GridSampler"
MORE_IS_BETTER = {"accuracy", "balanced_accuracy", "auc", "auroc", "aupr", "mean_iou", "r2", "min", "weight_ess"}


def direction_of(given: str | Sequence[str] | None, objective: str | None) -> Literal["minimize", "maximize"]:
    """`minimize` or `maximize`: as given, or what suits the metric."""
    names = [given] if isinstance(given, str) else list(given or ())
    if len(names) > 1 or not {*names} <= {"minimize", "maximize"}:
        raise ConfigError(f"hydra.sweeper.direction must be minimize, maximize or null, got {given}")
    upwards = names[0] == "maximize" if names else str(objective).rpartition("/")[2] in MORE_IS_BETTER
    return "maximize" if upwards else "minimize"


def search_space(overrides: Sequence[Override]) -> tuple[dict[str, str], dict[str, BaseDistribution]]:
    """The overrides that all trials share, and Optuna's distributions, by key. The last word about a key counts."""
    fixed: dict[str, str] = {}
    space: dict[str, BaseDistribution] = {}
    for override in overrides:
        key = override.get_key_element()
        fixed.pop(key, None)
        space.pop(key, None)
        if override.is_sweep_override():
            space[key] = distribution_of(override)
        else:
            fixed[key] = override.input_line or key
    return fixed, space


def distribution_of(override: Override) -> BaseDistribution:
    """`interval(a,b)` is of real numbers, `int(interval(a,b))` of whole ones, and a range has its step.

    Both may be tagged `log`. Other lists of values, shuffled ranges included, are categories, written as their words.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value, key = override.value(), override.get_key_element()
    log = "log" in getattr(value, "tags", ())
    if isinstance(value, IntervalSweep):
        ends = value.start, value.end
        kind, step = (IntDistribution, 1) if all(type(end) is int for end in ends) else (FloatDistribution, None)
    elif override.is_range_sweep() and not getattr(value, "shuffle", False):
        numbers = sorted(number for number in override.sweep_iterator() if isinstance(number, int | float))
        if not numbers:
            raise ConfigError(f"{override.input_line} is empty: its end is not one of its values")
        ends = numbers[0], numbers[-1]
        kind = IntDistribution if all(type(number) is int for number in numbers) else FloatDistribution
        step = abs(getattr(value, "step", 1))
    else:
        return CategoricalDistribution(list(override.sweep_string_iterator()))
    try:
        return kind(*ends, log=log, step=step)  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        raise ConfigError(f"{key}: {override.input_line} is no search space: {error}") from error


def grid_values(key: str, distribution: BaseDistribution) -> list[Any]:
    """The values of a key that a grid visits. Raises ConfigError for an interval without a step."""
    choices: Any = getattr(distribution, "choices", None)
    if choices is not None:
        return list(choices)
    low, high, step = (getattr(distribution, name) for name in ("low", "high", "step"))
    if step is None:
        raise ConfigError(f"{key}: a grid needs choice(..) or range(start,stop,step), not an interval of real numbers")
    return [low + i * step for i in range(round((high - low) / step) + 1)]


def make_sampler(
    settings: DictConfig, space: Mapping[str, BaseDistribution], trials: int
) -> optuna.samplers.BaseSampler:
    """The sampler of a study with that many trials."""
    more: dict[str, Any] = {}
    if settings.get("seed") is not None:
        more["seed"] = settings.seed + trials
    if is_grid(settings):
        more["search_space"] = {key: grid_values(key, distribution) for key, distribution in space.items()}
    return instantiate(settings, **more)


def is_grid(settings: DictConfig) -> bool:
    return settings["_target_"] == GRID
