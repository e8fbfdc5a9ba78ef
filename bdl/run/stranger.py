"""A stored run, perhaps a stranger's: which names its config.yaml may build, and whether it describes the samples.

Hydra builds whatever a `_target_` names, `torch.load` included. Only public names of bdl, modules of torch.nn and
Lightning's trainer and loggers are built, and those of packages that the user trusts.
"""

from __future__ import annotations

import inspect
import json
import pydoc
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from bdl.errors import BdlWarning, ConfigError
from bdl.files import read_file
from bdl.identity import identity
from bdl.posterior.described import brief, first_difference
from bdl.posterior.store import SampleStore
from bdl.run.build import LAW_OF_DATA
from bdl.run.keys import TRAIN
from bdl.run.known import known_samples
from bdl.run.provenance import is_as_written
from bdl.run.records import CHECKSUMS, CONFIG, DESCRIBED, read_checksums, read_config, sha256

ALTERED = "was altered or lost after bdl had written it"
ADDED = f"was added after the run had ended, or its line in {CHECKSUMS} was lost"
READ = ("data", "model", "loss", "threads")  # what the commands read of a config.yaml
PUBLIC = ("bdl", "bdl.data", "bdl.models", "bdl.likelihoods", "bdl.schedules", "bdl.callbacks")
FUNCTIONS = (
    "bdl.data",
    "bdl.likelihoods",
    "bdl.models",
    "bdl.schedules",
)  # their functions make objects and write nothing
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
        words, fits = TRAIN["threads"]
        if not fits(config.threads):
            raise ConfigError(f"{run / CONFIG} is damaged (threads must be {words}, got {config.threads}): restore it")
        if difference := target_difference(run, config):
            raise ConfigError(difference)
        warn_of_altered(run)
        warn_of_lost_samples(run)
        configs.append(config)
    return configs


def check_names(config: DictConfig, run: Path, trust: Sequence[str] = ()) -> None:
    """Raise ConfigError for the first `_target_` that may not be built, and for an interpolation.

    Nothing is imported but bdl's own modules and the packages that are trusted.
    """
    trusted = [trust] if isinstance(trust, str) else list(trust)
    for key, name in plain_values(config, run):
        if name is None or key.rpartition(".")[2] != "_target_" or is_public(name):
            continue
        if (package := untrusted_package(str(name), trusted)) is not None:
            raise ConfigError(
                f"{run / CONFIG}: {key}={name} is no public name of bdl, torch.nn or lightning, and could do "
                f"anything: trust=[{package}] allows the whole package, if you trust whoever made this run"
            )


def plain_values(config: DictConfig, run: Path) -> Iterator[tuple[str, Any]]:
    """(key, value) of everything in a config.yaml. Raises ConfigError for an interpolation: bdl writes none.

    It could stand for any `_target_`, or read a variable of the environment.
    """
    for key, value in values(OmegaConf.to_container(config)):
        if isinstance(value, str) and "${" in value:
            raise ConfigError(f"{run / CONFIG}: {key}={value} is an interpolation, which no run records")
        yield key, value


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


def warn_of_altered(run: Path, *only: str) -> None:
    """Warn of the files, or of these alone, that bdl did not leave so."""
    for name, fault in altered(run).items():
        if not only or name in only:
            warnings.warn(f"{run / name} {fault}", BdlWarning, stacklevel=2)


def altered(run: Path) -> dict[str, str]:
    """What is wrong with the files that are not as bdl left them, by name.

    checksums.json tells after the end of a run, and config.yaml's own checksum before.
    """
    sums = read_checksums(run)
    if sums is None:
        config = run / CONFIG
        return {CONFIG: ALTERED} if config.exists() and not is_as_written(read_file(config)) else {}
    wrong = [name for name, value in sums.items() if not is_inside(name) or not matches(run / name, value)]
    return dict.fromkeys(wrong, ALTERED) | dict.fromkeys(unlisted(run, sums), ADDED)


def unlisted(run: Path, sums: Mapping[str, str]) -> list[str]:
    """The files that describe an ended run and have no checksum: bdl did not write them, or it was lost."""
    there = {str(path.relative_to(run)) for pattern in DESCRIBED for path in run.glob(pattern)}
    return sorted(name for name in there - sums.keys() if "(copy)" not in name)  # `read_index` names copies


def warn_of_lost_samples(run: Path) -> None:
    """Warn where the index of a run that has not ended lacks samples that its checkpoint knows."""
    if read_checksums(run) is not None:
        return
    for path, digest, present in known_samples(run):
        if not present:
            warnings.warn(
                f"{path} knows {digest.count} samples, and the index does not begin with them: some are lost or were "
                f"altered; bdl verify run={run} repair=true, or the command of the run",
                BdlWarning,
                stacklevel=2,
            )


def matches(path: Path, checksum: Any) -> bool:
    return path.is_file() and sha256(path) == checksum


def is_inside(name: str) -> bool:
    """Whether a name of checksums.json stays in the run directory."""
    path = Path(name)
    return not path.is_absolute() and ".." not in path.parts
