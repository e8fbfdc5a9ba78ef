"""Plain SGHMC at four temperatures, and adaptive weighting while T falls.

python scripts/experiment.py weighting --data DIR [--sets SET ...] [--methods METHOD ...] [--seeds 0 1] [--out DIR]
python scripts/experiment.py weighting --data DIR --falling [--out DIR]

DIR has bike_sharing_hour.csv, energy.csv, wine_quality_red.csv and cifar10_head.npz, the first 2,500 training images as
x_train and y_train; airfoil and Landsat come with bdl. On a table every method is a whole run of `scripts/train.py`
with 5 chains, scored on the test rows of a split of its own. On Landsat and the images all begin at one deep ensemble
with one prior, run for 8,000 and 2,000 steps, and are scored on held-out training rows. The file weighting.json of
--out holds the numbers, weighting.md the table; cells that were measured before stay in both. --falling measures the
multiplier on the images while T is constant and while it falls.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from benchmarks.table import measure as measure_run
from tools import results
from tools.command import Said
from tools.results import about, markdown, read, save
from torch import Tensor

import bdl
from bdl.data import TensorBatches
from bdl.tune.score import Score
from bdl.tune.trial import Problem, Trial, TrialItems

CHAINS, KEPT = 5, 100  # chains; samples of each, where no run of train.py decides
SPLIT = 1  # seed of the split of a table: not that of a published test set


@dataclass(frozen=True)
class Method:
    """A temperature of plain SGHMC."""

    label: str
    temperature: float = 1.0


METHODS = {
    "T = 1": Method("plain, T = 1"),
    **{f"T = {t}": Method(f"plain, T = {t}", t) for t in (0.3, 0.1, 0.03)},
}

SCORES = ("nll", "error")
SEEN = ("median", "largest", "last")  # multipliers


@dataclass(frozen=True)
class Case:
    """Training and held-out items, a network for them, its likelihood, and the steps of a run."""

    train: TrialItems
    held_out: TrialItems
    net: torch.nn.Module
    loss: Any
    steps: int = 8000


def write(record: dict[str, Any], path: Path) -> None:
    """The numbers as JSON, and the table beside them."""
    record |= {**about(), "cores": os.cpu_count(), "chains": CHAINS, "means": means(record["cells"])}
    record["load"] = round(os.getloadavg()[1], 1)  # processes that wanted the cores
    save(path, record, table(record))


def measurer(name: str, folder: Path, seed: int) -> Callable[[Method], dict[str, Any]]:
    if name in TABLES:
        return partial(run, TABLES[name](folder), seed)
    return partial(measure, *start(CASES[name](folder), seed), seed)


def run(data: list[str], seed: int, method: Method) -> dict[str, Any]:
    """Scores of a whole run of `scripts/train.py`, its multiplier and its verdict."""
    overrides = [
        "sampler=sghmc", f"sampler.temperature={method.temperature}", "data=csv", *data,
        f"data.split_seed={SPLIT}", f"chains={CHAINS}", "stacks=1", "processes=1", "logger=none",
    ]  # fmt: skip
    found = measure_run(overrides, seed)
    return {
        "nll": found["bma"]["nll"], "error": found["bma"]["rmse"], "start": found["start"]["nll"],
        "temperature": method.temperature,
        "kinetic_temperature": found["kinetic_temperature"] / method.temperature, "verdict": found["verdict"],
        "core_seconds": found["core_seconds"],
    }  # fmt: skip


def landsat(folder: Path) -> Case:
    data = bdl.data.LandsatDataModule(val_fraction=0.25)
    net = bdl.models.MLP([36, 100, 6], activation="relu")
    return Case(data.items("train", None), data.items("val", None), net, bdl.CategoricalNLL())


def cifar10_head(folder: Path) -> Case:
    """2,000 of the images to train on, and 500 held out."""
    held = np.load(folder / "cifar10_head.npz")
    x = torch.from_numpy(held["x_train"]).float().flatten(1)
    x, y = (x - x[:2000].mean()) / x[:2000].std(), torch.from_numpy(held["y_train"]).long()
    net = bdl.models.MLP([x.shape[1], 40, 10], activation="relu")
    return Case((x[:2000], y[:2000]), (x[2000:], y[2000:]), net, bdl.CategoricalNLL(), 2000)


CASES: dict[str, Callable[[Path], Case]] = {"landsat": landsat, "cifar10_head": cifar10_head}
TABLES: dict[str, Callable[[Path], list[str]]] = {
    "airfoil": lambda folder: ["data.path=package:airfoil.csv", "data.target=target"],
    "energy": lambda folder: [f"data.path={folder}/energy.csv", "data.target=heating"],
    "wine": lambda folder: [
        f"data.path={folder}/wine_quality_red.csv", "data.target=quality", "data.task=regression"
    ],
    "bike": lambda folder: [
        f"data.path={folder}/bike_sharing_hour.csv", "data.target=cnt", "data.drop=[instant,casual,registered]"
    ],
}  # fmt: skip
SETS = [*TABLES, *CASES]


def main(
    *,
    data: Annotated[Path, Said(metavar="DIR")],
    sets: Annotated[Sequence[str], Said(metavar="SET", choices=SETS)] = (),
    methods: Annotated[Sequence[str], Said(metavar="METHOD", choices=METHODS)] = tuple(METHODS),
    seeds: Annotated[Sequence[int], Said(metavar="SEED")] = (0, 1),
    falling: Annotated[bool, Said("the multiplier while T falls, and nothing else")] = False,
    out: Annotated[Path, Said(metavar="DIR")] = results.TABLES,
) -> None:
    torch.set_num_threads(1)
    path = out / "weighting.json"
    record = read(path, cells=[])
    if falling:
        record["falling"] = under_falling_t(data)
        write(record, path)
        return
    for seed in seeds:
        for name in sets or SETS:
            done = {(cell["set"], cell["method"], cell["seed"]) for cell in record["cells"]}
            wanted = [method for method in methods if (name, method, seed) not in done]
            if not wanted:
                continue
            numbers = measurer(name, data, seed)
            for method in wanted:
                cell = {"set": name, "method": method, "seed": seed} | numbers(METHODS[method])
                record["cells"].append(cell)
                write(record, path)
                print({k: v for k, v in cell.items() if k != "choices"}, flush=True)


def start(case: Case, seed: int) -> tuple[bdl.ChainStack, Case]:
    """The deep ensemble at which all methods begin."""
    stack = bdl.ChainStack(case.net, CHAINS, seed=seed)
    batches = TensorBatches(*case.train, 64, chains=CHAINS, seed=seed)
    bdl.AdamWStart(epochs=100).train(stack, batches, case.loss)
    return stack, case


def measure(stack: Any, case: Any, seed: int, method: Method) -> dict[str, Any]:
    """Scores of the averages over the samples of all chains, for the held-out items, and the settings found."""
    began, prior = time.process_time(), bdl.Gaussian(1.0)
    tuning = bdl.find_settings(
        stack, case.loss, case.train, temperature=method.temperature, steps=case.steps,
        given={"prior": prior}, seed=seed,
    )  # fmt: skip
    found, n = tuning.settings, len(case.train[1])
    burn_in = found["burn_in"]
    problem = Problem(stack, case.loss, case.train, n, min(found["batch_size"], n), method.temperature, seed)
    trial = Trial(problem, bdl.SGHMC(found["friction"]), prior, found["lr"], "run")
    trial.run_stably(burn_in)
    score, sums = Score(case.held_out), []

    def watch(trial: Trial) -> None:
        score(trial)
        sums.append(trial.predictions(case.held_out[0]).mean(0))

    trial.run_stably(case.steps - burn_in, watch, max(1, (case.steps - burn_in) // KEPT))
    wrong = torch.stack(sums).mean(0).view(len(case.held_out[1]), -1).argmax(1) != case.held_out[1]
    return {
        "nll": float(score.nll.mean()), "error": float(wrong.double().mean()),
        "temperature": method.temperature, "choices": [str(c) for c in tuning.choices],
        "core_seconds": round(time.process_time() - began, 1),
    }  # fmt: skip


def under_falling_t(folder: Path, steps: int = 600, t: float = 0.01) -> list[dict[str, Any]]:
    """Multipliers on the images at a constant T, and while T falls a hundredfold in the first 60 % of the steps.

    Weightings: that of experiment=cifar10/decay_both_awsghmc, and two bins in nats that meet below all energies.
    """
    case = cifar10_head(folder)
    problem = Problem(bdl.ChainStack(case.net, CHAINS), case.loss, case.train, len(case.train[1]), 128, t)
    two = bdl.AdaptiveWeight((1.5 - 1) / t * 1e5, edges=[-1.5e5, -0.5e5, 0.5e5], form="full")
    units, rows = bdl.AdaptiveWeight(9e4, units="temperature", pilot=100), []
    for name, weighting, falls in (
        ("units of T", units, False), ("units of T", units, True), ("two bins", two, False), ("two bins", two, True),
        ("two bins, zeta T constant", two, True),
    ):  # fmt: skip
        trial = Trial(problem, bdl.SGHMC(), bdl.Gaussian(), 0.01, f"{name} {falls}", weighting=weighting)
        seen = [advance(trial, min(1.0, k / (0.6 * steps)) if falls else 0.0, t, name) for k in range(steps)]
        late = torch.stack(seen[steps // 2 :])
        rows.append({
            "weighting": name, "falls": falls, "median": float(late.median()), "largest": float(late.max()),
            "last": float(seen[-1].mean()), "temperature": trial.sampler.param_groups[0]["temperature"],
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def advance(trial: Trial, progress: float, t: float, name: str) -> Tensor:
    """(C,) multipliers of one step at the temperature t / 100^progress."""
    group = trial.sampler.param_groups[0]
    group["temperature"] = t / 100**progress
    if "constant" in name:
        group["zeta"] = trial.weighting.zeta * 100**progress
    trial.run(1)
    return trial.sampler.multiplier.clone()


def means(cells: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """By set and method: means over the seeds with which all methods ran. "best" is the best of them."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name in SETS:
        runs = {m: {c["seed"]: c for c in cells if (c["set"], c["method"]) == (name, m)} for m in METHODS}
        seeds = set.intersection(*(set(by_seed) for by_seed in runs.values()))
        if not seeds:
            continue
        of_set = {
            m: {k: statistics.mean(by_seed[seed][k] for seed in seeds) for k in SCORES} | {"seeds": len(seeds)}
            for m, by_seed in runs.items()
        }
        best = min(METHODS, key=lambda m: of_set[m]["nll"])
        found[name] = of_set | {"best": {"method": best, **of_set[best]}}
    return found


def table(record: dict[str, Any]) -> str:
    """NLL / error on the held-out rows, means over the seeds; and multipliers under a falling T."""
    where = f"bdl {record['bdl']} on {record['device']}, {record['date']}, {record['chains']} chains"
    rows = []
    for name, of_set in record["means"].items():
        scores = [f"{of_set[m]['nll']:.3f} / {of_set[m]['error']:.3f}" for m in METHODS]
        rows.append([f"{name}, {of_set['best']['seeds']}", *scores])
    parts = [f"{where}\n", markdown(["set, seeds", *(m.label for m in METHODS.values())], rows)]
    if falling := record.get("falling"):
        rows = [
            [r["weighting"], "falls" if r["falls"] else "constant", *(f"{r[k]:.3f}" for k in SEEN)] for r in falling
        ]
        parts.append(markdown(["weighting", "T", *SEEN], rows))
    return "\n".join(parts)
