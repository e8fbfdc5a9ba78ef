"""conf/ and the constructors agree: equal defaults, or a comment that says why YAML has another value."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from composing import CONF
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

import bdl

COMPLETED = ("hidden", "scale", "covariance")  # bdl/run/section.py makes arguments of them, with what the data say


def literals(node: Any) -> Iterator[tuple[str, str, Any]]:
    """(target, key, value) of all literal arguments of bdl's constructors below the node."""
    target = node.get("_target_") if isinstance(node, DictConfig) and "_target_" in node else None
    for key in node:
        if OmegaConf.is_missing(node, key) or OmegaConf.is_interpolation(node, key):
            continue
        value = node[key]
        if isinstance(value, DictConfig):
            yield from literals(value)
        elif str(target).startswith("bdl.") and not str(key).startswith("_") and key not in ("defaults", *COMPLETED):
            yield str(target), str(key), OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def default(target: str, key: str) -> Any:
    """The constructor's default, lists for tuples; the `empty` of inspect where the argument is required."""
    parameters = inspect.signature(get_object(target)).parameters
    if key not in parameters and "batching" in parameters:  # passed on
        parameters = inspect.signature(bdl.data.TensorBatches).parameters
    value = parameters[key].default
    return list(value) if isinstance(value, tuple) else value


def explained(path: Path, key: str) -> bool:
    """Whether the line of the key has a comment, or the line above it is one."""
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if f"{key}:" in line.partition("#")[0])
    return "#" in lines[at] or lines[max(at - 1, 0)].lstrip().startswith("#")


FILES = [path for path in sorted(CONF.rglob("*.yaml")) if "_target_: bdl." in path.read_text()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONF)))
def test_defaults_of_yaml_and_class_are_equal_or_explained(path):
    for target, key, value in literals(OmegaConf.load(path)):
        of_class = default(target, key)
        same = of_class is inspect.Parameter.empty or (
            of_class == value and isinstance(of_class, bool) is isinstance(value, bool)
        )
        assert same or explained(path, key), f"{key}: {value} in YAML, {of_class} in {target}: explain it in a comment"


def test_the_walk_sees_the_arguments():
    """The walk itself works: it finds arguments in nested nodes, and both kinds of default."""
    seen = {(t, k): v for path in FILES for t, k, v in literals(OmegaConf.load(path))}
    assert seen["bdl.RobbinsMonro", "power"] == default("bdl.RobbinsMonro", "power") == 0.75
    assert seen["bdl.schedules.Polynomial", "floor"] == 0.001 != default("bdl.schedules.Polynomial", "floor")
    assert len(seen) > 80


def test_only_landsat_has_the_values_tuned_on_it():
    """Every other file refers to `tuned`; few bring values, and those say nothing about a data set."""
    with_values = {p.name: OmegaConf.load(p).tuned for p in CONF.rglob("*.yaml") if "tuned" in OmegaConf.load(p)}
    assert with_values.pop("dropout.yaml") == {"dropout": 0.1}  # a usual rate, tuned on nothing
    assert with_values.pop("scaled.yaml") == {"val_fraction": 0.1}  # the temperature is fitted there
    assert with_values.pop("csv.yaml") == {"chains": 10, "weights": "auto"}
    for name in ("awsghmc.yaml", "awsgld.yaml"):
        assert with_values.pop(name) == {"batch_size": "auto"}  # unless a data set has one for them
    assert with_values.pop("text.yaml") == {"chains": 4}
    assert with_values.pop("cchmc.yaml") == {"replacement": True}  # which its noise assumes
    langevin = with_values.pop("langevin.yaml")
    assert langevin.batch_size is None and set(langevin) == {"batch_size", "inertia"}
    full_batch = {name for name, values in with_values.items() if values == {"batch_size": None}}
    assert full_batch == {"hmc.yaml", "mala.yaml", "mclmc.yaml", "metropolis.yaml"}
    assert with_values.keys() - full_batch == {"landsat.yaml", "liang.yaml"}
