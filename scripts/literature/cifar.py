"""Liang 2024, CIFAR tables: published accuracies beside those of finished runs of scripts/train.py."""

import json
import math
import statistics
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from bdl.errors import ConfigError
from bdl.run.records import read_metrics
from literature.experiment import Context, Result, Table, experiment
from literature.figures import BLUE, PALE, RED, canvas, label
from literature.sources import SLIDES

EPOCHS = 500  # length of the runs in conf/experiment
# (schedule, method) of conf/experiment/<data> -> accuracy in %, of one sample and of the average
PUBLISHED = {
    "cifar10": {
        "fixed_msgd": (90.10, 92.79), "fixed_sghmc": (89.73, 92.51), "fixed_awsghmc": (91.20, 93.27),
        "decay_msgd": (93.14, 93.50), "decay_sghmc": (90.79, 93.07), "decay_awsghmc": (92.52, 93.66),
        "decay_both_msgd": (93.16, 93.49), "decay_both_sghmc": (93.26, 93.58), "decay_both_awsghmc": (93.85, 94.10),
    },
    "cifar100": {
        "fixed_msgd": (61.19, 68.03), "fixed_sghmc": (61.72, 68.05), "fixed_awsghmc": (65.20, 70.46),
        "decay_msgd": (67.12, 70.14), "decay_sghmc": (64.65, 69.85), "decay_awsghmc": (68.74, 71.74),
        "decay_both_msgd": (67.60, 70.31), "decay_both_sghmc": (67.45, 70.22), "decay_both_awsghmc": (70.65, 72.04),
    },
}  # fmt: skip
SCHEDULES = {
    "fixed": "lr, T fixed", "decay": "lr falls", "decay_both": "lr, T fall",
    "fixed_hot": "T = 1, lr fixed", "decay_hot": "T = 1, lr falls", "decay_both_hot": "T = 1, lr, T fall",
}  # fmt: skip
HOT = [f"{schedule}_hot_{method}" for schedule in ("fixed", "decay", "decay_both") for method in ("sghmc", "awsghmc")]
RULED = 100.0  # T_eff / T from which on batches make 99 % of the noise
SCORES = {"last_ten/accuracy": 100, "chain_bma/accuracy": 100, "chain_bma/nll": 1}
METHODS = {"msgd": "M-SGD", "sghmc": "SGHMC", "awsghmc": "AWSGHMC"}


@dataclass(frozen=True)
class FinishedRun:
    """The results of one run, whose chains are runs from several starts: means over them, each average its own.

    one, average: accuracies in %, of single samples as a mean over the last ten, and of the average. nll: nats.
    errors: standard errors over the chains of the three. samples: of a chain.
    """

    cell: str
    epochs: int
    seed: int
    device: str
    chains: int
    samples: int
    one: float
    average: float
    nll: float
    errors: tuple[float, float, float]
    config: dict[str, Any]  # the configuration with git commit and versions
    metrics: dict[str, float]
    timing: dict[str, float]

    @property
    def seeds(self) -> str:
        return str(self.seed) if self.chains == 1 else f"{self.seed}: {self.chains} chains"


@experiment("cifar10", f"{SLIDES}, CIFAR-10", "CIFAR-10, ResNet20: runs of experiment=cifar10/...", collects=True)
def cifar10(context: Context) -> Result:
    return collect("cifar10", context)


@experiment("cifar100", f"{SLIDES}, CIFAR-100", "CIFAR-100, ResNet20: runs of experiment=cifar100/...", collects=True)
def cifar100(context: Context) -> Result:
    return collect("cifar100", context)


def collect(data: str, context: Context) -> Result:
    runs = [run for path in context.runs for run in read(path, data)]
    chosen = [run for run in runs if context.epochs in (None, run.epochs)]
    if not chosen:
        lengths = sorted({run.epochs for run in runs})
        missing = f"runs of {lengths} epochs, none of {context.epochs}" if runs else "no finished run"
        raise ConfigError(
            f"{missing} of experiment={data}/... in {', '.join(map(str, context.runs)) or 'no folder'}: run "
            f"scripts/train.py experiment={data}/decay_both_awsghmc, then pass its run directory, or one above it, as "
            "--runs"
        )
    cells = {cell: [run for run in chosen if run.cell == cell] for cell in [*PUBLISHED[data], *HOT]}
    cells = {cell: runs for cell, runs in cells.items() if runs or cell in PUBLISHED[data]}
    numbers = {cell: [vars(run) for run in runs] for cell, runs in cells.items() if runs}
    return Result({data: draw(data, cells)}, [tabulate(data, cells)], numbers)


