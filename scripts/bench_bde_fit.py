"""Whole fits of bde (MILE) beside the runs of bench_table.py: the same rows in the same units, on the same machine.

python scripts/bench_bde_fit.py NAME [--seeds 0 1 2] [--out DIR] [key=value ...]

NAME is a table of bench_table.py that exists, and begins with airfoil, bike or landsat. The keys are those of the
group `data` of scripts/train.py, such as path=hour.csv split_seed=0. Settings are those of bde's own benchmark for the
regressions, and for Landsat those of the regressor in its README with layers of 30 units. Every seed is a process,
whose user and system time count from the start of the interpreter to the predictions. DIR/NAME.json gets the numbers,
and the table in DIR/NAME.md a row for their mean.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_table import RESULTS, add, cpu_of_children, write
from omegaconf import OmegaConf
from torch import Tensor
from torch.nn.functional import nll_loss, softplus

from bdl.data import LandsatDataModule, read_table
from bdl.errors import ConfigError
from bdl.run.console import one_line_errors
from bdl.run.machine import device_name

BENCHMARK = {
    "n_members": 10, "hidden_layers": [16, 16, 16, 16], "epochs": 1200, "validation_split": 0.15, "lr": 1e-3,
    "weight_decay": 1e-4, "warmup_steps": 50000, "n_samples": 1000, "n_thinning": 10, "patience": 20,
}  # fmt: skip
README = {
    "n_members": 8, "hidden_layers": [30, 30], "epochs": 200, "validation_split": 0.15, "lr": 1e-3,
    "weight_decay": 1e-4, "warmup_steps": 5000, "n_samples": 2000, "n_thinning": 2, "patience": 10,
}  # fmt: skip
AIRFOIL = {"path": "package:airfoil.csv", "target": "target", "split_seed": 42}
BIKE = {"target": "cnt", "drop": ["instant", "dteday", "casual", "registered"], "task": "regression"}
PROBLEMS = {"airfoil": (BENCHMARK, AIRFOIL), "bike": (BENCHMARK, BIKE), "landsat": (README, {})}  # settings, data


def main() -> None:
    arguments, keys = parse()
    if arguments.fit:
        print(json.dumps(fit(arguments.name, keys, arguments.seeds[0])))
        return
    path = arguments.out / f"{arguments.name}.json"
    if not path.exists():
        raise ConfigError(f"{path} does not exist: run bench_table.py {arguments.name} first")
    record = json.loads(path.read_text())
    about = {"settings": problem(arguments.name)[0], "data": keys, "version": version("sklearn-contrib-bde")}
    earlier = record.get("bde", {})
    runs = earlier["runs"] if about.items() <= earlier.items() else []
    record["bde"] = {**about, "cores": os.cpu_count(), "device": device_name(), "date": date.today().isoformat()}
    record["bde"]["runs"] = runs
    for seed in arguments.seeds:
        add(runs, measure(arguments.name, keys, seed))
        write(record, path)


def parse() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME", help="of the table")
    parser.add_argument("keys", nargs="*", metavar="key=value", help="of the group data")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], metavar="SEED")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--fit", action="store_true", help="fit the first seed in this process and print its scores")
    arguments = parser.parse_intermixed_args()
    return arguments, arguments.keys


def problem(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of bde and keys of the data. Raises ConfigError for a table of another kind."""
    for known, found in PROBLEMS.items():
        if name.startswith(known):
            return found
    raise ConfigError(f"{name!r} begins with none of {', '.join(PROBLEMS)}")


def measure(name: str, keys: list[str], seed: int) -> dict[str, Any]:
    """Scores, core-seconds and seconds of a process that fits one seed. Raises ConfigError if it fails."""
    command = [sys.executable, __file__, name, *keys, "--fit", "--seeds", str(seed)]
    environment = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={os.cpu_count()}"}  # one chain a core
    before, began = cpu_of_children(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment | dict(os.environ))
    if done.returncode:  # without its bars of progress, a line for each of 50,000 steps
        raise ConfigError(f"seed {seed} failed: {done.stderr.strip().splitlines()[-1]}")
    seconds, cpu = time.perf_counter() - began, cpu_of_children() - before
    scores = json.loads(done.stdout.splitlines()[-1])
    return {"seed": seed, **scores, "core_seconds": round(cpu, 1), "seconds": round(seconds, 1)}


def fit(name: str, keys: list[str], seed: int) -> dict[str, float]:
    """Scores of the test rows, in standard deviations of the target."""
    from bde import BdeClassifier, BdeRegressor  # type: ignore[import-not-found]
    from bde.loss import CategoricalCrossEntropy, GaussianNLL  # type: ignore[import-not-found]

    settings, data = problem(name)
    datamodule = read_table(**data | parsed(keys)) if data else LandsatDataModule(**parsed(keys))
    (x, y), (x_test, y_test) = (datamodule.splits[split] for split in ("train", "test"))
    if not y.is_floating_point():
        classifier = BdeClassifier(**settings, loss=CategoricalCrossEntropy(), seed=seed)
        classifier.fit(x.numpy(), y.numpy())
        return scores_of_classes(torch.tensor(classifier.predict_proba(x_test.numpy())), y_test)
    regressor = BdeRegressor(**settings, loss=GaussianNLL(), seed=seed)
    regressor.fit(x.numpy(), y.numpy().ravel())
    outputs = torch.tensor(np.asarray(regressor.predict(x_test.numpy(), raw=True)))  # (members, samples, n, 2)
    return scores_of_values(outputs.double().flatten(0, 1), y_test.double().squeeze(-1))


def parsed(keys: list[str]) -> dict[str, Any]:
    return OmegaConf.to_container(OmegaConf.from_dotlist(keys))  # type: ignore[return-value]


def scores_of_classes(probs: Tensor, y: Tensor) -> dict[str, float]:
    """probs (n, K), y (n,)."""
    accuracy = (probs.argmax(-1) == y).double().mean()
    return {"accuracy": accuracy.item(), "nll": nll_loss(probs.double().log(), y).item()}


def scores_of_values(outputs: Tensor, y: Tensor) -> dict[str, float]:
    """outputs (samples, n, 2) before softplus makes the second one a standard deviation, y (n,)."""
    mean, std = outputs[..., 0], softplus(outputs[..., 1]) + 1e-6
    law = torch.distributions.Normal(mean, std)
    center, total = mean.mean(0), (mean.var(0, correction=0) + std.square().mean(0)).sqrt()
    return {
        "rmse": (center - y).square().mean().sqrt().item(),
        "nll_normal": -torch.distributions.Normal(center, total).log_prob(y).mean().item(),
        "nll": -(law.log_prob(y).logsumexp(0) - math.log(len(mean))).mean().item(),
    }


if __name__ == "__main__":
    with one_line_errors():
        main()
