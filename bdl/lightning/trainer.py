"""The Trainer of a run: assembled, silenced, and fitted without unpickling anything."""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.exceptions import SIGTERMException

from bdl.errors import BdlWarning, ConfigError

LOGGERS = ("lightning.pytorch", "lightning.fabric")


def assemble(
    callbacks: Iterable[L.Callback],
    folder: str | Path,
    logger: Logger | Literal[False] = False,
    refusal: str = "Lightning makes no such Trainer",
    **settings: Any,
) -> L.Trainer:
    """The Trainer under which chains are sampled. It neither sums up the network nor divides the data among devices.

    Args:
        callbacks: in the order in which they are called.
        folder: for what the callbacks write, unless they have a folder.
        refusal: the beginning of the message where Lightning refuses the settings or the callbacks.
        settings: further arguments of `lightning.Trainer`.

    Raises ConfigError for settings that this machine or its packages cannot carry out.
    """
    settings |= dict(enable_model_summary=False, num_sanity_val_steps=0, use_distributed_sampler=False)
    if settings.get("deterministic") is False and not torch.are_deterministic_algorithms_enabled():
        settings["deterministic"] = None  # nothing to switch off: torch would import its compiler for that
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PossibleUserWarning)  # on a login node: prepend srun, which no run needs
            return L.Trainer(**settings, callbacks=list(callbacks), logger=logger, default_root_dir=folder)
    except Exception as error:  # Lightning, torch and a profiler raise what they like
        raise ConfigError(f"{refusal}: {' '.join(str(error).split())}") from error


def silence_lightning(speaks: bool = True) -> None:
    """Hide Lightning's messages and warnings. One process prints bdl's own."""
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning.*")
    # This filter must follow: a warning raised from a LightningModule counts as Lightning's.
    warnings.filterwarnings("default" if speaks else "ignore", category=BdlWarning)


@contextmanager
def silenced_lightning() -> Iterator[None]:
    """Run the block, in which a Trainer is made and used, under `silence_lightning`; then all is as before."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [each.level for each in loggers]
    try:
        with warnings.catch_warnings():
            silence_lightning()
            yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


def fit(trainer: L.Trainer, module: L.LightningModule, data: Any, checkpoint: Path | None = None) -> None:
    """`trainer.fit`, which unpickles nothing.

    A KeyboardInterrupt stays one, and Ctrl-C as it was; Lightning would exit with status 1, and ignore the next one.
    SIGTERM, where no callback takes it, ends the process with status 143; Lightning's is 0, which schedulers take for
    success.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            signal.signal(signal.SIGINT, handler)
            raise error.__context__ from None
        if isinstance(error, SIGTERMException) and error.code is None:
            error.code = 128 + signal.SIGTERM
        raise