def read(path: Path, data: str) -> list[FinishedRun]:
    """The finished runs of the table in a folder and below it."""
    return [finished_run(*run) for run in find_runs(path, data, [*PUBLISHED[data], *HOT])]


def find_runs(path: Path, data: str, cells: Container[str]) -> Iterator[tuple[str, Any, Path]]:
    """(cell, config.yaml, folder) of every finished run of `experiment=<data>/<cell>` in a folder and below it."""
    for metrics in sorted(path.rglob("metrics.json")):
        if not (metrics.parent / "config.yaml").exists():  # the metrics of an evaluation
            continue
        config: Any = OmegaConf.load(metrics.parent / "config.yaml")
        folder, _, cell = config.provenance.get("name", "").partition("/")
        if folder == data and cell in cells:
            yield cell, config, metrics.parent


def finished_run(cell: str, config: Any, folder: Path) -> FinishedRun:
    m, timing = read_metrics(folder / "metrics.json"), folder / "timing.json"
    if "test/last_ten/accuracy" not in m:
        raise ConfigError(f"{folder} is of an earlier bdl, which scored the last sample alone: make the run again")
    return FinishedRun(
        cell=cell,
        epochs=config.trainer.max_epochs,
        seed=config.seed,
        device=config.provenance.device,
        chains=(chains := int(m.get("chains", 1))),
        samples=int(m["samples"]) // chains,
        one=100 * m["test/last_ten/accuracy"],
        average=100 * m["test/bma/accuracy" if chains == 1 else "test/chain_bma/accuracy"],
        nll=m["test/bma/nll" if chains == 1 else "test/chain_bma/nll"],
        errors=tuple(scale * m.get(f"test/{name}_se", 0.0) for name, scale in SCORES.items()),  # type: ignore[arg-type]
        config=settings(config),
        metrics=m,
        timing=json.loads(timing.read_text()) if timing.exists() else {},  # written after metrics.json
    )


def settings(config: Any) -> dict[str, Any]:
    """The configuration of a run without the folders of its machine."""
    plain: Any = OmegaConf.to_container(config)
    return plain | {"data": {k: v for k, v in plain["data"].items() if k not in ("root", "cache")}}


def tabulate(data: str, cells: dict[str, list[FinishedRun]]) -> Table:
    header = ["schedule", "method", "published, one sample", "published, average",
              "ours, one sample", "ours, average", "NLL", "T_eff / T", "multiplier", "samples", "epochs", "seeds",
              "device"]  # fmt: skip
    rows = [row(data, cell, runs) for cell, every in cells.items() for runs in by_length(every)]
    note = (
        "Accuracy in %, and NLL of the average in nats, on the 10,000 test images. One sample: ours is the mean of "
        "the last ten samples, each by itself. T_eff / T, with the heat of the batches, and the multiplier of the "
        "gradient are means over the kept part of a run. Published: means of 10 runs, settings and epochs unknown. "
        f"Ours: the settings of conf/experiment/{data}, made for {EPOCHS} epochs; a shorter run has its schedule "
        "compressed, and its row says how many epochs it had. Mean ± standard error where there are several seeds, or "
        "chains of one seed, which begin apart and have batches of their own: then all scores are of single chains."
    )
    missing = [f"{data}/{cell}" for cell, runs in cells.items() if not runs]
    if missing:
        note += f" – : no finished run; missing are experiment={', '.join(missing)}."
    return Table("One sample, and the average of all", header, rows, note)


def by_length(runs: list[FinishedRun]) -> list[list[FinishedRun]]:
    """The runs of each number of epochs, because runs of different lengths have no common mean; [[]] for no runs."""
    lengths = sorted({run.epochs for run in runs})
    return [[run for run in runs if run.epochs == epochs] for epochs in lengths] or [[]]


