"""What control variates gain and cost: python scripts/experiment.py control_variates [OUT] writes a file.

regression: variances of a linear regression, whose posterior is known, over those of the posterior: for plain batches,
for plain batches of as many items as a controlled step costs, and for controlled ones. The numbers of steps are such
that all take about the same number of gradients, and all chains begin in the posterior. SMILE adapts first, apart.

network: noise_ratio of SGHMC on Landsat at batch 100, of a network of one hidden layer of 32 units, by the passes over
the data between two anchors. All runs go on from the states of one plain run.
"""

import functools
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import lightning as L
import torch
from tools.chains import QUIET
from tools.command import Said
from tools.results import RESULTS, about, save

import bdl
from experiments.control_variates.problem import BATCH, N, Regression

CHAINS, STEPS, SETTLE = 100, 500, 100  # controlled steps that are measured, and the ones before
EVERY = 2 * N // BATCH  # two passes
COST = 2.5
PASSES = (0.25, 0.5, 1, 2, 5, 20)


def dynamics(name: str) -> tuple[Any, float, int]:
    """A dynamics, its lr, and the steps in which it adapts."""
    return {
        "SGLD": (bdl.SGLD(), 0.05, 0),
        "SGHMC": (bdl.SGHMC(0.2), 0.01, 0),
        "SMILE": (bdl.SMILE(adapt_steps=400), 0.01, 400),
    }[name]


def variance(name: str, batch: int, steps: int, gradient: bdl.ControlVariate | None) -> dict[str, float]:
    """The largest variance along a direction and the mean one, over the posterior's, with costs by chain."""
    kind, lr, adapts = dynamics(name)
    run = Regression(kind, lr, CHAINS, batch=batch, gradient=gradient)
    run.run(1, adapts + SETTLE)
    before, start = run.gradients, time.process_time()
    v = run.run(steps)
    seconds, mean = time.process_time() - start, v.mean(0)
    loud = int(mean.argmax())
    return {
        "largest": float(mean[loud]),
        "largest_error": float(v[:, loud].std()) / math.sqrt(CHAINS),
        "mean": float(mean.mean()),
        "mean_error": float(v.mean(1).std()) / math.sqrt(CHAINS),
        "noise_ratio": float(run.sampler.noise_ratio.mean()),
        "steps": steps,
        "gradients": (run.gradients - before) / BATCH,  # of a batch of BATCH items
        "core_seconds": seconds,
    }


def regression() -> dict[str, Any]:
    """By dynamics: plain batches, larger ones, and controlled ones at about the same number of gradients."""
    found = {}
    for name in ("SGLD", "SGHMC", "SMILE"):
        found[name] = {
            "plain": variance(name, BATCH, int(COST * STEPS), None),
            "larger": variance(name, int(COST * BATCH), STEPS, None),
            "control": variance(name, BATCH, STEPS, bdl.ControlVariate(EVERY)),
        }
    return found


def fit(steps: int, state: Any, gradient: bdl.ControlVariate | None) -> tuple[Any, float]:
    """A module after so many steps of four chains from a state, and its core-seconds."""
    torch.manual_seed(0)
    data = bdl.data.LandsatDataModule(batch_size=100, chains=4)
    build = functools.partial(
        bdl.Sampler, dynamics=bdl.SGHMC(0.1), num_data=4435, lr=0.05, prior=bdl.Gaussian(0.4), gradient=gradient
    )
    module = bdl.BayesianModule(bdl.ChainStack(bdl.models.MLP((36, 32, 6)), 4), build)
    if state is not None:
        module.load_state_dict(state)
    start = time.process_time()
    L.Trainer(**QUIET, max_steps=steps).fit(module, data)
    return module, time.process_time() - start


def network(steps: int) -> Iterator[dict[str, float]]:
    """noise_ratio and costs without a control variate, and for every number of passes between anchors."""
    state = fit(5 * steps, None, None)[0].state_dict()
    pass_steps = 4435 // 100
    for passes in (None, *PASSES):
        every = None if passes is None else max(1, round(passes * pass_steps))
        module, seconds = fit(steps, state, None if every is None else bdl.ControlVariate(every))
        yield {
            "passes": passes or 0.0,
            "noise_ratio": float(module.sampler.noise_ratio.mean()),
            "gradients": 1.0 if every is None else module.sampler.evaluation.cost,
            "core_seconds": seconds,
        }


def main(out: Path = RESULTS / "control", *, steps: Annotated[int, Said("steps of a network's run")] = 1000) -> None:
    warnings.simplefilter("ignore")
    record = {**about(), "chains": CHAINS, "regression": regression(), "network": list(network(steps))}
    save(out / "control.json", record)
    for name, forms in record["regression"].items():
        for form, row in forms.items():
            print(name, form, {key: round(value, 3) for key, value in row.items()})
    for row in record["network"]:
        print(row)
