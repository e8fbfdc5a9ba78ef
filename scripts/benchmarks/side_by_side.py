"""Methods side by side on Landsat and on a regression, each under settings chosen for it by as many trials.

python scripts/bench.py side_by_side [DATA ...] [--only METHOD ...] [--seeds 0 1 2 3 4] [--out DIR]

Every run is one command, `scripts/train.py`. The settings of a method are chosen in three trials, by the NLL of a
quarter of the training rows that the trial has not seen. The runs of the table train on all training rows and score the
test rows. DIR/side-by-side.json holds trials and runs, and DIR/side-by-side.md the table; earlier cells stay.
"""

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tools.command import Said
from tools.results import TABLES, about, markdown, origin, read, save

from benchmarks.table import SEEDS, measure, shown

DATA = {
    "landsat": ["data=landsat"],
    "airfoil": ["data=csv", "data.path=package:airfoil.csv", "data.target=target"],
}


@dataclass(frozen=True)
class Method:
    """A method.

    Args:
        overrides: of scripts/train.py, on any data.
        trials: further overrides by data: the settings from which validation rows choose.
    """

    overrides: Sequence[str]
    trials: Mapping[str, Sequence[Sequence[str]]]


def of_sgd(length: int, *overrides: str) -> Method:
    """A method of networks that SGD trains: its trials differ in lr."""
    trials = {data: [[f"sampler.lr={lr}"] for lr in rates] for data, rates in RATES.items()}
    return Method([*overrides, f"length={length}"], trials)


RATES = {"landsat": (0.05, 0.02, 0.005), "airfoil": (0.005, 0.002, 0.0005)}
ENERGY = [[f"sampler.dynamics.energy_var={value}"] for value in (0.1, 0.01, 0.001)]
PRECISION = [[f"sampler.prior.precision={value}"] for value in (0.2, 0.4, 1.0)]
METHODS = {
    "one network": of_sgd(8_000, "sampler=ensemble", "chains=1"),
    "deep ensemble of 8": of_sgd(8_000, "sampler=ensemble", "chains=8"),
    "MC dropout": of_sgd(8_000, "sampler=dropout"),
    "last-layer Laplace": of_sgd(8_000, "sampler=laplace"),
    "SWAG": of_sgd(8_000, "sampler=swag"),
    "MultiSWAG of 8": of_sgd(8_000, "sampler=multiswag", "chains=8"),
    "SGHMC, 8 chains": Method(
        ["sampler=sghmc", "chains=8", "length=16000"], {"landsat": PRECISION, "airfoil": PRECISION}
    ),
    "MCLMC, 8 chains": Method(
        ["sampler=mclmc", "sampler.dynamics.adjusted=false", "chains=8"], {"landsat": ENERGY, "airfoil": ENERGY}
    ),
}


def main(
    *data: Annotated[str, Said(metavar="DATA", choices=DATA)],
    only: Annotated[Sequence[str] | None, Said(metavar="METHOD", choices=METHODS)] = None,
    seeds: Annotated[Sequence[int], Said(metavar="SEED")] = SEEDS,
    out: Annotated[Path, Said(metavar="DIR")] = TABLES,
) -> None:
    path = out / "side-by-side.json"
    record = read(path, cores=os.cpu_count(), data={})
    for name in data or DATA:
        cells = record["data"].setdefault(name, {})
        for title in only or METHODS:
            cell = cells.setdefault(title, {"trials": [], "runs": []})
            for step in work(name, METHODS[title], cell, seeds):
                print(f"{name}, {title}: {step}", flush=True)
                record |= about()
                save(path, record, table(record))


def work(data: str, method: Method, cell: dict[str, Any], seeds: Sequence[int]) -> Any:
    """Trials, then runs, what is missing of them; yields a line for each once the cell holds it."""
    common = [*DATA[data], *method.overrides, "logger=none"]
    for overrides in method.trials[data][len(cell["trials"]) :]:
        run = measure([*common, *overrides, "data.val_fraction=0.25"], 0, "val")
        cell["trials"].append({"overrides": list(overrides), "nll": run["bma"]["nll"], "seconds": run["core_seconds"]})
        yield f"trial of {' '.join(overrides)}, validation NLL {run['bma']['nll']:.4f}"
    best = min(cell["trials"], key=lambda trial: trial["nll"])["overrides"]
    cell["overrides"] = [*method.overrides, *best]
    for seed in seeds:
        if all(run["seed"] != seed for run in cell["runs"]):
            cell["runs"].append(run := measure([*common, *best], seed))
            yield f"seed {seed}, NLL {run['bma']['nll']:.4f}, {run['core_seconds']:.0f} core-seconds"


def table(record: dict[str, Any]) -> str:
    """A table for each data set: means and standard errors over the seeds."""
    where = origin(record, f"{record['cores']} cores of")
    text = f"{where}. Means and standard errors over seeds; settings by three trials a method on training rows.\n\n"
    for name, cells in record["data"].items():
        done = {title: cells[title] for title in METHODS if cells.get(title, {}).get("runs")}
        if not done:
            continue
        score = "accuracy" if "accuracy" in next(iter(done.values()))["runs"][0]["bma"] else "rmse"
        heading = "error %" if score == "accuracy" else "RMSE"
        rows = []
        for title, cell in done.items():
            runs = cell["runs"]
            values = [spread([shown(run["bma"][s], s) for run in runs], d) for s, d in ((score, 3), ("nll", 4))]
            cost = f"{statistics.mean(run['core_seconds'] for run in runs):.0f}"
            chosen = " ".join(cell["overrides"][len(METHODS[title].overrides) :])
            rows.append([title, *values, cost, str(len(runs)), f"`{chosen}`"])
        head = ["method", heading, "NLL", "core-seconds", "seeds", "chosen"]
        text += f"\n## {name}\n\n{markdown(head, rows)}"
    return text


def spread(values: Sequence[float], digits: int) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.mean(values):.{digits}f} ± {error:.{digits}f}"