def row(data: str, cell: str, runs: list[FinishedRun]) -> list[str]:
    schedule, method = cell.rsplit("_", 1)
    ours = [over_chains(runs, k, digits) if runs else "–" for k, digits in enumerate((2, 2, 3))]
    heat = [1 + run.metrics["noise_ratio"] for run in runs if run.metrics["temperature"]]
    pull = [run.metrics["weighting/multiplier"] for run in runs if "weighting/multiplier" in run.metrics]
    means = [f"{statistics.mean(values):.2f}" if values else "–" for values in (heat, pull)]
    if heat and statistics.mean(heat) > RULED:
        means[0] += ": T and weighting cannot matter"
    about = (listed(getattr(run, name) for run in runs) for name in ("samples", "epochs", "seeds", "device"))
    published = [f"{value:.2f}" for value in PUBLISHED[data].get(cell, ())] or ["–", "–"]
    return [SCHEDULES[schedule], METHODS[method], *published, *ours, *means, *about]


def over_chains(runs: list[FinishedRun], k: int, digits: int) -> str:
    """The mean of the k-th score over all chains of all runs, and its standard error."""
    chains, means = (
        np.array([run.chains for run in runs]),
        np.array([(run.one, run.average, run.nll)[k] for run in runs]),
    )
    within = [run.errors[k] ** 2 * run.chains * (run.chains - 1) for run in runs]  # sums of squares
    mean, n = float((chains * means).sum() / chains.sum()), int(chains.sum())
    spread = (np.sum(within) + (chains * (means - mean) ** 2).sum()) / max(1, n - 1)
    return f"{mean:.{digits}f}" + (f" ± {math.sqrt(spread / n):.{digits}f}" if n > 1 else "")


def draw(data: str, cells: dict[str, list[FinishedRun]]) -> Figure:
    """A row for each cell that has runs: from single samples to the average, beside the published average."""
    rows = [(cell, run) for cell, runs in cells.items() for run in runs]
    names = list(dict.fromkeys(cell for cell, _ in rows))
    figure, axes = canvas(headline(data, rows), width=5.2, height=1.6 + len(names) / 3)
    ax = axes[0, 0]
    for cell, run in rows:
        at = names.index(cell)
        ax.plot([run.one, run.average], [at, at], "-", color=PALE, lw=3, zorder=1)
        ax.plot(run.one, at, "o", color=BLUE)
        ax.plot(run.average, at, "o", color=RED)
        ax.plot(PUBLISHED[data].get(cell, (math.nan, math.nan))[1], at, "|", color="black", ms=13, mew=2)
    for style, colour, name in (("o", BLUE, "one sample"), ("o", RED, "average"), ("|", "black", "published average")):
        ax.plot([], [], style, color=colour, ls="", label=name)
    parts = [cell.rsplit("_", 1) for cell in names]
    ax.set_yticks(range(len(names)), [f"{METHODS[method]}, {SCHEDULES[schedule]}" for schedule, method in parts])
    ax.set_ylim(len(names) - 0.5, -0.5)
    label(ax, "", f"accuracy on test images (%), {listed(run.epochs for _, run in rows)} epochs")
    figure.legend(loc="outside lower center", ncols=3, columnspacing=1.0, handletextpad=0.3)
    return figure


def headline(data: str, rows: list[tuple[str, FinishedRun]]) -> str:
    """What the runs say: the gain of the average, and how far it is from the published average."""
    gains: dict[str, list[float]] = {}
    for cell, run in rows:
        gains.setdefault("stays" if cell.startswith("fixed") else "falls", []).append(run.average - run.one)
    said = ", ".join(f"{reach(values)} points where lr {does}" for does, values in gains.items())
    far = [run.average - PUBLISHED[data][cell][1] for cell, run in rows if cell in PUBLISHED[data]]
    if not far:
        return f"The average gains {said}"
    beside = f"{reach(far)} lower" if max(far) > 0 else f"{reach([-f for f in far])} higher"
    return f"The average gains {said}; published averages are {beside}"


def reach(values: list[float]) -> str:
    """From the least to the largest of them."""
    low, high = (f"{value:.1f}" if abs(value) < 10 else f"{value:.0f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def listed(values: Any) -> str:
    return ", ".join(str(v) for v in sorted(set(values))) or "–"
