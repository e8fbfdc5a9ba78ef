"""A stored run, perhaps a stranger's: its config.yaml after all checks, and what is not as bdl left it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from bdl.baselines.base import FOLDER as TRAINED
from bdl.disk.manifest import SAMPLE, manifests_of, read_listed
from bdl.errors import BdlWarning, ConfigError, StoreError
from bdl.identity import identity
from bdl.lightning.callbacks.start import FOLDER as START
from bdl.posterior.merging import brief, first_difference
from bdl.posterior.store import SampleStore
from bdl.run.keys import TRAIN
from bdl.run.law import OF_DATA
from bdl.run.records import CONFIG, RUN_FILES, read_config
from bdl.run.trust import check_names

ALTERED = "was altered or lost after bdl had written it"
ADDED = "is in no manifest: it was added, or its line was lost"
READ = ("data", "model", "loss", "threads")  # what the commands read of a config.yaml
STACK_FILES = ("target.json", "frozen.safetensors", "excluded-*.json", "weighting-*.safetensors")  # in samples/


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


def target_difference(run: Path, config: DictConfig) -> str | None:
    """The line that says where config.yaml does not describe the samples; None where it does.

    samples/target.json was written with the samples. What one of the two does not name is not compared: a data module
    may find facts of the data, such as the classes of a folder of images, that no key gives.
    """
    target = SampleStore(run).target()
    described = described_law(config)
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
        law["data"] = {key: value for key, value in plain["data"].items() if key in OF_DATA}
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
    """What is wrong with the files that are not as bdl left them, by name. Samples are verified when they are read."""
    return {name: fault for name, fault in described_files(run).items() if fault is not None}


def described_files(run: Path) -> dict[str, str | None]:
    """What is wrong with each file but samples and checkpoints, by its name; None for those that are right."""
    folders = {run: "", run / START: f"{START}/", run / TRAINED: f"{TRAINED}/"}
    return {before + path: fault for folder, before in folders.items() for path, fault in _faults(folder).items()}


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
            read_listed(whole, path)
            faults[path] = None
        except StoreError:
            faults[path] = ALTERED
    there = [folder / name for name in RUN_FILES if (folder / name).exists()]
    there += [path for pattern in STACK_FILES for path in sorted((folder / "samples").glob(pattern))]
    there += sorted((folder / "checkpoints").glob("trace-*.safetensors"))
    return {**dict.fromkeys((str(path.relative_to(folder)) for path in there), ADDED), **faults}


def warn_of_lost_samples(run: Path) -> None:
    """Warn where the manifests lack samples that a checkpoint knows."""
    for path, present in known_samples(run):
        if not present:
            warnings.warn(
                f"{path} knows samples that no manifest lists: some are lost or were altered; restore the manifest, or "
                "give the command of the run again",
                BdlWarning,
                stacklevel=2,
            )


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
