"""Adaptive weighting with nothing set by hand, beside plain SGHMC at T = 1 and with T tuned.

python scripts/bench_weighting.py --data DIR [--sets SET ...] [--methods METHOD ...] [--seeds 0 1] [--out DIR]
python scripts/bench_weighting.py --data DIR --falling [--out DIR]

DIR has bike_sharing_hour.csv, energy.csv and cifar10_head.npz, the first 2,500 training images as x_train and y_train;
airfoil and Landsat come with bdl. All methods begin at the same deep ensemble with the same prior, and
`bdl.find_settings` gives each as many trials. Scores are those of a part of the training rows that neither trials nor
chains see. The file weighting.json of --out holds the numbers, weighting.md the table; cells that were measured before
stay in both. --falling measures the multiplier on the images while T is constant and while it falls.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bdl
from bdl.data import TensorBatches, read_table
from bdl.disk.files import write_atomically
from bdl.run.machine import device_name
from bdl.tune.score import Score
from bdl.tune.trial import Items, Problem, Trial

RESULTS = Path(__file__).parent / "results" / "tables"
CHAINS, KEPT = 4, 100  # chains; samples of each
SPLIT = 1  # seed of the split of a table: not that of a published test set
SGHMC = lambda n: bdl.SGHMC()  # noqa: E731


@dataclass(frozen=True)
class Method:
    """A sampler, the temperature (None: tuned) and the weighting. lr: what the dynamics takes where none is found."""

    label: str
    temperature: float | None = 1.0
    weighting: Any = bdl.Flat()
    dynamics: Callable[[int], Any] = SGHMC
    lr: float | None = None


AUTO = bdl.AdaptiveWeight(zeta="auto")
METHODS = {
    "plain": Method("plain, T = 1"),
    "tuned": Method("plain, T tuned", None),
    "weighted": Method("weighted, zeta found", 1.0, AUTO),
    "awsgnht": Method("awsgnht, zeta found", 1.0, AUTO, lambda n: bdl.SGNHT()),
    "awpsgld": Method("awpsgld, zeta found", 1.0, AUTO, lambda n: bdl.PSGLD(adapt_steps=n // 5), 0.002),
}

HEADINGS = ["sampler", "set", "NLL", "error", "multiplier"]
SEEN = ("median", "largest", "last")  # multipliers
COMPARED = ["plain", "tuned", "weighted"]


@dataclass(frozen=True)
class Case:
    """Training and held-out items, a network for them, its likelihood, and the steps of a run."""

    train: Items
    held_out: Items
    net: torch.nn.Module
    loss: Any
    steps: int = 8000


def main() -> None:
    arguments = parse()
    torch.set_num_threads(1)
    path = arguments.out / "weighting.json"
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"cells": []}
    if arguments.falling:
        record["falling"] = falling(arguments.data)
        write(record, path)
        return
    for seed in arguments.seeds:
        for name in arguments.sets:
            wanted = [m for m in arguments.methods if not _has(record, name, m, seed)]
            stack, case = start(CASES[name](arguments.data), seed) if wanted else (None, None)
            for method in wanted:
                cell = {"set": name, "method": method, "seed": seed} | measure(stack, case, METHODS[method], seed)
                record["cells"].append(cell)
                write(record, path)
                print({k: v for k, v in cell.items() if k != "choices"}, flush=True)


def write(record: dict[str, Any], path: Path) -> None:
    """The numbers as JSON, and the table beside them."""
    record |= {"bdl": bdl.__version__, "device": device_name(), "cores": os.cpu_count()}
    record |= {"chains": CHAINS, "date": date.today().isoformat(), "means": means(record["cells"])}
    record["load"] = round(os.getloadavg()[1], 1)  # processes that wanted the cores
    write_atomically(path, (json.dumps(record, indent=1) + "\n").encode())
    write_atomically(path.with_suffix(".md"), table(record).encode())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--sets", nargs="+", choices=CASES, default=list(CASES), metavar="SET")
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=["plain", "tuned", "weighted"], metavar="METHOD"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], metavar="SEED")
    parser.add_argument("--falling", action="store_true", help="the multiplier while T falls, and nothing else")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR")
    return parser.parse_args()


def of_table(path: str | Path, target: str, hidden: tuple[int, ...] = (16, 16, 16), **reading: Any) -> Case:
    """A regression: training rows and held-out rows of a split of its own."""
    data = read_table(path, target, task="regression", split_seed=SPLIT, **reading)
    train, held_out = data.items("train", None), data.items("test", None)
    return Case(train, held_out, bdl.models.MLP([train[0].shape[1], *hidden, 2]), bdl.HeteroscedasticNLL())


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


CASES: dict[str, Callable[[Path], Case]] = {
    "airfoil": lambda folder: of_table("package:airfoil.csv", "target"),
    "energy": lambda folder: of_table(folder / "energy.csv", "heating"),
    "bike": lambda folder: of_table(
        folder / "bike_sharing_hour.csv", "cnt", drop=["instant", "dteday", "casual", "registered"]
    ),
    "landsat": landsat,
    "cifar10_head": cifar10_head,
}


def start(case: Case, seed: int) -> tuple[bdl.ChainStack, Case]:
    """The deep ensemble at which all methods begin."""
    stack = bdl.ChainStack(case.net, CHAINS, seed=seed)
    batches = TensorBatches(*case.train, 64, chains=CHAINS, seed=seed)
    bdl.AdamWStart(epochs=100).train(stack, batches, case.loss)
    return stack, case


def measure(stack: Any, case: Any, method: Method, seed: int) -> dict[str, Any]:
    """Settings, and the scores of the averages over the samples of all chains, for the held-out items."""
    began, dynamics = time.process_time(), method.dynamics(case.steps)
    given: dict[str, Any] = {"prior": bdl.Gaussian(1.0)}
    given |= {} if method.lr is None else {"plain_lr": method.lr}
    tuning = bdl.find_settings(
        stack, case.loss, case.train, dynamics=dynamics, weighting=method.weighting, temperature=method.temperature,
        steps=case.steps, given=given, seed=seed,
    )  # fmt: skip
    found = tuning.settings
    weighting = replace(method.weighting, **found.get("weighting", {}))
    dynamics = replace(dynamics, friction=found["friction"]) if "friction" in found else dynamics
    temperature = found.get("temperature", method.temperature)
    n, burn_in = len(case.train[1]), int(found.get("burn_in", 0.4 * case.steps))
    problem = Problem(stack, case.loss, case.train, n, min(found["batch_size"], n), temperature, seed)
    trial = Trial(problem, dynamics, given["prior"], found.get("lr", method.lr), "run", weighting=weighting)
    trial.run_stably(burn_in)
    score, sums, multipliers = Score(case.held_out), [], []

    def watch(trial: Trial) -> None:
        score(trial)
        sums.append(trial.predictions(case.held_out[0]).mean(0))
        multipliers.append(trial.sampler.multiplier.mean())

    diverged = trial.run_stably(case.steps - burn_in, watch, max(1, (case.steps - burn_in) // KEPT))
    return {
        "nll": float(score.nll.mean()), "error": error(torch.stack(sums).mean(0), case.held_out[1]),
        "multiplier": float(torch.stack(multipliers).mean()), "temperature": temperature, "diverged": diverged,
        "zeta": getattr(weighting, "zeta", 0.0), "burn_in": burn_in,
        "choices": [str(c) for c in tuning.choices], "core_seconds": round(time.process_time() - began, 1),
    }  # fmt: skip


def falling(folder: Path, steps: int = 600, t: float = 0.01) -> list[dict[str, Any]]:
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


def error(predicted: Tensor, y: Tensor) -> float:
    """Share of wrong classes, or the root of the mean squared error of standardised numbers."""
    predicted = predicted.view(len(y), -1)
    if y.dtype == torch.long:
        return float((predicted.argmax(1) != y).double().mean())
    return float((predicted - y.view(len(y), -1)).square().mean().sqrt())


def _has(record: dict[str, Any], name: str, method: str, seed: int) -> bool:
    return any((c["set"], c["method"], c["seed"]) == (name, method, seed) for c in record["cells"])


def means(cells: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """By set and method: means over the seeds with which all compared methods ran, and the temperatures found."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name in CASES:
        seeds = [{c["seed"] for c in cells if (c["set"], c["method"]) == (name, method)} for method in COMPARED]
        cells = [c for c in cells if c["set"] != name or c["seed"] in set.intersection(*seeds)]
        for method in METHODS:
            if runs := [c for c in cells if (c["set"], c["method"]) == (name, method)]:
                mean = {k: statistics.mean(c[k] for c in runs) for k in ("nll", "error", "multiplier")}
                mean |= {"seeds": len(runs), "temperatures": [c["temperature"] for c in runs]}
                found.setdefault(name, {})[method] = mean
    return found


