"""The commands `bdl train`, `evaluate`, ..., all of which `bdl.run.help.ABOUT` lists, and scripts of these names.

This module imports neither torch nor Lightning, so that `--help` answers at once: the work is imported when it begins.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors, and bdl prints them as one line

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from bdl.errors import ConfigError, did_you_mean
from bdl.interrupts import interruptible
from bdl.parts import PLACES, part
from bdl.run.completion import asks_for_completion, completion_script
from bdl.run.config import config_folder, register_resolvers
from bdl.run.console import BEGINS_ANEW, CONTINUES, one_line_errors, silent_pipe
from bdl.run.help import ABOUT, HELP, example_of, help_of
from bdl.run.jobs import noted_in_sweep, told_sweep
from bdl.run.keys import check_keys
from bdl.run.sweeps import is_optimising, of_each_job, register_sweeps, take_gpus

register_resolvers()
register_sweeps()
CONF = str(config_folder())
# Commands without groups -> the key of the folders that they take
OF_FOLDERS = {
    "evaluate": "runs",
    "predict": "run",
    "verify": "run",
    "compare": "runs",
    "influence": "run",
    "llc": "run",
    "distil": "run",
    "calibrate": "run",
    "status": "runs",
}


@contextmanager
def importing() -> Iterator[None]:
    """Import without garbage collection, which would take a tenth of the time to import torch and find nothing."""
    gc.disable()
    try:
        with interruptible():  # a library that tries an import takes Ctrl-C for a module that is not there
            yield
    finally:
        gc.freeze()  # later searches and the end of Python leave them out too, and forked processes share their pages
        gc.enable()


@contextmanager
def no_empty_folder() -> Iterator[None]:
    """After an error, remove the folder that Hydra made for the run if it is empty, and its empty parents.

    Parents end at the working directory. Jobs of a sweep share their parents, which therefore stay.
    """
    try:
        yield
    except BaseException:
        about, here = HydraConfig.get(), Path.cwd()
        folder = Path(about.runtime.output_dir)
        parents = [] if about.mode == RunMode.MULTIRUN else [p for p in folder.parents if here in p.parents]
        with suppress(OSError):  # the first that is not empty ends the search
            for path in (folder, *parents) if folder != here else ():
                path.rmdir()
        raise


def command(name: str) -> Callable[[], None]:
    """A command: check its keys, then call the function of its name in `bdl.run.<name>`, or a part of `bdl.contrib`."""

    def carry_out(cfg: DictConfig) -> float | None:
        # Hydra has a line of its own for errors that reach it. An optimising sweep must see them.
        kept = CONTINUES if name == "train" else BEGINS_ANEW
        errors = nullcontext() if is_optimising(HydraConfig.get()) else one_line_errors(kept=kept)
        with errors, noted_in_sweep(HydraConfig.get()), no_empty_folder():
            check_keys(name, cfg, HydraConfig.get(), config_folder())
            if name in OF_FOLDERS and (missing := sorted(OmegaConf.missing_keys(cfg))):
                raise ConfigError(f"{missing[0]} has no value: write it as in {example_of(name)}")
            if name == "train":
                take_gpus(HydraConfig.get(), cfg.trainer)
            with importing():
                of_part = f"bdl {name}" in PLACES
                work = part(f"bdl {name}") if of_part else vars(importlib.import_module(f"bdl.run.{name}"))[name]
            return work(cfg)

    return hydra.main(version_base="1.3", config_path=CONF, config_name=name)(carry_out)


def with_key(name: str, words: Sequence[str]) -> list[str]:
    """The words of a command line, where folders get the command's key: `bdl verify a` and `... runs=a` are run=a.

    Raises ConfigError for several folders where the command takes one, and for the key beside a folder without it.

        >>> with_key("verify", ["a", "trust=[mypackage]"])
        ["run='a'", 'trust=[mypackage]']
        >>> with_key("compare", ["a", "b"])
        ["runs=['a','b']"]
        >>> with_key("evaluate", ["run=a"])
        ['runs=a']
    """
    key = OF_FOLDERS.get(name)
    if key is None:
        return list(words)
    if name != "predict":  # which has both keys
        other = "runs=" if key == "run" else "run="  # the same folders under the key of other commands
        if all(any(word.startswith(start) for word in words) for start in (other, f"{key}=")):
            raise ConfigError(f"{key} is given twice: as run= and as runs=")
        words = [f"{key}={word.removeprefix(other)}" if word.startswith(other) else word for word in words]
    after_option = {i + 1 for i, word in enumerate(words) if word.startswith("-")}  # perhaps the option's value
    alone = [word for i, word in enumerate(words) if i not in after_option and _is_folder(word)]
    if not alone:
        return list(words)
    others = [word for word in words if word not in alone]
    if any(word.partition("=")[0] == key for word in others):
        raise ConfigError(f"{key} is given twice: as {key}= and as {alone[0]}")
    quoted = ["'" + word.replace("'", "\\'") + "'" for word in alone]
    if key == "runs":
        return [f"runs=[{','.join(quoted)}]", *others]
    if len(alone) > 1:
        raise ConfigError(f"{name} takes one folder, got {' and '.join(alone)}")
    return [f"{key}={quoted[0]}", *others]


def _is_folder(word: str) -> bool:
    """Whether a word is no option and no override. A folder of a sweep has = in its name."""
    # not by pathlib, which raises an error for a word that is too long for a name, such as a list of many columns
    return bool(word) and word[0] not in "-+~" and ("=" not in word or os.path.isdir(word))  # noqa: PTH112


def run_command(name: str) -> None:
    """Run a command with the overrides in sys.argv; an error ends the process with one line and status 1."""
    with silent_pipe(), one_line_errors(kept=CONTINUES if name == "train" else BEGINS_ANEW):
        words = sys.argv[1:]
        if {"-h", "--help"} & set(words):
            print(help_of(name, words))
        elif asks_for_completion(words):
            print(completion_script(list(ABOUT)))
        else:
            sys.argv[1:] = of_each_job(name, with_key(name, words), Path(CONF))
            with told_sweep():
                command(name)()


def main() -> None:
    """The console command `bdl`."""
    name, *overrides = sys.argv[1:] or ["--help"]
    if name in ABOUT:
        sys.argv = [f"bdl {name}", *overrides]
        run_command(name)
    elif name in ("-h", "--help", "help", "completion"):
        with silent_pipe():
            print(completion_script(list(ABOUT)) if name == "completion" else HELP)
    else:
        hint = did_you_mean(name, ABOUT) or f": {' or '.join(ABOUT)}"
        print(f"bdl: {name} is not a command{hint}; bdl --help says more", file=sys.stderr)
        sys.exit(2)
