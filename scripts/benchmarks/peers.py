"""Compares `BayesianMLPRegressor()` with what others offer for a table, each at its own defaults, on the same rows.

python scripts/bench.py peers TABLE.csv ... [--only METHOD ...] [--bde PYTHON] [--out DIR]

A table has a column `split` of train and test, a column `target`, and numbers elsewhere. All columns are standardised
by the training rows, so scores of tables compare. Every cell is a process, whose user and system time count from the
start of the interpreter to the predictions. OUT/peers.json holds the cells, those that are there stay, and
OUT/peers.md the table. bde (MILE) runs at the settings of its own benchmark for regressions, in the interpreter
PYTHON that has it; of its chains, those that give NaN are left out and counted.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from scipy.special import logsumexp
from scipy.stats import norm
from tools.command import Said
from tools.processes import one_chain_a_core, timed
from tools.results import SCRIPTS, TABLES, about, markdown, origin, read, save

BDE = {
    "n_members": 10, "hidden_layers": [16, 16, 16, 16], "epochs": 1200, "validation_split": 0.15, "lr": 1e-3,
    "weight_decay": 1e-4, "warmup_steps": 50000, "n_samples": 1000, "n_thinning": 10, "patience": 20,
}  # fmt: skip
GP_ROWS = 2_000  # beyond them the cube of the rows is more than minutes


def rows_of(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Inputs (n, columns) and targets (n,) of the training and of the test rows, standardised by the training rows."""
    frame = pd.read_csv(path)
    values = frame[[*frame.columns.drop(["split", "target"]), "target"]].to_numpy(np.float64)
    is_train = (frame["split"] == "train").to_numpy()
    mean, std = values[is_train].mean(0), values[is_train].std(0)
    train, test = np.split(
        (values - mean)[np.argsort(~is_train, kind="stable")] / np.where(std > 0, std, 1), [is_train.sum()]
    )
    return train[:, :-1], train[:, -1], test[:, :-1], test[:, -1]


def measure(method: str, table: Path, python: str) -> dict[str, Any]:
    """Scores and core-seconds of a process of its own, which runs this file."""
    environment = one_chain_a_core() | {"PYTHONPATH": str(SCRIPTS)}
    done, cost = timed([python, __file__, method, str(table)], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{method} failed on {table}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1]) | {"core_seconds": cost["core_seconds"]}


def fit_bdl(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> dict[str, Any]:
    import torch

    from bdl.sklearn import BayesianMLPRegressor

    prediction = BayesianMLPRegressor(random_state=0).fit(x, y).predictive(x_test)
    return {
        "nll": -prediction.log_density(torch.as_tensor(y_test)).mean().item(),
        "rmse": rmse(prediction.mean.numpy().ravel(), y_test),
    }


def fit_bde(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> dict[str, Any]:
    from bde import BdeRegressor  # type: ignore[import-not-found]
    from bde.loss import GaussianNLL  # type: ignore[import-not-found]

    regressor = BdeRegressor(**BDE, loss=GaussianNLL(), seed=0).fit(x.astype(np.float32), y.astype(np.float32))
    outputs = np.asarray(regressor.predict(x_test.astype(np.float32), raw=True), np.float64)  # (chains, samples, n, 2)
    lost = np.isnan(outputs).any((1, 2, 3))
    outputs = outputs[~lost].reshape(-1, *outputs.shape[-2:])
    mean, std = outputs[..., 0], np.logaddexp(0, outputs[..., 1]) + 1e-6
    density = logsumexp(norm.logpdf(y_test, mean, std), axis=0) - np.log(len(mean))
    return {"nll": -density.mean(), "rmse": rmse(mean.mean(0), y_test), "lost_chains": int(lost.sum())}


def fit_process(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> dict[str, Any]:
    """A Gaussian process with a length for each column, from two starts; none beyond `GP_ROWS`."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    if len(x) > GP_ROWS:
        return {}
    lengths: Any = np.full(x.shape[1], 3.0)  # a column's each, where scikit-learn's annotation says one number
    kernel = ConstantKernel() * RBF(lengths, (1e-2, 1e3)) + WhiteKernel(0.1, (1e-8, 10.0))
    process = GaussianProcessRegressor(kernel, n_restarts_optimizer=1, random_state=0).fit(x, y)
    mean, std = process.predict(x_test, return_std=True)
    return {"nll": -norm.logpdf(y_test, mean, std).mean(), "rmse": rmse(mean, y_test)}


def fit_boosting(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> dict[str, Any]:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return {"rmse": rmse(HistGradientBoostingRegressor(random_state=0).fit(x, y).predict(x_test), y_test)}


METHODS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], dict[str, Any]]] = {
    "bdl": fit_bdl, "bde": fit_bde, "Gaussian process": fit_process, "boosting": fit_boosting,
}  # fmt: skip


def main(
    *tables: Annotated[Path, Said(metavar="TABLE.csv")],
    only: Annotated[Sequence[str] | None, Said(metavar="METHOD", choices=METHODS)] = None,
    bde: Annotated[str, Said("interpreter that has bde", "PYTHON")] = sys.executable,
    out: Annotated[Path, Said(metavar="DIR")] = TABLES,
) -> None:
    path = out / "peers.json"
    record = read(path, cells={})
    for method in only or METHODS:
        for table in tables:
            cells = record["cells"].setdefault(method, {})
            if table.stem not in cells:
                cells[table.stem] = measure(method, table, bde if method == "bde" else sys.executable)
                record |= {"cores": os.cpu_count(), **about()}
                save(path, record, table_of(record))
    print(table_of(record))


def rmse(mean: np.ndarray, y: np.ndarray) -> float:
    return float(np.sqrt(np.mean((mean - y) ** 2)))


def table_of(record: dict[str, Any]) -> str:
    """One row for each table: NLL / RMSE / core-seconds of each method."""
    methods = record["cells"]
    tables = list(dict.fromkeys(table for cells in methods.values() for table in cells))
    rows = [[table, *(shown(cells.get(table)) for cells in methods.values())] for table in tables]
    where = origin(record, f"{record['cores']} cores of")
    return f"{where}. NLL / RMSE, core-seconds.\n\n" + markdown(["table", *methods], rows)


def shown(cell: dict[str, Any] | None) -> str:
    if not cell or "rmse" not in cell:
        return "–"
    scores = " / ".join(f"{cell[score]:.3f}" for score in ("nll", "rmse") if score in cell)
    lost = f", {cell['lost_chains']} chains lost" if cell.get("lost_chains") else ""
    return f"{scores}, {cell['core_seconds']:.0f} s{lost}"


if __name__ == "__main__":  # one cell
    print(json.dumps(METHODS[sys.argv[1]](*rows_of(Path(sys.argv[2])))))