def table(record: dict[str, Any]) -> str:
    """NLL / error on the held-out rows, means over the seeds; further samplers; and multipliers under a falling T."""
    about = f"bdl {record['bdl']} on {record['device']}, {record['date']}, {record['chains']} chains"
    compared, others = [["set, seeds", *(METHODS[m].label for m in COMPARED), "multiplier"]], [HEADINGS]
    for name, methods in record["means"].items():
        if methods.keys() >= set(COMPARED):
            scores = [f"{methods[m]['nll']:.3f} / {methods[m]['error']:.3f}" for m in COMPARED]
            seeds = min(methods[m]["seeds"] for m in COMPARED)
            compared.append([f"{name}, {seeds}", *scores, f"{methods['weighted']['multiplier']:.2f}"])
        for m in methods.keys() - set(COMPARED):
            mean = methods[m]
            others.append([m, name, f"{mean['nll']:.3f}", f"{mean['error']:.3f}", f"{mean['multiplier']:.2f}"])
    parts = [compared, sorted(others[1:]) and [others[0], *sorted(others[1:])]]
    if rows := record.get("falling"):
        text = [[r["weighting"], "falls" if r["falls"] else "constant", *(f"{r[k]:.3f}" for k in SEEN)] for r in rows]
        parts.append([["weighting", "T", *SEEN], *text])
    return "\n".join([f"{about}\n", *(_markdown(part) for part in parts if part)])


def _markdown(rows: list[list[str]]) -> str:
    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    main()
