"""Laws of a regression's target on development tables: normal, hurdle, log-normal, gamma; equal networks and lengths.

Each cell trains `bdl.BayesianMLPRegressor(loss=...)` on three quarters of the training rows and scores it on the
others; test rows are not touched. Scores are in standard deviations of the target, so that tables compare: CRPS, RMSE,
and the mean log probability of an interval of a tenth of a standard deviation around y, which laws with and without
masses both have.

    python scripts/experiment.py repeated_values OUT.jsonl [--uci FOLDER]  # resumable: a line for each cell
"""

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_diabetes
from tools.command import Said

from bdl.data.target_law import log_gain
from bdl.sklearn import BayesianMLPRegressor

STEPS, CHAINS, ROWS = 4000, 4, 600
SHARES = (0.02, 0.05, 0.1, 0.2, 0.48)
WIDTH = 0.05  # half of the interval, in standard deviations of the target


def main(
    out: Path,
    *,
    uci: Annotated[Path | None, Said("of tables NAME.csv, whose last column is the target", "FOLDER")] = None,
    seeds: Annotated[int, Said("of each table")] = 2,
    only: Annotated[str | None, Said("kind of tables", choices=("repeated", "positive"))] = None,
) -> None:
    done = {line["cell"] for line in map(json.loads, out.read_text().splitlines())} if out.exists() else set()
    for seed in range(seeds):
        for name, (x, y, losses) in tables(seed, uci, only):
            for loss in losses:
                cell = f"{name} {loss} {seed}"
                if cell not in done:
                    line = {"cell": cell, "table": name, "loss": loss, "seed": seed, **scores(x, y, loss, seed)}
                    with out.open("a") as f:
                        f.write(json.dumps(line) + "\n")
                    print(line, flush=True)


def scores(x: np.ndarray, y: np.ndarray, loss: str, seed: int) -> dict[str, float]:
    """Of one estimator, on a quarter of the rows."""
    order = np.random.default_rng(100 + seed).permutation(len(y))
    held, seen = order[: len(y) // 4], order[len(y) // 4 :]
    began = time.process_time()
    model = BayesianMLPRegressor(loss=loss, chains=CHAINS, samples=50, steps=STEPS, random_state=seed)  # type: ignore[arg-type]
    prediction = model.fit(x[seen], y[seen]).predictive(x[held])
    truth, std = torch.tensor(y[held])[:, None], float(y[seen].std())
    near = prediction.cdf(truth + WIDTH * std) - prediction.below(truth - WIDTH * std)
    low, high = prediction.interval(0.9)
    return {
        "crps": float(prediction.crps(truth).mean()) / std,
        "rmse": math.sqrt(float((prediction.mean - truth).square().mean())) / std,
        "log_probability": float(near.double().clamp_min(1e-7).log().mean()),
        "coverage_90": float(((low <= truth) & (truth <= high)).double().mean()),
        "lowest": float(low.min()),
        "gain": log_gain(y[seen]) if y.min() > 0 else math.nan,
        "core_seconds": round(time.process_time() - began, 1),
    }


def tables(
    seed: int, uci: Path | None, only: str | None
) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray, tuple[str, ...]]]]:
    if only != "positive":
        for share in SHARES:
            yield f"made, zeros {share:g}, predictable", (*zeros(seed, share, 2.0), ("normal", "hurdle"))
        for share in (0.48,):
            yield f"made, zeros {share:g}, at random", (*zeros(seed, share, 0.0), ("normal", "hurdle"))
        for share in (0.02, 0.05, 0.2):
            yield f"made, capped {share:g}", (*capped(seed, share), ("normal", "hurdle"))
        yield "made, both bounds", (*both(seed), ("normal", "hurdle"))
    if only != "repeated":
        laws = ("normal", "lognormal", "gamma")
        for name, spread, noise in (("little skewed", 0.3, 0.1), ("skewed", 0.8, 0.3), ("heavy", 1.5, 0.6)):
            yield f"made, {name}", (*positive(seed, spread, noise), laws)
        yield "made, additive errors", (*additive(seed), laws)
        diabetes: Any = load_diabetes()
        yield "diabetes", (diabetes.data, diabetes.target.astype(float), laws)
        for path in sorted(uci.glob("*.csv")) if uci else ():
            frame = pd.read_csv(path).sample(ROWS, random_state=seed)
            y = frame.iloc[:, -1].to_numpy(float)
            if y.min() > 0:
                yield path.stem, (frame.iloc[:, :-1].to_numpy(float), y, laws)


def zeros(seed: int, share: float, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Positive amounts, of which a share is 0; the inputs tell which with this strength."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(ROWS, 6))
    index = strength * (x[:, 0] - 0.6 * x[:, 1]) + random.logistic(size=ROWS)
    amount = np.exp(0.5 * x[:, 2] + 0.4 * np.sin(2 * x[:, 3]) + 0.5 * random.normal(size=ROWS))
    return x, np.where(index > np.quantile(index, 1 - share), 0.0, amount)


def capped(seed: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """A smooth function with normal errors, of which the largest share is cut off."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(ROWS, 5))
    y = x[:, 0] + 0.5 * x[:, 1] ** 2 + 0.5 * random.normal(size=ROWS)
    return x, np.minimum(y, np.quantile(y, 1 - share))


def both(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Shares between 0 and 1, some of which are 0 or 1."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(ROWS, 5))
    y = 0.5 + 0.4 * x[:, 0] - 0.3 * np.tanh(x[:, 1] * x[:, 2]) + 0.25 * random.normal(size=ROWS)
    return x, y.clip(0, 1)


def positive(seed: int, spread: float, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Positive numbers whose logarithm is a smooth function with normal errors."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(ROWS, 5))
    return x, np.exp(spread * (x[:, 0] + np.sin(x[:, 1] * x[:, 2])) + noise * random.normal(size=ROWS))


def additive(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Positive and skewed numbers with normal errors of one size: the logarithm is wrong."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(ROWS, 5))
    return x, np.maximum(2 + np.exp(0.8 * x[:, 0]) + 0.4 * random.normal(size=ROWS), 0.05 + 0.1 * random.random(ROWS))
