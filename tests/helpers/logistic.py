"""A logistic regression on 50 of 1,000 items a step, whose moments under NUTS nuts_logistic.json has."""

import json
from pathlib import Path

import numpy as np
import torch
from literature.targets import Chains, LogisticRegression, simulate_logistic

X, Y = simulate_logistic(1000, 10, seed=1)
STORED = Path(__file__).parents[1] / "samplers" / "nuts_logistic.json"
NUTS = {name: np.array(values) for name, values in json.loads(STORED.read_text()).items()}


def chains(dynamics, lr: float, seed: int = 1) -> Chains:
    """200 of them, that start near the mode."""
    target, random = LogisticRegression(X, Y), torch.Generator().manual_seed(0)
    start = target.mode() + 0.05 * torch.randn(200, 10, generator=random, dtype=torch.float64)
    return Chains(target, dynamics, start, lr=lr, batch=50, seed=seed)
