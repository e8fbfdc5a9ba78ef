"""A stored run, perhaps a stranger's: its config.yaml after all checks, and what is not as bdl left it.

Hydra builds whatever a `_target_` names, `torch.load` included. Only public names of bdl, modules of torch.nn and
Lightning's trainer and loggers are built, and those of packages that the user trusts.
"""

from __future__ import annotations

import builtins
import inspect
import json
import pydoc
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf

import bdl
from bdl.disk.manifest import SAMPLE, check_listed, manifests_of
from bdl.engine import mlp_library
from bdl.errors import BdlWarning, ConfigError, StoreError
from bdl.identity import identity
from bdl.likelihoods import Loss
from bdl.posterior.samples import brief, first_difference
from bdl.posterior.stacking_file import FILES as STACKING
from bdl.posterior.store import SampleStore
from bdl.posterior.tensors import FROZEN
from bdl.posterior.trained import FOLDER as TRAINED
from bdl.posterior.trained import START
from bdl.run.config import leaves, usable_cores
from bdl.run.keys import TRAIN
from bdl.run.machine import find_device, keep_freed_memory
from bdl.run.public import is_public
from bdl.run.records import CONFIG, RUN_FILES, read_config
from bdl.run.section import OF_DATA, Section, own_likelihood
from bdl.run.threads import thread_count
from bdl.run.validate import fitting

ALTERED = "was altered or lost after bdl had written it"
ADDED = "is in no manifest: it was added, or its line was lost"
READ = ("data", "model", "loss", "threads")  # what the commands read of a config.yaml
FILES = (  # files of a run that a manifest must list
    *RUN_FILES, "samples/target.json", "samples/frozen.safetensors", "samples/excluded-*.json", "samples/inputs-*.json",
    STACKING, "samples/weighting-*.safetensors", "checkpoints/trace-*.safetensors",
)  # fmt: skip
# Packages that hold what reads files or runs commands beside their classes, so that trusting them guards nothing
LIBRARIES = ("bdl", "hydra", "lightning", "numpy", "omegaconf", "pandas", "pip", "scipy", "setuptools", "torch")


def load_runs(
    runs: Sequence[Path], trust: Sequence[str] | str, device: str | None, skip_bad: bool = False
) -> tuple[bdl.Posterior, DictConfig]:
    """The samples of runs, for the network of their configurations, and the first configuration.

    They are read by as many threads as the run had, or as there are cores, and evaluated in C unless the run had
    `compile=false`. Warns and raises as `read_run` does.
    """
    configs = [read_run(run, trust, skip_bad) for run in runs]
    keep_freed_memory()
    torch.set_num_threads(min(thread_count(configs[0].threads), usable_cores()))
    mlp_library.let_evaluate(configs[0].get("compile") is not False)
    refuse_too_large(configs[0], runs[0])
    net: torch.nn.Module = Section[torch.nn.Module].of(configs[0].model).build().to(find_device(device))
    likelihood = own_likelihood(Section.of(configs[0].loss).build())  # it says what the outputs mean
    return bdl.Posterior.opened(runs, net, skip_bad=skip_bad, likelihood=likelihood), configs[0]


def refuse_too_large(config: DictConfig, run: Path) -> None:
    """Raise ConfigError for a network with more numbers than a file of samples holds, before it takes memory."""
    section = Section[torch.nn.Module].of(config.model)
    names = [str(name) for key, name in leaves(OmegaConf.to_container(config.model)) if key.endswith("_target_")]
    if not section.target.startswith(("bdl.models.", "torch.nn.")) or "bdl.models.pretrained" in names:
        return  # a package of the user's, or a network of the size that a file has
    try:
        with torch.device("meta"):
            numbers = sum(p.numel() for p in section.build().parameters())
    except (RuntimeError, NotImplementedError):  # a network that needs values while it is built
        return
    sizes = {path.name: path.stat().st_size for path in (run / "samples").glob("*.safetensors")}
    held = sizes.pop(FROZEN, 0) + max(sizes.values(), default=0)  # each sample holds what `sampler.only` names
    if sizes and 2 * numbers > held:  # numbers of 2 bytes at least
        raise ConfigError(
            f"{run / CONFIG} describes a network of {numbers:,} numbers, and a sample with its frozen part has "
            f"{held:,} bytes at most: it was altered (model); restore it"
        )


def read_run(run: Path, trust: Sequence[str] | str = (), skip_bad: bool = False) -> DictConfig:
    """The config.yaml of a run after all checks, see `read_checked`.

    Warns of files that bdl did not leave so, and where the manifests lack samples that a checkpoint knows.
    """
    config = read_checked(run, trust, skip_bad)
    warn_of_altered(run)
    for path in [path for path, present in known_samples(run) if not present]:
        about = "knows samples that no manifest lists: some are lost or were altered"
        remedy = "restore the manifest, or give the command of the run again"
        warnings.warn(f"{path} {about}; {remedy}", BdlWarning, stacklevel=2)
    return config


