"""Weights of chains on tables for development: uniform, stacked, pulled to uniform, and fewer, longer chains.

python scripts/experiment.py stacking --data FOLDER [--tables TABLE ...] [--seeds 0 1] [--steps 5000] [--out DIR]

Every candidate costs about as much: 10 chains of so many steps, or 4 of 2.5 times as many. Stacked weights come from
leave-one-out densities of the training rows, or from a fifth of them that is then left out of sampling. The file
DIR/stacking.json holds the gains over the uniform average on the test part, nats a row, and DIR/stacking.md the table;
cells that were measured before stay.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from tools import results
from tools.chains import posterior_of_table
from tools.command import Said
from tools.results import TABLES, about, markdown, origin, save
from torch import Tensor

import bdl
from bdl.data.split import train_test_rows
from bdl.data.target import NumberTarget
from bdl.models import MLP
from bdl.posterior.diagnostics import Draws, rhat, rhat_trend
from bdl.posterior.outputs import LabelledOutputs
from bdl.posterior.stacking import UNRELIABLE, leave_one_out, mixture_log_density, stacking_weights
from experiments.candidates.tables import SOURCES, make_table

CHAINS, LONG, KEPT = 10, 2.5, 100  # chains; how many times as long 4 of them are; samples of a chain
PULLS = (0.0, 1.0, 3.0, 10.0)  # rows of uniform weight for each chain
Rows = tuple[Tensor, Tensor]
Logs = Mapping[str, np.ndarray]  # log densities (chains, draws, rows) by part of the rows, and `quantities`


def main(
    *,
    data: Annotated[Path, Said(metavar="FOLDER")],
    tables: Annotated[Sequence[str], Said(metavar="TABLE", choices=SOURCES)] = tuple(SOURCES),
    seeds: Annotated[Sequence[int], Said(metavar="SEED")] = (0, 1),
    steps: Annotated[int, Said("of each of 10 chains")] = 5000,
    out: Annotated[Path, Said(metavar="DIR")] = TABLES,
) -> None:
    torch.set_num_threads(1)
    path = out / "stacking.json"
    record = results.read(path, cells=[])
    done = {(cell["table"], cell["seed"], cell["steps"]) for cell in record["cells"]}
    for table, seed in ((table, seed) for table in tables for seed in seeds):
        if (table, seed, steps) not in done:
            whole, part, long = (logs_of(table, data, seed, *each) for each in arms(steps))
            record["cells"].append({"table": table, "seed": seed, "steps": steps, **cell(whole, part, long)})
            record |= about()
            save(path, record, report(record))
    print(report(record))


def arms(steps: int) -> Sequence[tuple[int, int, bool]]:
    """Chains, steps, and whether validation rows are held out."""
    return (CHAINS, steps, False), (CHAINS, steps, True), (4, int(LONG * steps), False)


def logs_of(table: str, data: Path, seed: int, chains: int, steps: int, hold: bool) -> Logs:
    """Log densities of the rows by the networks of a run, nats."""
    rows = make_table(table, data)
    x, y, val = rows.x, rows.y, None
    if hold:
        train, held = train_test_rows(len(y), 0.2, 1)
        x, y, val = rows.x[train], rows.y[train], (rows.x[held], rows.y[held])
    min_std = NumberTarget.learn(pd.Series(y[:, 0].numpy()), "y", "regression").min_std
    likelihood, net = bdl.HeteroscedasticNLL(min_std=min_std), MLP([x.shape[1], 16, 16, 16, 2], activation="tanh")
    with posterior_of_table(net, likelihood, (x, y), chains=chains, steps=steps, kept=KEPT, seed=seed) as (
        posterior,
        _,
    ):
        test = (rows.x_test, rows.y_test)
        parts = {"train": (x, y), "test": test, **({} if val is None else {"val": val})}
        logs = {name: log_densities(posterior, likelihood, part) for name, part in parts.items()}
        evaluation = posterior.evaluate([(test[0].double(), test[1].double())])
        return {**logs, "quantities": evaluation.quantities}


def log_densities(posterior: bdl.Posterior, likelihood: Any, rows: Rows) -> np.ndarray:
    """(chains, draws, n) log densities of the rows by every network, nats."""
    x, y = (part.double() for part in rows)
    labelled = LabelledOutputs(posterior.stored, posterior.batches([(x, y)]), likelihood)
    draws = Draws(posterior.chains)
    for group in posterior.stored.groups(posterior.weights().by_key):
        for block, outputs in labelled.blocks(group):
            draws.add(block.chains, likelihood.log_density(outputs.double(), y).sum(-1).numpy())
    return draws.array()


def cell(whole: Logs, part: Logs, long: Logs) -> dict[str, Any]:
    """R-hat and its trend, and the gain over the uniform average of all rows' 10 chains, with its standard error."""
    test, uniform = of_chains(whole["test"]), mixture(of_chains(whole["test"]))
    each = [leave_one_out(logs) for logs in whole["train"]]
    loo = np.array([logs for logs, _ in each])
    held, val = of_chains(part["test"]), of_chains(part["val"])
    averages = {f"leave-one-out, pull {pull:g}": mixture(test, stacking_weights(loo, pull)) for pull in PULLS}
    averages |= {"a fifth held out, uniform": mixture(held)}
    averages |= {"a fifth held out, pull 3": mixture(held, stacking_weights(val, 3.0))}
    averages |= {f"4 chains, {LONG:g} times the length": mixture(of_chains(long["test"]))}
    gains = {name: average - uniform for name, average in averages.items()}
    return {
        "rhat": float(np.nanmax(rhat(whole["quantities"]))),
        "trend": rhat_trend(whole["quantities"]),
        "rhat of 4 chains": float(np.nanmax(rhat(long["quantities"]))),
        "unreliable": float(np.mean([k > UNRELIABLE for _, k in each])),
        "uniform": float(uniform.mean()),
        "gains": {name: [float(g.mean()), float(g.std() / math.sqrt(len(g)))] for name, g in gains.items()},
    }


def of_chains(logs: np.ndarray) -> np.ndarray:
    """(chains, n) log densities of each chain's own average."""
    return np.logaddexp.reduce(logs, 1) - math.log(logs.shape[1])


def mixture(log_p: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """(n,) log densities of the average over chains; uniform without weights."""
    return mixture_log_density(log_p, np.full(len(log_p), 1 / len(log_p)) if weights is None else weights)


def report(record: dict[str, Any]) -> str:
    cells = sorted(record["cells"], key=lambda c: -c["rhat"])
    names = list(cells[0]["gains"])
    head = ["table, seed", "steps", "R-hat", "trend", "k > 0.7", "uniform", *names]
    rows = [
        [f"{c['table']}, {c['seed']}", f"{c['steps']:,}", f"{c['rhat']:.2f}", f"{c['trend']:.2f}",
         f"{100 * c['unreliable']:.0f} %", f"{c['uniform']:.3f}", *(gain(c["gains"][name]) for name in names)]
        for c in cells
    ]  # fmt: skip
    where = f"{origin(record)}. Log density of the uniform average of 10 chains on test rows, nats, and gains over it."
    return f"{where}\n\n{markdown(head, rows)}"


def gain(of: Sequence[float]) -> str:
    return f"{of[0]:+.3f} ± {of[1]:.3f}"
