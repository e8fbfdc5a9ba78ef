"""The problems of the leaderboard, and the average of predictions by which methods are compared."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from tools import results
from torch import Tensor

import bdl
from bdl.data import LandsatDataModule, read_table
from bdl.likelihoods import Likelihood
from bdl.models import MLP
from bdl.tune.batch import choose_batch

RESULTS = results.RESULTS / "leaderboard"
GRID = torch.linspace(-4, 4, 161)  # values, in standard deviations of y, at which predictive distributions are compared
Items = tuple[Tensor, Tensor]  # x (n, features), y (n,) classes or (n, 1) standardised values


@dataclass(frozen=True)
class Problem:
    """A network with one hidden layer or none, its data, and its posterior exp(-U) at T = 1.

    Args:
        title: what people read.
        hidden: units of the hidden layer; empty for a linear model.
        loss: the likelihood.
        precision: that of the prior `bdl.Gaussian`.
        train: all training items.
        test: the items whose predictions are compared.
    """

    title: str
    hidden: tuple[int, ...]
    loss: Likelihood
    precision: float | str
    train: Items
    test: Items

    @property
    def num_data(self) -> int:
        return len(self.train[1])

    @property
    def classes(self) -> bool:
        return self.loss.outputs == "logits"

    @property
    def sizes(self) -> tuple[int, ...]:
        outputs = int(self.train[1].max()) + 1 if self.classes else self.loss.per_target
        return (self.train[0].shape[1], *self.hidden, outputs)

    @property
    def prior(self) -> bdl.Gaussian:
        return bdl.Gaussian(self.precision)

    @functools.cached_property
    def batch(self) -> int:
        """Items of a mini-batch, as `tune=auto` chooses them; all of few."""
        weights = sum((a + 1) * b for a, b in zip(self.sizes, self.sizes[1:], strict=False))
        return int(choose_batch(self.num_data, weights).value)

    def stack(self, chains: int, seed: int, dropout: float = 0.0) -> bdl.ChainStack:
        return bdl.ChainStack(MLP(self.sizes, dropout=dropout), chains, seed=seed)

    def predict(self, outputs: Tensor) -> Tensor:
        """(C, n, G) probabilities of the classes, or distribution functions at the values of GRID."""
        if self.classes:
            return outputs.softmax(-1)
        return self.loss.cdf(outputs.unsqueeze(-2), GRID.unsqueeze(-1)).squeeze(-1)


@dataclass
class Average:
    """The mean predictive distribution of networks at the test items of a problem."""

    problem: Problem
    vector: Tensor = field(default_factory=lambda: torch.zeros(()))  # (n, G) sum of `Problem.predict`, double
    density: Tensor = field(default_factory=lambda: torch.zeros(()))  # (n,) sum of p(y | x), double
    count: int = 0

    def add(self, outputs: Tensor) -> None:
        """Let C networks with outputs (C, n, K) at the test items count."""
        y = self.problem.test[1]
        self.vector = self.vector + self.problem.predict(outputs).double().sum(0)
        self.density = self.density + (
            -self.problem.loss(outputs, y.expand(len(outputs), *y.shape))
        ).double().exp().sum(0)
        self.count += len(outputs)

    @property
    def mean(self) -> Tensor:
        return self.vector / self.count

    @property
    def nll(self) -> float:
        """Mean negative log predictive density of the test items, nats."""
        return float(-(self.density / self.count).log().mean())

    def distance(self, reference: Tensor) -> float:
        """The mean over the items of the total variation of class probabilities, ½ Σ |p - q|, or of W1 = ∫ |F - G| dy.

        W1 is the mean distance of the quantiles, in standard deviations of y. reference: (n, G).
        """
        unit = 0.5 if self.problem.classes else float(GRID[1] - GRID[0])
        return unit * float((self.mean - reference).abs().sum(-1).mean())


def landsat() -> Problem:
    data = LandsatDataModule()
    return Problem(
        "Landsat, 4,435 rows, 100 tanh units", (100,), bdl.CategoricalNLL(), 1.0, data.tensors("train"),
        evenly(data.tensors("test"), 300),
    )  # fmt: skip


def airfoil() -> Problem:
    data = read_table("package:airfoil.csv", "target", split_seed=0)
    title = "airfoil, 1,202 rows, 50 tanh units"
    return Problem(
        title, (50,), bdl.GaussianNLL(0.3), "fan_in", data.tensors("train"), evenly(data.tensors("test"), 150)
    )


def diabetes() -> Problem:
    """scikit-learn's diabetes: 331 rows to train on."""
    from sklearn.datasets import load_diabetes

    x, y = (torch.from_numpy(np.asarray(a)).float() for a in load_diabetes(return_X_y=True))
    rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    items = [standardised(a, rows[:331]) for a in (x, y.unsqueeze(1))]
    train, test = ((items[0][part], items[1][part]) for part in (rows[:331], rows[331:]))
    return Problem(
        "diabetes, 331 rows, 50 tanh units", (50,), bdl.HeteroscedasticNLL("softplus"), "fan_in", train, test
    )


def cifar() -> Problem:
    """The last layer of a ResNet20, see `bench.py leaderboard_features`."""
    with np.load(RESULTS / "features.npz", allow_pickle=False) as archive:
        parts = {name: torch.from_numpy(archive[name]) for name in archive.files}
    x = standardised(torch.cat([parts["x_train"], parts["x_test"]]).float(), torch.arange(len(parts["y_train"])))
    train, test = x.split([len(parts["y_train"]), len(parts["y_test"])])
    return Problem(
        "CIFAR-10, last layer of a ResNet20, 2,500 images", (), bdl.CategoricalNLL(), 1.0,
        (train, parts["y_train"].long()), evenly((test, parts["y_test"].long()), 300),
    )  # fmt: skip


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "landsat": landsat, "airfoil": airfoil, "diabetes": diabetes, "cifar": cifar,
}  # fmt: skip


def evenly(items: Items, most: int) -> Items:
    """At most so many of the items, evenly spaced."""
    rows = torch.linspace(0, len(items[1]) - 1, min(most, len(items[1]))).long()
    return items[0][rows], items[1][rows]


def standardised(x: Tensor, rows: Tensor) -> Tensor:
    """x (n, k) in units of the standard deviation of these rows around their mean."""
    return (x - x[rows].mean(0)) / x[rows].std(0).clamp_min(1e-6)
