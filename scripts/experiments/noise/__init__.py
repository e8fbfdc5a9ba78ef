"""The noise of batches by direction, and what each sampler leaves of it: python scripts/experiment.py noise [PART ...].

`law`: variances of a linear regression (see problem.py) over the posterior's, direction by direction, where
batches bring as much noise as SGHMC injects in the mean over coordinates. Every sampler adapts in 3,600 steps and is
measured in 5,400. `nuts`: variances of the weights of a logistic regression over those of NUTS. `cost`: CPU seconds of
a step through Trainer.fit beside SGHMC's, on one thread, once its directions are fixed and while it learns them.

results/tables/noise-directions.json holds the numbers and noise-directions.md the tables; parts that are not measured
stay as they are.
"""

import functools
import json
import statistics
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import lightning as L
import numpy as np
import torch
from literature.targets import Chains, LogisticRegression, simulate_logistic
from tools.chains import QUIET, Clock
from tools.command import Said
from tools.results import ROOT, TABLES, about, markdown, origin, read, save
from torch import Tensor

import bdl
from bdl.data import LandsatDataModule, TensorBatches
from bdl.engine.noise_draws import contrasts
from bdl.models import MLP, ResNet
from experiments.noise import problem

NUTS = ROOT / "tests" / "samplers" / "nuts_logistic.json"
ADAPT, STEPS, CHAINS = 3600, 5400, 48
LAW: dict[str, tuple[Any, float, bool]] = {  # dynamics, its mean noise ratio or lr, whether batches are independent
    "SGHMC": (bdl.SGHMC(), 1.0, True),
    "SGNHT": (bdl.SGNHT(), 1.0, True),
    "SGHMC, variance per coordinate subtracted": (bdl.SGHMC(grad_var="estimated"), 0.5, True),
    "SMILE": (bdl.SMILE(adapt_steps=ADAPT), 1.0, True),
    **{f"CCHMC, rank {k}": (bdl.CCHMC(rank=k, adapt_steps=ADAPT), 1.0, True) for k in (3, 6, 10, 15, 30)},
    "SGHMC, shuffled epochs": (bdl.SGHMC(), 1.0, False),
    "CCHMC, rank 30, shuffled epochs": (bdl.CCHMC(rank=30, adapt_steps=ADAPT), 1.0, False),
}


def law() -> dict[str, Any]:
    rows = {}
    for name, (dynamics, ratio, independent) in LAW.items():
        chains = problem.Regression(dynamics, problem.lr_of(ratio), CHAINS, replacement=independent)
        v = chains.run(STEPS, ADAPT)
        mean, sixth = v.mean(0), problem.SIXTH
        rows[name] = {
            "noise_ratio": ratio,
            "coldest": mean.min().item(),
            "hottest": mean.max().item(),
            "soft": mean[:sixth].mean().item(),
            "stiff": mean[-sixth:].mean().item(),
            "mean": mean.mean().item(),
            "se": (v.std(0) / CHAINS**0.5).max().item(),
            "t_eff": chains.sampler.t_eff.mean().item(),
            "directions": [round(value, 4) for value in mean.tolist()],
        }
        print(name, {k: value for k, value in rows[name].items() if k != "directions"}, flush=True)
    return rows


