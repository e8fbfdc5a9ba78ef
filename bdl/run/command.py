"""The commands `bdl train`, `evaluate`, `predict`, `verify`, `report` and `gather`, which scripts of these names run.

This module imports neither torch nor Lightning, so that `--help` answers at once: the work is imported when it begins.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors, and bdl prints them as one line

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from bdl.run.config import config_folder, register_resolvers
from bdl.run.console import one_line_errors
from bdl.run.keys import check_keys
from bdl.run.sweeps import register_sweeps

register_resolvers()
register_sweeps()
CONF = str(config_folder())
WORK = {"report": "compare"}  # commands whose module and function have another name


@contextmanager
def importing() -> Iterator[None]:
    """No search for garbage: the objects that imports make are none. It takes a tenth of the time to import torch."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # later searches leave them out too, and so forked processes share their pages
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


def carry_out(name: str, cfg: DictConfig) -> float | None:
    """Check the keys of a command, then import and call the function that does its work."""
    check_keys(name, cfg, HydraConfig.get(), config_folder())
    with importing():
        module = importlib.import_module(f"bdl.run.{WORK.get(name, name)}")
    return getattr(module, WORK.get(name, name))(cfg)


@hydra.main(version_base="1.3", config_path=CONF, config_name="train")
def train(cfg: DictConfig) -> float | None:
    """Sample the posterior of a network, keep the samples, evaluate them and write a report."""
    with one_line_errors(), no_empty_folder():  # here too: Hydra has a line of its own for errors that reach it
        return carry_out("train", cfg)


@hydra.main(version_base="1.3", config_path=CONF, config_name="evaluate")
def evaluate(cfg: DictConfig) -> None:
    """Evaluate the samples of one or several runs as one posterior."""
    with one_line_errors():
        carry_out("evaluate", cfg)


@hydra.main(version_base="1.3", config_path=CONF, config_name="predict")
def predict(cfg: DictConfig) -> None:
    """Predict the rows of a table with the samples of one or several runs."""
    with one_line_errors():
        carry_out("predict", cfg)


@hydra.main(version_base="1.3", config_path=CONF, config_name="verify")
def verify(cfg: DictConfig) -> None:
    """Verify every file of a run directory, and repair what can be repaired."""
    with one_line_errors():
        carry_out("verify", cfg)


@hydra.main(version_base="1.3", config_path=CONF, config_name="report")
def report(cfg: DictConfig) -> None:
    """Compare finished runs on the same data, a row for each method."""
    with one_line_errors():
        carry_out("report", cfg)


@hydra.main(version_base="1.3", config_path=CONF, config_name="gather")
def gather(cfg: DictConfig) -> None:
    """Gather the results of a sweep into one table and one page."""
    with one_line_errors():
        carry_out("gather", cfg)


COMMANDS = {
    "train": train,
    "evaluate": evaluate,
    "predict": predict,
    "verify": verify,
    "report": report,
    "gather": gather,
}
HELP = f"""usage: bdl COMMAND [OVERRIDES]

commands:
  train     {train.__doc__}
  evaluate  {evaluate.__doc__}
  predict   {predict.__doc__}
  verify    {verify.__doc__}
  report    {report.__doc__}
  gather    {gather.__doc__}

Overrides are Hydra's: bdl train sampler=sghmc chains=4. `bdl COMMAND --help` lists the configuration."""


def run_command(name: str) -> None:
    """Run a command with the overrides in sys.argv; an error ends the process with one line and status 1."""
    with one_line_errors():
        COMMANDS[name]()


def main() -> None:
    """The console command `bdl`."""
    name, *overrides = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help", "help"):
        print(HELP)
    elif name in COMMANDS:
        sys.argv = [f"bdl {name}", *overrides]
        run_command(name)
    else:
        print(f"bdl: {name} is not a command: {' or '.join(COMMANDS)}; bdl --help says more", file=sys.stderr)
        sys.exit(2)