def read_checked(run: Path, trust: Sequence[str] | str = (), skip_bad: bool = False) -> DictConfig:
    """The config.yaml of a run, after all checks.

    Raises ConfigError for a damaged file, a name that is not trusted, and a configuration that does not describe the
    samples.
    """
    config = read_config(run)
    check_names(config, run, trust)
    if missing := [key for key in READ if key not in config]:
        raise ConfigError(f"{run / CONFIG} is damaged (it has no {missing[0]}): restore it")
    try:
        fitting("threads", config.threads, TRAIN["threads"])
    except ConfigError as error:
        raise ConfigError(f"{run / CONFIG} is damaged ({error}): restore it") from error
    if difference := target_difference(run, config, skip_bad):
        raise ConfigError(difference)
    return config


def target_difference(run: Path, config: DictConfig, skip_bad: bool = False) -> str | None:
    """The line that says where config.yaml does not describe the samples; None where it does.

    samples/target.json was written with the samples. What one of the two does not name is not compared: a data module
    may find facts of the data, such as the classes of a folder of images, that no key gives.
    """
    target = SampleStore(run, skip_bad).target()
    sections: Any = OmegaConf.to_container(config, resolve=True)
    law: dict[str, Any] = {"model": sections["model"], "loss": identity(_loss(run, config))}
    if isinstance(data := sections["data"], dict):
        law["data"] = {key: value for key, value in data.items() if key in OF_DATA}
    if isinstance(sampler := sections.get("sampler"), dict) and sampler.get("num_data") is not None:
        law["num_data"] = sampler["num_data"]
    described = json.loads(json.dumps(law))  # the same law in the words of target.json
    recorded = {key: value for key, value in target.items() if key in described}
    if "data" in recorded:
        recorded["data"] = {k: v for k, v in (recorded["data"] or {}).items() if k in described["data"]}
    difference = first_difference({k: v for k, v in described.items() if k in target}, recorded)
    if difference is None:
        return None
    key, in_config, in_target = difference
    return (
        f"{run / 'config.yaml'} does not describe its network and data: {key} is {brief(in_config)}, and "
        f"{brief(in_target)} in samples/target.json; restore it"
    )


def _loss(run: Path, config: DictConfig) -> Loss:
    try:
        return Section[Loss].of(config.loss).build()
    except (InstantiationException, TypeError, ValueError) as error:  # a section that is no mapping, or names nothing
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{run / CONFIG} is damaged (its loss cannot be built: {reason}): restore it") from error


def warn_of_altered(run: Path, *only: str) -> None:
    """Warn of the files, or of these alone, that bdl did not leave so."""
    for name, fault in altered(run).items():
        if not only or name in only:
            warnings.warn(f"{run / name} {fault}", BdlWarning, stacklevel=2)


def altered(run: Path) -> dict[str, str]:
    """What is wrong with the files that are not as bdl left them, by name. Samples are verified when they are read."""
    return {name: fault for name, fault in described_files(run).items() if fault is not None}


def described_files(run: Path) -> dict[str, str | None]:
    """What is wrong with each file but samples and checkpoints, by its name; None for those that are right."""
    parts = ("", f"{START}/", f"{TRAINED}/")
    return {part + path: fault for part in parts for path, fault in _faults(run / part).items()}


def _faults(folder: Path) -> dict[str, str | None]:
    faults: dict[str, str | None] = {}
    whole, manifests = [], manifests_of(folder)
    if not manifests:  # a folder that bdl did not write
        return {}
    for manifest in manifests:
        try:
            manifest.entries()
            whole.append(manifest)
        except StoreError:
            faults[manifest.path.name] = "is damaged: restore it"
    for path in dict.fromkeys(e.path for m in whole for e in m.entries() if e.kind != SAMPLE):
        try:
            check_listed(whole, path)
            faults[path] = None
        except StoreError:
            faults[path] = ALTERED
    there = [str(path.relative_to(folder)) for pattern in FILES for path in sorted(folder.glob(pattern))]
    return {**dict.fromkeys(there, ADDED), **faults}


def known_samples(run: Path) -> Iterator[tuple[Path, bool]]:
    """Every checkpoint that knows samples, and whether a manifest has its last hash. Damaged ones are left out."""
    for path in sorted((run / "checkpoints").glob("last*.ckpt")):
        try:
            collector = torch.load(path, "cpu", weights_only=True, mmap=True)["callbacks"]["CollectSamples"]
            last_hash = collector["manifest"]["written"]
        except Exception:  # the parsers may raise anything
            continue
        manifests = [*manifests_of(run), *manifests_of(run / TRAINED)]
        hashes = {entry.hash for manifest in manifests for entry in manifest.first_entries()}
        yield path, last_hash in hashes


# ---- names that may be built --------------------------------------------------------------------------------------


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
            raise ConfigError(f"{run / CONFIG}: {key}={name} {_about(package)}")


def _about(package: str) -> str:
    """What stands behind a name that may not be built. No line that is ready to copy opens a library of tools."""
    which = "is no public name of bdl, torch.nn or lightning, but"
    if package in sys.stdlib_module_names or hasattr(builtins, package) or package in LIBRARIES:
        whose = package if package in LIBRARIES else f"Python's own {package}"
        return f"{which} a tool of {whose}, which no network needs and which could do anything: use no run that asks it"
    if not package:
        return f"{which} nothing: write a name"
    return (
        f"{which} code of the package {package}, which could do anything: trust=[{package}] allows the whole package, "
        "if you trust whoever made this run"
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
