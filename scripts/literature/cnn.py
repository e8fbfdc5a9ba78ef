"""The Lightning post's networks on CIFAR-10: SGD, SGLD and cyclical SGLD, with the average that it did not compute."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from torch import Tensor
from torch.func import functional_call

import bdl
from bdl.errors import ConfigError
from bdl.posterior.store import Record
from literature.cifar import find_runs, settings
from literature.cnn_quick import quick_runs
from literature.cnn_scores import Cells, Run, follow
from literature.cnn_tables import cycles_table, draw, margins_table, scores_table
from literature.experiment import Context, Result, experiment
from literature.sources import LIGHTNING_POST

DATA = "cifar10"
CELLS = {  # experiment=cifar10/... -> its name in the tables
    "cnn_sgd": "SGD",
    "cnn_sgld": "SGLD",
    "cnn_csgmcmc": "cSG-MCMC, noise always",
    "cnn_csgmcmc_temp": "cSG-MCMC, no noise while exploring",
}


@experiment("cnn", f"{LIGHTNING_POST}, CIFAR-10", "CIFAR-10, the post's CNN: runs of experiment=cifar10/cnn_...",
            collects=True)  # fmt: skip
def cnn(context: Context) -> Result:
    if not context.quick:
        return compare(read(list(context.runs), context), context)
    with quick_runs(list(CELLS), context) as folder:
        return compare(read([folder], context), context)


def compare(cells: Cells, context: Context) -> Result:
    names = {cell: CELLS[cell] for cell in cells}
    missing = [f"{CELLS[cell]} (experiment={DATA}/{cell})" for cell, runs in cells.items() if not runs]
    tables = [scores_table(cells, names, missing), margins_table(cells, names), cycles_table(cells, names)]
    numbers = {cell: [numbers_of(run) for run in runs] for cell, runs in cells.items() if runs}
    return Result({"cnn": draw(cells, names)}, [t for t in tables if t.rows], numbers)


def read(folders: list[Path], context: Context) -> Cells:
    """The finished runs of every cell, with the predictions of all their kept states on the test images."""
    found = [item for path in folders for item in find_runs(path, DATA, CELLS)]
    chosen = [item for item in found if context.epochs in (None, item[1].trainer.max_epochs)]
    lengths = sorted({config.trainer.max_epochs for _, config, _ in chosen})
    where = ", ".join(map(str, folders)) or "no folder"
    if not chosen:
        what = f"no finished run of {context.epochs} epochs" if context.epochs else "no finished run"
        raise ConfigError(
            f"{what} of experiment={DATA}/cnn_... in {where}: run scripts/train.py experiment={DATA}/cnn_csgmcmc_temp, "
            "then pass its run directory, or one above it, as --runs; --quick makes small runs of its own"
        )
    if len(lengths) > 1:
        raise ConfigError(f"runs of {lengths} epochs in {where} do not compare: choose a length with --epochs")
    runs = [(cell, run_of(config, path)) for cell, config, path in context.track(chosen, "cnn: predictions")]
    return {cell: [run for c, run in runs if c == cell] for cell in CELLS}


def run_of(config: Any, path: Path) -> Run:
    """Predict the test images with every kept state of the run in the folder `path`."""
    try:
        datamodule = instantiate(config.data)
    except InstantiationException as error:
        raise ConfigError(
            f"{path} was made from images in {config.data.root}, which are needed again: put CIFAR-10 there "
            f"({error.__cause__})"
        ) from error
    posterior = bdl.Posterior.opened(path, instantiate(config.model, _convert_="all"))
    x, labels = zip(*datamodule.slices("test"), strict=True)
    history = follow(predictions(posterior, list(x)), torch.cat(labels))
    steps_per_epoch = config.steps / config.trainer.max_epochs if config.steps > 0 else history.steps[-1]
    return Run(
        epochs=config.trainer.max_epochs,
        seed=config.seed,
        device=config.provenance.device,
        steps_per_epoch=steps_per_epoch,
        history=history,
        config=settings(config),
    )


@torch.no_grad()
def predictions(posterior: bdl.Posterior, batches: list[Tensor]) -> Iterator[tuple[Record, Tensor]]:
    """The record and the probabilities (n, K) of each network of the posterior, in the order of their steps."""
    net = posterior.net.eval()
    for sample in posterior.stream():
        logits = torch.cat([functional_call(net, sample.tensors, (x,)) for x in batches])
        yield sample.record, logits.softmax(-1)


def numbers_of(run: Run) -> dict[str, Any]:
    h = run.history
    return {
        "epochs": run.epochs, "seed": run.seed, "device": run.device, "samples": len(h.steps),
        "steps": h.steps, "cycles": h.cycles, "states": h.states, "averages": h.averages,
        "cycle_averages": h.cycle_averages, "config": run.config,
    }  # fmt: skip
