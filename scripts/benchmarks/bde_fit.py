"""Whole fits of bde (MILE) beside the runs of `bench.py table`: the same rows in the same units, on the same machine.

python scripts/bench.py bde_fit NAME [--seeds 0 1 2] [--out DIR] [key=value ...]

NAME is a table of `bench.py table` that exists, and begins with airfoil, bike or landsat. The keys are those of the
group `data` of scripts/train.py, such as path=hour.csv split_seed=0. Settings are those of bde's own benchmark for the
regressions, and for Landsat those of the regressor in its README with layers of 30 units. Every seed is a process,
whose user and system time count from the start of the interpreter to the predictions. DIR/NAME.json gets the numbers,
and the table in DIR/NAME.md a row for their mean.
"""

import json
import math
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from omegaconf import OmegaConf
from tools.command import Said
from tools.processes import one_chain_a_core, timed
from tools.results import SCRIPTS, TABLES, about, read, save
from torch import Tensor
from torch.nn.functional import nll_loss, softplus

from bdl.data import LandsatDataModule, read_table
from bdl.errors import ConfigError
from benchmarks.table import SEEDS, add, table

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


def main(
    name: Annotated[str, Said("of the table", "NAME")],
    *keys: Annotated[str, Said("of the group data", "key=value")],
    seeds: Annotated[Sequence[int], Said(metavar="SEED")] = SEEDS,
    out: Annotated[Path, Said(metavar="DIR")] = TABLES,
    fit: Annotated[bool, Said("fit the first seed in this process and print its scores")] = False,
) -> None:
    if fit:
        print(json.dumps(fitted(name, keys, seeds[0])))
        return
    path = out / f"{name}.json"
    if not path.exists():
        raise ConfigError(f"{path} does not exist: run bench.py table {name} first")
    record = read(path)
    same = {"settings": problem(name)[0], "data": list(keys), "version": version("sklearn-contrib-bde")}
    earlier = record.get("bde", {})
    runs = earlier["runs"] if same.items() <= earlier.items() else []
    record["bde"] = {**same, "cores": os.cpu_count(), **about(), "runs": runs}
    for seed in seeds:
        add(runs, measure(name, keys, seed))
        save(path, record, table(record))


def problem(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of bde and keys of the data. Raises ConfigError for a table of another kind."""
    for known, found in PROBLEMS.items():
        if name.startswith(known):
            return found
    raise ConfigError(f"{name!r} begins with none of {', '.join(PROBLEMS)}")


def measure(name: str, keys: Sequence[str], seed: int) -> dict[str, Any]:
    """Scores, core-seconds and seconds of a process that fits one seed. Raises ConfigError if it fails."""
    command = [sys.executable, str(SCRIPTS / "bench.py"), "bde_fit", name, *keys, "--fit", "--seeds", str(seed)]
    done, cost = timed(command, capture_output=True, text=True, env=one_chain_a_core())
    if done.returncode:  # without its bars of progress, a line for each of 50,000 steps
        raise ConfigError(f"seed {seed} failed: {done.stderr.strip().splitlines()[-1]}")
    return {"seed": seed, **json.loads(done.stdout.splitlines()[-1]), **cost}


def fitted(name: str, keys: Sequence[str], seed: int) -> dict[str, float]:
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


def parsed(keys: Sequence[str]) -> dict[str, Any]:
    return OmegaConf.to_container(OmegaConf.from_dotlist(list(keys)))  # type: ignore[return-value]


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
