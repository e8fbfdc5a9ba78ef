"""The tables of three problems, which lie in scripts/results/explore: `python scripts/experiment.py explore --make`."""

import numpy as np
import torch
from tools.results import RESULTS
from torch import Tensor

import bdl
from bdl.data import LandsatDataModule, read_table
from bdl.disk.files import write_atomically

FOLDER = RESULTS / "explore"
TRAIN, TEST = 200, 60  # rows
FEATURES = 8  # of a ResNet20: directions of largest variance


def make() -> None:
    """Write the tables, and the first layer of the network whose upper block is sampled."""
    write("head", *head())
    write("table", *digits())
    x, y, first = landsat()
    write("block", x, y)
    write_atomically(FOLDER / "block.safetensors", first)


def items(name: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test items of a table, as `experiment=explore/NAME` reads them."""
    table = read_table(str(FOLDER / f"{name}.csv"), "y", task="classification", split_column="split")
    return table.tensors("train"), table.tensors("test")


def write(name: str, x: np.ndarray, y: np.ndarray) -> None:
    """The first rows of x (n, p) are for training, the last for tests."""
    rows = [*range(TRAIN), *range(len(y) - TEST, len(y))]
    split = ["train"] * TRAIN + ["test"] * TEST
    lines = [",".join([*(f"x{i}" for i in range(x.shape[1])), "y", "split"])]
    lines += [",".join([*(f"{v:.4g}" for v in x[r]), f"c{y[r]}", s]) for r, s in zip(rows, split, strict=True)]
    write_atomically(FOLDER / f"{name}.csv", ("\n".join(lines) + "\n").encode())


def head() -> tuple[np.ndarray, np.ndarray]:
    """CIFAR-10 images as features of a ResNet20, see `bench.py leaderboard_features`, in their leading directions."""
    with np.load(RESULTS / "leaderboard" / "features.npz", allow_pickle=False) as archive:
        x = np.concatenate([archive["x_train"], archive["x_test"]]).astype(float)
        y = np.concatenate([archive["y_train"], archive["y_test"]])
    _, _, axes = np.linalg.svd(x[:2000] - x[:2000].mean(0), full_matrices=False)
    return (x - x[:2000].mean(0)) @ axes[:FEATURES].T, y


def digits() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's digits: the pixels that are not constant, 10 classes."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(y))
    x, y = np.asarray(x)[rows], np.asarray(y)[rows]
    return x[:, x[:TRAIN].std(0) > 0], y


def landsat() -> tuple[np.ndarray, np.ndarray, bytes]:
    """Landsat's pixels; and the network 36-8-2-6 that AdamW trained on other rows, as a file of weights."""
    from safetensors.torch import save

    data = LandsatDataModule()
    (x, y), (x_test, y_test) = data.tensors("train"), data.tensors("test")
    rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = bdl.models.MLP([36, 8, 2, 6], activation="tanh")
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        for _ in range(1000):
            batch = rows[TRAIN + torch.randint(0, len(y) - TRAIN, (128,))]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[batch]), y[batch].long()).backward()
            optimizer.step()
    x, y = torch.cat([x[rows[:TRAIN]], x_test[:TEST]]), torch.cat([y[rows[:TRAIN]], y_test[:TEST]])
    return x.numpy(), y.numpy(), save({k: v.contiguous() for k, v in net.state_dict().items()})
