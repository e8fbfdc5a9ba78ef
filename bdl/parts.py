"""The optional parts of bdl: where `bdl.contrib` has what the core offers by a word, a name or a method.

The core never imports `bdl.contrib`. A part enters when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import MethodType
from typing import Any

import lazy_loader

from bdl.errors import ConfigError

# What a user asks for -> module and name
PLACES = {
    "bdl calibrate": "bdl.contrib.simulation.calibrate:calibrate",
    "bdl compare": "bdl.contrib.comparison.compare:compare",
    "bdl distil": "bdl.contrib.distillation.command:distil",
    "bdl influence": "bdl.contrib.influence.command:influence",
    "bdl llc": "bdl.contrib.landscape.llc:llc",
    "bdl status": "bdl.contrib.comparison.status:status",
    "bdl verify law=true": "bdl.contrib.certificate.certify:certify",
    "hydra/sweeper=optuna": "bdl.contrib.optuna.sweeper:register_sweeper",
    "sweep's table": "bdl.contrib.comparison.status:tell_sweep",
    "gradient=control": "bdl.contrib.control.variate:ControlVariate",
    "Posterior.draws": "bdl.contrib.functions:draws",
    "Posterior.function": "bdl.contrib.functions:function",
    "Posterior.outputs": "bdl.contrib.functions:outputs",
    "Posterior.distil": "bdl.contrib.distillation.distil:distil",
    "Posterior.influence": "bdl.contrib.influence.covariance:influence",
    "Posterior.thin": "bdl.contrib.thin:thin",
    "Posterior.save": "bdl.contrib.thin:save",
    "bdl.data.Shift": "bdl.contrib.shift:Shift",
    "bdl.data.TextDataModule": "bdl.contrib.language.text:TextDataModule",
    "bdl.callbacks.LearningCoefficient": "bdl.contrib.landscape.callback:LearningCoefficient",
    "bdl.models.GPT": "bdl.contrib.language.gpt:GPT",
    "bdl.models.lora": "bdl.contrib.language.lora:lora",
    "bdl.models.pretrained": "bdl.contrib.language.pretrained:pretrained",
}


class MissingPart(ConfigError, AttributeError):
    """This installation has no `bdl.contrib`. Also an AttributeError, so that `hasattr` answers."""


def part(name: str) -> Any:
    """What `bdl.contrib` has under a name of PLACES. Raises MissingPart without `bdl.contrib`."""
    if not has_parts():
        raise MissingPart(f"{name} is a part of bdl.contrib, which this installation lacks: install bdl again")
    module, _, attribute = PLACES[name].partition(":")
    return vars(import_module(module))[attribute]


def has_parts() -> bool:
    return find_spec("bdl.contrib") is not None


def attach_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package: the names of its stub, and of the parts that it offers."""
    load, _, names = lazy_loader.attach_stub(package, file)
    offered = {place.removeprefix(f"{package}.") for place in PLACES if place.startswith(f"{package}.")}
    every = sorted({*names, *offered})

    def get(name: str) -> Any:
        return part(f"{package}.{name}") if name in offered else load(name)

    return get, lambda: every, every


class PartMethod:
    """A method of a class of the core that a part brings: a function whose first argument is the object."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"{owner.__name__}.{name}"

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., Any]:
        function = part(self.name)
        return function if instance is None else MethodType(function, instance)
