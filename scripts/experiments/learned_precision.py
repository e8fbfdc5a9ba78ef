"""A learned precision beside a search over fixed ones: python scripts/experiment.py learned_precision [TABLE.csv ...].

Every trial is the same short run of full-batch MCLMC from a deep ensemble, with the network of the default of tables,
fewer chains and fewer steps. The search makes a trial for each of three precisions and takes the one with the lowest
NLL on validation rows; learning makes one trial. The tables are airfoil, scikit-learn's diabetes, and those that are
named, whose target is the last column; of each, a random thousand rows at most. Targets are standardised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
from sklearn.datasets import load_diabetes
from tools.chains import posterior_of_table
from tools.command import Said
from tools.results import TABLES, about, markdown, origin, save
from torch import Tensor

import bdl
from bdl.data.frame import locate
from bdl.models import MLP

FIXED = (0.3, 1.0, 3.0)
CHAINS, STEPS, KEPT = 4, 2500, 50
ROWS = 1000
MIN_STD = 0.01  # the least standard deviation that a network predicts, in those of the target


def read(paths: Sequence[Path]) -> Iterator[tuple[str, Tensor]]:
    yield "airfoil", numbers(pd.read_csv(locate("package:airfoil.csv")))
    diabetes: Any = load_diabetes(as_frame=True)
    yield "diabetes", numbers(diabetes.frame)
    for path in paths:
        yield path.stem, numbers(pd.read_csv(path))


def numbers(frame: pd.DataFrame) -> Tensor:
    """(n, p + 1) standardised columns of a random choice of rows, the target last."""
    values = torch.tensor(frame.to_numpy("float64"))
    values = values[torch.randperm(len(values), generator=torch.Generator().manual_seed(0))[:ROWS]]
    std, mean = torch.std_mean(values[: 6 * len(values) // 10], 0)
    return ((values - mean) / std.where(std > 0, 1.0)).float()


def trial(values: Tensor, precision: float | bdl.Learned) -> dict[str, float]:
    """NLL on the validation and on the test rows, and core-seconds. Of ten rows six train, two validate, two test."""
    train, val, test = values.tensor_split([6 * len(values) // 10, 8 * len(values) // 10])
    net = MLP([values.shape[1] - 1, 16, 16, 16, 2], activation="tanh")
    likelihood, items, scores = bdl.HeteroscedasticNLL(min_std=MIN_STD), (train[:, :-1], train[:, -1:]), {}
    with posterior_of_table(
        net, likelihood, items, chains=CHAINS, steps=STEPS, kept=KEPT, precision=precision
    ) as (posterior, seconds):  # fmt: skip
        for name, rows in (("val", val.double()), ("test", test.double())):
            prediction: Any = posterior.predict(rows[:, :-1])
            scores[name] = -prediction.log_density(rows[:, -1:]).mean().item()
    return {**scores, "core_seconds": seconds}


def compared(values: Tensor) -> dict[str, Any]:
    fixed = {str(precision): trial(values, precision) for precision in FIXED}
    chosen = min(fixed, key=lambda name: fixed[name]["val"])
    return {"fixed": fixed, "chosen": chosen, "searched": fixed[chosen], "learned": trial(values, bdl.Learned())}


def table_of(record: dict[str, Any]) -> str:
    head = ["table", *(f"precision {p:g}" for p in FIXED), "chosen", "searched", "learned"]
    lines = []
    for name, row in record["tables"].items():
        nll = [f"{row['fixed'][str(p)]['test']:.3f}" for p in FIXED]
        lines.append([name, *nll, row["chosen"], f"{row['searched']['test']:.3f}", f"{row['learned']['test']:.3f}"])
    return f"{origin(record)}. NLL of the test rows.\n\n{markdown(head, lines)}"


def main(*tables: Annotated[Path, Said(metavar="TABLE.csv")]) -> None:
    torch.set_num_threads(1)
    settings = {"chains": CHAINS, "steps": STEPS, "kept": KEPT, "rows": ROWS, "hyperprior": [1.0, 1.0]}
    record: dict[str, Any] = {**about(), "settings": settings, "tables": {}}
    for name, values in read(tables):
        torch.manual_seed(0)
        record["tables"][name] = compared(values)
        print(name, record["tables"][name], flush=True)
        save(TABLES / "learned-precision.json", record, table_of(record))
