"""A stored run, perhaps a stranger's: which names its config.yaml may build, and whether it describes the samples.

Hydra builds whatever a `_target_` names, `torch.load` included. Only public names of bdl, modules of torch.nn and
Lightning's trainer and loggers are built, and those of packages that the user trusts.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from bdl.errors import BdlWarning, ConfigError
from bdl.identity import identity
from bdl.posterior.described import brief, first_difference
from bdl.posterior.store import SampleStore
from bdl.run.build import LAW_OF_DATA
from bdl.run.directory import CONFIG, read_checksums, read_config, sha256
from bdl.run.provenance import is_as_written

READ = ("data", "model", "loss", "threads")  # what the commands read of a config.yaml
PUBLIC = ("bdl", "bdl.data", "bdl.models", "bdl.likelihoods", "bdl.schedules", "bdl.callbacks")
FUNCTIONS = ("bdl.likelihoods", "bdl.models", "bdl.schedules")  # their functions make objects and write nothing
LIGHTNING = {
    "lightning.Trainer", *(f"lightning.pytorch.loggers.{kind}Logger" for kind in ("CSV", "TensorBoard", "Wandb"))
}  # fmt: skip


def read_runs(runs: Sequence[Path], trust: Sequence[str]) -> list[DictConfig]:
    """The config.yaml of every run, after all checks. Warns of files that bdl did not leave so.

    Raises ConfigError for a damaged file, a name that is not trusted, and a configuration that does not describe the
    samples.
    """
    configs = []
    for run in runs:
        config = read_config(run)
        check_names(config, run, trust)
        if missing := [key for key in READ if key not in config]:
            raise ConfigError(f"{run / CONFIG} is damaged (it has no {missing[0]}): restore it")
        if difference := target_difference(run, config):
            raise ConfigError(difference)
        for name in altered(run):
            warnings.warn(f"{run / name} was altered or lost after bdl had written it", BdlWarning, stacklevel=2)
        configs.append(config)
    return configs


def check_names(config: DictConfig, run: Path, trust: Sequence[str] = ()) -> None:
    """Raise ConfigError for the first `_target_` that may not be built. Nothing is imported that is not bdl's own."""
    trusted = [trust] if isinstance(trust, str) else list(trust)
    for key, name in values(OmegaConf.to_container(config)):
        if isinstance(name, str) and "${" in name:  # bdl writes none, and it could stand for any `_target_`
            raise ConfigError(f"{run / 'config.yaml'}: {key}={name} is an interpolation, which no run records")
        if name is None or key.rpartition(".")[2] != "_target_":
            continue
        if not (is_public(name) or any(f"{name}.".startswith(f"{package}.") for package in trusted)):
            package = str(name).partition(".")[0]
            raise ConfigError(
                f"{run / 'config.yaml'}: {key}={name} is no public name of bdl, torch.nn or lightning, and could do "
                f"anything: trust=[{package}] allows the whole package, if you trust whoever made this run"
            )


def values(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(key, value) of everything below a node that is no mapping and no list."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else None
    if items is None:
        yield path, node
    for key, value in items or ():
        yield from values(value, f"{path}.{key}" if path else str(key))


def is_public(name: Any) -> bool:
    """Whether this is a public class or function of bdl, a module of torch.nn, or Lightning's trainer or a logger.

    A name with one more dot, such as `bdl.files.os.remove`, is none: it may lead out of the package.
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


def public_names(package: Any) -> Sequence[str]:
    """The names of `__all__`; for a module without it, all that do not begin with an underscore."""
    return getattr(package, "__all__", [name for name in vars(package) if not name.startswith("_")])


def target_difference(run: Path, config: DictConfig) -> str | None:
    """The line that says where config.yaml does not describe the samples; None where it does.

    samples/target.json was written with the samples. What one of the two does not name is not compared: a data module
    may find facts of the data, such as the classes of a folder of images, that no key gives.
    """
    target = SampleStore(run).target()
    described = described_law(config)
    if "(" in str(target.get("loss")) and isinstance(target["loss"], str):  # an older bdl recorded a text for people
        del target["loss"]
    recorded = {key: value for key, value in target.items() if key in described}
    if "data" in recorded:
        of_data = recorded.get("data") or {}
        recorded["data"] = {key: value for key, value in of_data.items() if key in described["data"]}
    difference = first_difference({k: v for k, v in described.items() if k in target}, recorded)
    if difference is None:
        return None
    key, in_config, in_target = difference
    return (
        f"{run / 'config.yaml'} does not describe its network and data: {key} is {brief(in_config)}, and "
        f"{brief(in_target)} in samples/target.json; restore it"
    )


def described_law(config: DictConfig) -> dict[str, Any]:
    """What a config.yaml says about the law, in the words of target.json."""
    plain: Any = OmegaConf.to_container(config, resolve=True)
    law: dict[str, Any] = {}
    if "model" in plain:
        law["model"] = plain["model"]
    if isinstance(plain.get("data"), dict):
        law["data"] = {key: value for key, value in plain["data"].items() if key in LAW_OF_DATA}
    if isinstance(plain.get("sampler"), dict) and plain["sampler"].get("num_data") is not None:
        law["num_data"] = plain["sampler"]["num_data"]
    if "loss" in plain:
        law["loss"] = identity(instantiate(config.loss))
    return json.loads(json.dumps(law))


def altered(run: Path) -> list[str]:
    """The files that are not as bdl wrote them: by checksums.json after the end, before it by their own checksums."""
    sums = read_checksums(run)
    if sums is None:
        return [] if is_as_written((run / CONFIG).read_bytes()) else [CONFIG]
    return [name for name, value in sums.items() if not is_inside(name) or not matches(run / name, value)]


def matches(path: Path, checksum: Any) -> bool:
    return path.is_file() and sha256(path) == checksum


def is_inside(name: str) -> bool:
    """Whether a name of checksums.json stays in the run directory."""
    path = Path(name)
    return not path.is_absolute() and ".." not in path.parts
