"""Which names a stored config.yaml may build: those of a stranger could do anything.

Hydra builds whatever a `_target_` names, `torch.load` included. Only public names of bdl, modules of torch.nn and
Lightning's trainer and loggers are built, and those of packages that the user trusts.
"""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from omegaconf import DictConfig, OmegaConf

from bdl.errors import ConfigError
from bdl.run.records import CONFIG
from bdl.run.values import leaves

PUBLIC = ("bdl", "bdl.data", "bdl.models", "bdl.likelihoods", "bdl.schedules", "bdl.callbacks")
# The functions of these make objects and write nothing
FUNCTIONS = ("bdl.data", "bdl.likelihoods", "bdl.models", "bdl.schedules")
LIGHTNING = {
    "lightning.Trainer", *(f"lightning.pytorch.loggers.{kind}Logger" for kind in ("CSV", "TensorBoard", "Wandb"))
}  # fmt: skip


def check_names(config: DictConfig, run: Path, trust: Sequence[str] = ()) -> None:
    """Raise ConfigError for the first `_target_` that may not be built, and for an interpolation.

    Nothing is imported but bdl's own modules and the packages that are trusted.
    """
    trusted = [trust] if isinstance(trust, str) else list(trust)
    refuse_interpolations(config, run)
    for key, name in leaves(OmegaConf.to_container(config)):
        if name is None or key.rpartition(".")[2] != "_target_" or is_public(name):
            continue
        if (package := untrusted_package(str(name), trusted)) is not None:
            raise ConfigError(
                f"{run / CONFIG}: {key}={name} is no public name of bdl, torch.nn or lightning, and could do "
                f"anything: trust=[{package}] allows the whole package, if you trust whoever made this run"
            )


def refuse_interpolations(config: DictConfig, run: Path) -> None:
    """Raise ConfigError for an interpolation in a config.yaml: bdl writes none.

    It could stand for any `_target_`, or read a variable of the environment.
    """
    for key, value in leaves(OmegaConf.to_container(config)):
        if isinstance(value, str) and "${" in value:
            raise ConfigError(f"{run / CONFIG}: {key}={value} is an interpolation, which no run records")


def untrusted_package(name: str, trusted: Sequence[str]) -> str | None:
    """The package that one would have to trust to build this name; None if it is trusted.

    A trusted package may import others, so an object belongs to the module that defines it: `mypackage.torch.load` is
    torch's. Raises ConfigError for a name that does not exist.
    """
    if not any(_is_below(name, package) for package in trusted):
        return name.partition(".")[0]
    try:
        value: Any = pydoc.locate(name)
    except pydoc.ErrorDuringImport as error:
        raise ConfigError(f"{name} cannot be imported ({error})") from error
    if value is None:
        raise ConfigError(f"{name} does not exist here: install its package, or put its folder on PYTHONPATH")
    origin = value.__name__ if inspect.ismodule(value) else str(getattr(value, "__module__", None))
    return None if any(_is_below(origin, package) for package in trusted) else origin.partition(".")[0]


def _is_below(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


def is_public(name: object) -> bool:
    """Whether this is a public class or function of bdl, a module of torch.nn, or Lightning's trainer or a logger.

    A name with one more dot, such as `bdl.disk.files.os.remove`, is none: it may lead out of the package.
    """
    module, _, last = str(name).rpartition(".")
    if module in PUBLIC:
        package = import_module(module)
        value: Any = getattr(package, last, None) if last in public_names(package) else None
        origin = getattr(value, "__module__", None) or ""
        return inspect.isclass(value) and origin.startswith("bdl.") or callable(value) and origin.startswith(FUNCTIONS)
    if module == "torch.nn":
        nn = import_module("torch.nn")
        value = getattr(nn, last, None)
        return inspect.isclass(value) and issubclass(value, nn.Module) and value.__module__.startswith("torch.nn.")
    return name in LIGHTNING


def public_names(package: ModuleType) -> Sequence[str]:
    """The names of `__all__`; for a module without it, all that do not begin with an underscore."""
    return getattr(package, "__all__", [name for name in vars(package) if not name.startswith("_")])
