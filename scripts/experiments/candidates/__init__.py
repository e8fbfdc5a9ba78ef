"""Compares candidates for the defaults of tables of numbers, each on all tables, with one trial a cell.

python scripts/experiment.py candidates --data FOLDER [--only NAME ...] [--tables TABLE ...] [--seed 0] [--out DIR]

FOLDER has the files of which candidates/tables.py makes the tables. DIR/candidates.json holds the numbers, and
DIR/candidates.md the tables; cells that were measured before stay in both. A summary compares all candidates on the
tables that all of them have, and a second one those that were measured wherever the default was: the cells of larger
tables cost a minute or two each, and finalists are enough there. Another seed than 0, of the networks and the chains,
has files of its own, candidates-seed-1.json and the like.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import rankdata
from tools import results
from tools.chains import posterior_of_table
from tools.command import Said
from tools.results import TABLES, about, markdown, origin, save

import bdl
from bdl.data.target import NumberTarget
from bdl.errors import ConfigError
from bdl.models import MLP
from experiments.candidates.tables import SOURCES, Table, make_table

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


SAME_STEPS = "16-16-16"  # the default's settings with the steps that most candidates have
DEFAULT = "16-16-16, 20,000 steps"


def main(
    *,
    data: Annotated[Path, Said(metavar="FOLDER")],
    only: Annotated[Sequence[str], Said("candidates", "NAME", CANDIDATES)] = tuple(CANDIDATES),
    tables: Annotated[Sequence[str], Said(metavar="TABLE", choices=SOURCES)] = tuple(SOURCES),
    seed: Annotated[int, Said("of the networks and the chains")] = 0,
    out: Annotated[Path, Said(metavar="DIR")] = TABLES,
) -> None:
    torch.set_num_threads(1)
    path = out / ("candidates.json" if seed == 0 else f"candidates-seed-{seed}.json")
    record = read(path)
    for table in tables:
        rows = make_table(table, data)
        for name in only:
            cells = record["cells"].setdefault(name, {})
            if table not in cells:
                cells[table] = measure(CANDIDATES[name], rows, seed)
                write(record, path)
    print(report(record))


def read(path: Path) -> dict[str, Any]:
    """The cells that were measured before. Raises ConfigError where another version of bdl measured them."""
    record = results.read(path, cells={}, bdl=bdl.__version__)
    if record["bdl"] != bdl.__version__:
        raise ConfigError(
            f"{path} was measured with bdl {record['bdl']}, and this is {bdl.__version__}: delete it, or choose "
            "another folder with --out"
        )
    return record


def write(record: dict[str, Any], path: Path) -> None:
    """The numbers as JSON, in the order of `CANDIDATES`, and the tables beside them."""
    record["cells"] = {name: record["cells"][name] for name in CANDIDATES if name in record["cells"]}
    record |= about()
    record["settings"] = {name: asdict(candidate) for name, candidate in CANDIDATES.items()}
    record["summaries"] = summaries(record["cells"])
    save(path, record, report(record))


def measure(candidate: Candidate, table: Table, seed: int) -> dict[str, Any]:
    """NLL and RMSE on the test rows, standardised, and seconds of one core for the start and the samples."""
    x, y, y_test, c = table.x, table.y, table.y_test.double(), candidate
    min_std = NumberTarget.learn(pd.Series(y[:, 0].numpy()), "y", "regression").min_std
    likelihood = bdl.HeteroscedasticNLL(link=c.link, min_std=min_std)  # type: ignore[arg-type]
    with posterior_of_table(
        c.net(x.shape[1]), likelihood, (x, y), chains=c.chains, steps=c.steps, kept=KEPT, precision=c.precision,
        energy_var=c.energy_var, patience=c.patience, seed=seed,
    ) as (posterior, seconds):  # fmt: skip
        prediction: Any = posterior.predict(table.x_test.double())
    return {
        "nll": -prediction.log_density(y_test).mean().item(),
        "rmse": (prediction.mean - y_test).square().mean().sqrt().item(),
        "core_seconds": seconds,
    }


def summaries(cells: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Round one, of tables that all candidates have; and the finalists, which have all tables of the default."""
    shared = [table for table in SOURCES if all(table in mine for mine in cells.values())]
    of_default = [table for table in SOURCES if table in cells.get(DEFAULT, {})]
    finalists = {name: mine for name, mine in cells.items() if all(table in mine for table in of_default)}
    rounds = [(shared, cells)] if shared else []
    if len(of_default) > len(shared) and len(finalists) > 1:
        rounds.append((of_default, finalists))
    return [{"tables": tables, "candidates": summary(mine, tables)} for tables, mine in rounds]


def summary(cells: dict[str, dict[str, Any]], tables: Sequence[str]) -> dict[str, dict[str, float]]:
    """How each candidate does over the tables, beside the others; differences of the NLL are in nats."""
    nll = {name: np.array([mine[table]["nll"] for table in tables]) for name, mine in cells.items()}
    ranks = rankdata(list(nll.values()), axis=0).mean(1)
    found = {}
    for name, rank in zip(nll, ranks, strict=True):
        row = {"rank": float(rank)}
        row["core_seconds"] = sum(float(cells[name][table]["core_seconds"]) for table in tables)
        for label, reference in (("default", DEFAULT), ("same_steps", SAME_STEPS)):
            if reference in nll:
                more = nll[name] - nll[reference]
                row |= {f"to_{label}": float(more.mean()), f"better_than_{label}": float(np.sum(more < 0))}
        found[name] = row
    return found


def report(record: dict[str, Any]) -> str:
    """One row for each candidate: NLL / RMSE on each table, and what they amount to."""
    cells = record["cells"]
    tables = [table for table in SOURCES if any(table in mine for mine in cells.values())]
    rows = [[name, *(shown(mine.get(table)) for table in tables)] for name, mine in cells.items()]
    where = f"{origin(record, f'one of {os.cpu_count()} cores of')}. NLL / RMSE."
    parts = [where, markdown(["candidate", *tables], rows)]
    head = ["candidate", "mean rank", "NLL to the default", f"NLL to {SAME_STEPS}", "better on", "core-seconds"]
    for group in record["summaries"]:
        parts += [
            f"Over {', '.join(group['tables'])}. The default is {DEFAULT}. Better on so many tables than {SAME_STEPS}.",
            markdown(head, [summary_row(name, row) for name, row in group["candidates"].items()]),
        ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def summary_row(name: str, row: dict[str, float]) -> list[str]:
    to, same, better = (row.get(key, math.nan) for key in ("to_default", "to_same_steps", "better_than_same_steps"))
    return [name, f"{row['rank']:.1f}", f"{to:+.3f}", f"{same:+.3f}", f"{better:.0f}", f"{row['core_seconds']:.0f}"]


def shown(cell: dict[str, Any] | None) -> str:
    return "–" if cell is None else f"{cell['nll']:.3f} / {cell['rmse']:.3f}"
