"""Compares candidates for the defaults of tables of numbers, each on all tables, with one trial a cell.

python scripts/bench_candidates.py [--only NAME ...] [--out DIR] TABLE.csv...

A table has the target in the column `target`, and train or test in the column `split`; test rows are a part of the
training rows of a published split, so that no published test row decides. DIR/candidates.json holds the numbers, and
DIR/candidates.md the table; cells that were measured before stay in both.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import torch
from torch import Tensor

import bdl
from bdl.data import TensorBatches
from bdl.data.target import NumberTarget
from bdl.disk.files import write_atomically
from bdl.models import MLP
from bdl.run.machine import device_name

RESULTS = Path(__file__).parent / "results" / "tables"
KEPT = 100  # samples of a chain


@dataclass(frozen=True)
class Candidate:
    """Settings of a full-batch MCLMC run from a deep ensemble, for a regression on standardised columns."""

    hidden: Sequence[int] = (30, 30)
    activation: str = "tanh"
    link: str = "log_var"
    scale: str = "input"  # learned: one for all rows
    energy_var: float = 0.01
    precision: float = 1.0
    patience: int = 20  # epochs without progress that the deep ensemble allows
    steps: int = 10_000
    chains: int = 10

    def net(self, inputs: int) -> torch.nn.Module:
        net = MLP([inputs, *self.hidden, 2 if self.scale == "input" else 1], activation=self.activation)
        return net if self.scale == "input" else bdl.with_constant_scale(net)


DEEP = (16, 16, 16)
CANDIDATES = {
    "30-30": Candidate(),
    "30-30, patience 200": Candidate(patience=200),
    "30-30, energy_var 0.1": Candidate(energy_var=0.1),
    "30-30, 5,000 steps": Candidate(steps=5000),
    "30-30, precision 0.3": Candidate(precision=0.3),
    "30-30, softplus": Candidate(link="softplus"),
    "30-30, SiLU": Candidate(activation="silu"),
    "50-50": Candidate(hidden=(50, 50)),
    "16-16-16-16, ReLU": Candidate(hidden=(16,) * 4, activation="relu"),
    "16-16-16": Candidate(hidden=DEEP),
    "16-16-16, 20,000 steps": Candidate(hidden=DEEP, steps=20_000),
    "16-16-16, energy_var 0.1": Candidate(hidden=DEEP, energy_var=0.1),
    "16-16-16, precision 2": Candidate(hidden=DEEP, precision=2.0),
    "16-16-16, softplus": Candidate(hidden=DEEP, link="softplus"),
    "16-16-16, one scale": Candidate(hidden=DEEP, scale="learned"),
    "16-16-16-16": Candidate(hidden=(16,) * 4),
    "24-24-24": Candidate(hidden=(24,) * 3),
}


def main() -> None:
    arguments = parse()
    torch.set_num_threads(1)
    path = arguments.out / "candidates.json"
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"cells": {}}
    for name in arguments.only or CANDIDATES:
        for table in arguments.tables:
            cells = record["cells"].setdefault(name, {})
            if table.stem not in cells:
                cells[table.stem] = measure(CANDIDATES[name], *read(table))
                record |= {"bdl": bdl.__version__, "device": device_name(), "date": date.today().isoformat()}
                record["settings"] = {name: asdict(candidate) for name, candidate in CANDIDATES.items()}
                write_atomically(path, (json.dumps(record, indent=1) + "\n").encode())
                write_atomically(path.with_suffix(".md"), table_of(record).encode())
    print(table_of(record))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE.csv")
    parser.add_argument("--only", nargs="+", choices=CANDIDATES, metavar="NAME", help="candidates")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR")
    return parser.parse_args()


def read(path: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs and targets of the training and of the test rows, standardised by the training rows."""
    frame = pd.read_csv(path)
    inputs = frame.columns.drop(["split", "target"])
    values = torch.tensor(frame[[*inputs, "target"]].to_numpy(np.float64))
    is_train = torch.tensor((frame["split"] == "train").to_numpy())
    mean, std = values[is_train].mean(0), values[is_train].std(0, correction=0)
    values = ((values - mean) / torch.where(std > 0, std, torch.ones_like(std))).float()
    train, test = values[is_train], values[~is_train]
    return train[:, :-1], train[:, -1:], test[:, :-1], test[:, -1:]


def measure(candidate: Candidate, x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor) -> dict[str, Any]:
    """NLL and RMSE on the test rows, standardised, and seconds of one core for the start and the samples."""
    net, min_std = candidate.net(x.shape[1]), NumberTarget.learn(pd.Series(y[:, 0].numpy()), "y", "regression").min_std
    likelihood = bdl.HeteroscedasticNLL(link=candidate.link, min_std=min_std)  # type: ignore[arg-type]
    stack, burn_in = bdl.ChainStack(net, candidate.chains), int(0.4 * candidate.steps)
    batches = TensorBatches(x, y, len(x), chains=candidate.chains)
    dynamics = bdl.MCLMC(energy_var=candidate.energy_var, energy_var_start=0.5, adapt_steps=burn_in)
    build = functools.partial(
        bdl.Sampler, dynamics=dynamics, num_data=len(x), lr=1e-3, prior=bdl.Gaussian(candidate.precision)
    )
    began = time.process_time()
    bdl.AdamWStart(patience=candidate.patience).train(stack, batches, likelihood)
    with TemporaryDirectory() as folder:
        keep = bdl.schedules.EveryStep(burn_in, (candidate.steps - burn_in) // KEPT)
        trainer = L.Trainer(
            max_steps=candidate.steps, max_epochs=-1, accelerator="cpu", devices=1, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=folder, callbacks=[bdl.CollectSamples(keep, full_energy=False)],
        )  # fmt: skip
        trainer.fit(bdl.BayesianModule(stack, build, loss=likelihood), batches)
        seconds = time.process_time() - began
        prediction: Any = bdl.Posterior.load(folder, net.double(), likelihood=likelihood).predict(x_test.double())
    y_test = y_test.double()
    return {
        "nll": -prediction.log_density(y_test).mean().item(),
        "rmse": (prediction.mean - y_test).square().mean().sqrt().item(),
        "core_seconds": round(seconds, 1),
    }


def table_of(record: dict[str, Any]) -> str:
    """One row for each candidate: NLL / RMSE on each table."""
    tables = list(dict.fromkeys(table for cells in record["cells"].values() for table in cells))
    lines = [["candidate", *tables], ["---"] * (1 + len(tables))]
    for name, cells in record["cells"].items():
        lines.append([name, *(shown(cells[table]) if table in cells else "–" for table in tables)])
    about = f"bdl {record['bdl']}, one of {os.cpu_count()} cores of {record['device']}, {record['date']}. NLL / RMSE."
    return f"{about}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def shown(cell: dict[str, Any]) -> str:
    return f"{cell['nll']:.3f} / {cell['rmse']:.3f}"


if __name__ == "__main__":
    main()
