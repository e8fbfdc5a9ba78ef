"""A deep ensemble and MC dropout, small and in plain torch, as others write them.

Both have two hidden layers of 64 ReLU units. Adam trains them on batches of 64 until a tenth of the rows, which they do
not see, has not improved for 30 epochs. Inputs and targets are standardised.
"""

import copy
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

HIDDEN, BATCH, EPOCHS, PATIENCE = 64, 64, 500, 30
LR, DECAY = 3e-3, 1e-4
MEMBERS = 5  # Lakshminarayanan et al. 2017
RATE, PASSES = 0.1, 100  # of dropout; Gal and Ghahramani 2016
LEAST_LOG_VAR = 2 * math.log(1e-3)


def ensemble(
    x: np.ndarray, y: np.ndarray, x_test: np.ndarray, classes: int, seed: int,
    members: Iterable[int] = range(MEMBERS), **settings: Any,
) -> np.ndarray:  # fmt: skip
    """(members, n, outputs): (mean, std) of numbers, or probabilities."""
    nets = (trained(x, y, classes, 0.0, seed * MEMBERS + member, **settings) for member in members)
    return np.stack([outputs(net.eval(), x_test, classes) for net in nets])


def dropout(
    x: np.ndarray, y: np.ndarray, x_test: np.ndarray, classes: int, seed: int, rate: float = RATE, **settings: Any
) -> np.ndarray:
    """(passes, n, outputs), as `ensemble`, of one network whose dropout stays on."""
    net = trained(x, y, classes, rate, seed, **settings).train()
    return np.stack([outputs(net, x_test, classes) for _ in range(PASSES)])


def trained(
    x: np.ndarray, y: np.ndarray, classes: int, rate: float, seed: int, hidden: int = HIDDEN, lr: float = LR,
    decay: float = DECAY,
) -> nn.Module:  # fmt: skip
    """The network as it was when it predicted the validation rows best."""
    torch.manual_seed(seed)
    items = torch.tensor(x).float(), torch.tensor(y).long() if classes else torch.tensor(y).float()
    val, train = torch.randperm(len(y)).tensor_split([max(2, len(y) // 10)])
    drop = [nn.Dropout(rate)] if rate else []
    layers = [nn.Linear(x.shape[1], hidden), nn.ReLU(), *drop, nn.Linear(hidden, hidden), nn.ReLU(), *drop]
    net = nn.Sequential(*layers, nn.Linear(hidden, classes or 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, weight_decay=decay)
    best, state, waited = math.inf, net.state_dict(), 0
    for _ in range(EPOCHS):
        for rows in train[torch.randperm(len(train))].split(BATCH):
            optimizer.zero_grad()
            loss(net.train()(items[0][rows]), items[1][rows], classes).backward()
            optimizer.step()
        with torch.no_grad():
            reached = loss(net.eval()(items[0][val]), items[1][val], classes).item()
        waited += 1
        if reached < best:
            best, state, waited = reached, copy.deepcopy(net.state_dict()), 0
        if waited >= PATIENCE:
            break
    net.load_state_dict(state)
    return net


def loss(out: Tensor, y: Tensor, classes: int) -> Tensor:
    if classes:
        return nn.functional.cross_entropy(out, y)
    mean, log_var = out.unbind(-1)
    return nn.functional.gaussian_nll_loss(mean, y, log_var.clamp_min(LEAST_LOG_VAR).exp())


@torch.no_grad()
def outputs(net: nn.Module, x: np.ndarray, classes: int) -> np.ndarray:
    out = net(torch.tensor(x).float()).double()
    if classes:
        return out.softmax(-1).numpy()
    mean, log_var = out.unbind(-1)
    return torch.stack([mean, (0.5 * log_var.clamp_min(LEAST_LOG_VAR)).exp()], -1).numpy()