def nuts() -> dict[str, Any]:
    """Variances of 10 weights, 200 chains, batches of 50 of 1,000 items with replacement."""
    target, reference = LogisticRegression(*simulate_logistic(1000, 10, seed=1)), json.loads(NUTS.read_text())
    start = target.mode() + 0.05 * torch.randn(200, 10, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    rows = {}
    for name, dynamics in {
        "SGHMC": bdl.SGHMC(),
        "SGNHT": bdl.SGNHT(),
        "CCHMC, rank 10": bdl.CCHMC(rank=10, adapt_steps=1200),
    }.items():
        chains = Chains(target, dynamics, start, lr=0.04, batch=50, seed=1)
        draws = contrasts(50) / 50**0.5
        chains.sampler.extras["noise_draws"] = functools.partial(product, draws, chains.sampler.extras["per_example"])
        w = chains.run(3000, every=3, burn_in=1200)
        v = (w - w.mean((0, 1))).square().mean((0, 1)).numpy() / np.array(reference["std"]) ** 2
        rows[name] = {"lowest": v.min(), "highest": v.max(), "mean": v.mean()}
        print(name, rows[name], flush=True)
    return rows


def product(rows: Tensor, each: Callable[[], Tensor]) -> Tensor:
    return rows @ each()


def fit(net: Any, dynamics: Any, loader: Iterable[Any], num_data: int, steps: int) -> Clock:
    clock = Clock()
    build = functools.partial(bdl.Sampler, dynamics=dynamics, num_data=num_data, lr=1e-4)
    L.Trainer(**QUIET, max_steps=steps, callbacks=[clock]).fit(bdl.BayesianModule(net, build), loader)
    return clock


def images() -> tuple[Any, Any, int]:
    x, y = torch.randn(640, 3, 32, 32), torch.randint(10, (640,))
    return ResNet(20), TensorBatches(x, y, 64, replacement=True), 640


def landsat() -> tuple[Any, Any, int]:
    data = LandsatDataModule(batch_size=600, chains=8, replacement=True)
    data.prepare_data()
    data.setup("fit")
    return bdl.ChainStack(MLP([36, 100, 6], activation="tanh"), 8), data.train_dataloader(), 4435


def cost(rounds: int = 1) -> dict[str, Any]:
    """Medians over rounds in which samplers run in turn. While CCHMC learns, it reads the noise each tenth step."""
    rows = {}
    for name, problem_of, first, count in (
        ("ResNet20, batch 64", images, 40, 30),
        ("Landsat, 8 chains", landsat, 80, 500),
    ):
        runs = {
            "SGHMC": (bdl.SGHMC(), first),
            "CCHMC": (bdl.CCHMC(rank=20, adapt_steps=first), first),
            "CCHMC, learning": (bdl.CCHMC(rank=20, adapt_steps=10 * first), 2 * first),
        }
        times: dict[str, list[float]] = {label: [] for label in runs}
        for _ in range(rounds):
            for label, (dynamics, since) in runs.items():
                torch.manual_seed(0)
                net, loader, num_data = problem_of()
                clock = fit(net, dynamics, loader, num_data, since + count)
                times[label].append(1e3 * clock.mean(since))
        rows[name] = {label: statistics.median(each) for label, each in times.items()}
        rows[name]["ratio"] = rows[name]["CCHMC"] / rows[name]["SGHMC"]
        rows[name]["ratio, learning"] = rows[name]["CCHMC, learning"] / rows[name]["SGHMC"]
        print(name, rows[name], flush=True)
    return rows


PARTS = {"law": law, "nuts": nuts, "cost": cost}
HEADS = {
    "law": ("Variance over the posterior's", ("coldest", "hottest", "soft", "stiff", "mean", "t_eff")),
    "nuts": ("Variance over that of NUTS", ("lowest", "highest", "mean")),
    "cost": ("CPU milliseconds of a step", ("SGHMC", "CCHMC", "CCHMC, learning", "ratio", "ratio, learning")),
}


def table_of(record: dict[str, Any]) -> str:
    texts = []
    for part, (title, columns) in HEADS.items():
        if measured := record.get(part):
            rows = [[name, *(f"{row[c]:.2f}" for c in columns)] for name, row in measured["rows"].items()]
            texts.append(f"{title}: {origin(measured)}.\n\n{markdown(['', *columns], rows)}")
    return "\n".join(texts)


def main(*parts: Annotated[str, Said(metavar="PART", choices=PARTS)]) -> None:
    torch.set_num_threads(1)
    path = TABLES / "noise-directions.json"
    record = read(path)
    for part in parts or PARTS:
        record |= about()
        record[part] = {**about(), "rows": PARTS[part]()}
        save(path, record, table_of(record))
