"""Landsat in two parts, one after the other: python scripts/experiment.py continual [OUT] writes a table.

The rows are parted by their brightness, the mean of the 36 numbers of a row, at the median of the training rows. A
network is trained on the dark rows and sampled there; its posterior is the prior of a run on the bright rows, which
sees no dark row. Beside it: training that goes on with the bright rows alone, a run on them around 0, a run centred at
the trained network, and a run on all rows.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tools.results import RESULTS, about, markdown, save
from torch import Tensor, nn

import bdl
from bdl.data import TensorBatches

Part = tuple[Tensor, Tensor]
CHAINS, BATCH, SEEDS = 4, 100, (0, 1, 2)
STEPS, LR, FRICTION = 20_000, 0.02, 0.1


def parts() -> dict[str, dict[str, Part]]:
    """Training and test rows of the dark part, the bright part and both."""
    data = bdl.data.LandsatDataModule()
    (x, y), (u, v) = data.tensors("train"), data.tensors("test")
    median = x.mean(1).median()
    split = {"dark": (x.mean(1) <= median, u.mean(1) <= median), "bright": (x.mean(1) > median, u.mean(1) > median)}
    every = {name: {"train": (x[a], y[a]), "test": (u[b], v[b])} for name, (a, b) in split.items()}
    return every | {"both": {"train": (x, y), "test": (u, v)}}


def trained(net: nn.Module, part: Part, seed: int, epochs: int = 60) -> nn.Module:
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    x, y = part
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    return net


def sampled(net: nn.Module, part: Part, prior: Any, seed: int, folder: Path) -> bdl.Posterior:
    """The posterior of a part, by chains that begin at the network."""
    loader = TensorBatches(*part, BATCH, chains=CHAINS, seed=seed)
    return bdl.sample(
        net, bdl.CategoricalNLL(), loader, folder, steps=STEPS, lr=LR, dynamics=bdl.SGHMC(friction=FRICTION),
        chains=CHAINS, start="given", prior=prior, seed=seed,
    )  # fmt: skip


def scores(probs: Any, tests: dict[str, Part]) -> dict[str, float]:
    """Accuracy in % and NLL in nats on the test rows of every part. probs: x -> (n, K)."""
    found = {}
    for name, (x, y) in tests.items():
        p = probs(x)
        found[f"{name} accuracy"] = 100 * float((p.argmax(1) == y).float().mean())
        found[f"{name} NLL"] = float(-p[torch.arange(len(y)), y].log().mean())
    return found


def one_seed(seed: int, folder: Path) -> dict[str, dict[str, float]]:
    every = parts()
    tests = {name: part["test"] for name, part in every.items()}
    dark, bright, both = (every[name]["train"] for name in ("dark", "bright", "both"))
    torch.manual_seed(seed)
    net = trained(bdl.models.MLP((36, 16, 6)), dark, seed)
    weights = {name: value.clone() for name, value in net.state_dict().items()}

    def again() -> nn.Module:
        net.load_state_dict(weights)
        return net

    def of(posterior: bdl.Posterior) -> dict[str, float]:
        predict: Any = posterior.predict
        return scores(lambda x: predict(x).probs, tests)

    rows = {"trained on dark": scores(lambda x: net(x).softmax(1).detach(), tests)}
    first = sampled(net, dark, bdl.Gaussian(1.0), seed, folder / "dark")
    rows["posterior of dark"] = of(first)
    tuned = trained(again(), bright, seed)
    rows["training goes on with bright"] = scores(lambda x: tuned(x).softmax(1).detach(), tests)
    priors = {
        "N(0, 1)": bdl.Gaussian(1.0), "N(trained, 1)": bdl.Gaussian(1.0, mean="start"),
        "GaussianPrior, rank 0": bdl.GaussianPrior.of(first), "GaussianPrior, rank 50": bdl.GaussianPrior.of(first, 50),
    }  # fmt: skip
    for name, prior in priors.items():
        again()
        if isinstance(prior, bdl.GaussianPrior):
            net.load_state_dict(prior.means)
        rows[f"bright under {name}"] = of(sampled(net, bright, prior, seed, folder / name.replace(" ", "")))
    rows["posterior of both"] = of(sampled(again(), both, bdl.Gaussian(1.0), seed, folder / "both"))
    return rows


def table(rows: dict[str, dict[str, float]]) -> str:
    """Markdown of means over seeds."""
    heads = list(next(iter(rows.values())))
    cells = [
        [name, *(f"{row[head]:.1f}" if "accuracy" in head else f"{row[head]:.3f}" for head in heads)]
        for name, row in rows.items()
    ]
    return markdown(["", *heads], cells)


def main(out: Path = RESULTS / "continual", *, seeds: Sequence[int] = SEEDS) -> None:
    with tempfile.TemporaryDirectory() as folder:
        each = [one_seed(seed, Path(folder) / str(seed)) for seed in seeds]
    mean = {
        name: {head: sum(one[name][head] for one in each) / len(each) for head in row} for name, row in each[0].items()
    }
    save(out / "continual.json", {**about(), "seeds": list(seeds), "each": each}, table(mean))
    print(table(mean))
