"""The learning coefficient of a network that learns in steps: python scripts/experiment.py llc_training [OUT].

A toy model of superposition (Elhage et al. 2022; Chen et al. 2023): six features, of which each item has one, pass
through two hidden units, f(x) = relu(W'W x + b). Gradient descent rests on a plateau for each arrangement of the
columns of W. `bdl.learning_coefficient` measures the network at steps along the way, and OUT gets table and picture.
"""

import time
from pathlib import Path
from typing import Any

import torch
from tools.results import RESULTS, ROOT, about, save
from torch import Tensor, nn

import bdl

FEATURES, HIDDEN, N = 6, 2, 1000
STARTS = 32  # networks that are trained
SHOWN = 26  # the one in the picture: its error falls most after step 1,250
LR = 0.1
STEPS = (0, 100, 200, 300, 400, 500, 600, 750, 900, 1000, 1100, 1250, 1400, 1600, 2000, 2500, 3000)
LOSS = bdl.GaussianNLL(1.0)
LOCALIZATION = 10.0  # holds the chains at a plateau, which is no minimum yet; at 1 and less noise they leave it
PICTURE = ROOT / "docs" / "pictures" / "llc-training.png"


class Superposition(nn.Module):
    """f(x) = relu(W'W x + b): x (B, n) -> (B, n), through fewer hidden units than n."""

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.weight.mT @ self.weight + self.bias)


def items() -> Tensor:
    """(N, n) items, each with one feature, whose size is uniform on [0, 1]."""
    random = torch.Generator().manual_seed(0)
    x = torch.zeros(N, FEATURES, dtype=torch.float64)
    x[torch.arange(N), torch.randint(FEATURES, (N,), generator=random)] = torch.rand(
        N, dtype=torch.float64, generator=random
    )
    return x


def trained(x: Tensor) -> dict[int, Superposition]:
    """The network after so many steps of gradient descent on the squared error."""
    random = torch.Generator().manual_seed(0)
    weights = 0.01 * torch.randn(STARTS, HIDDEN, FEATURES, dtype=torch.float64, generator=random)
    net, seen = Superposition(weights, torch.zeros(STARTS, 1, FEATURES, dtype=torch.float64)), {}
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for step in range(max(STEPS) + 1):
        if step in STEPS:
            seen[step] = Superposition(net.weight[SHOWN].detach().clone(), net.bias[SHOWN].detach().clone())
        optimizer.zero_grad()
        (net(x) - x).square().sum(-1).mean(-1).sum().backward()
        optimizer.step()
    return seen


def measured(x: Tensor) -> list[dict[str, Any]]:
    rows = []
    for step, net in trained(x).items():
        with torch.no_grad():
            error = float((net(x) - x).square().sum(-1).mean())
        found = bdl.learning_coefficient(net, LOSS, [(x, x)], steps=400, chains=4, localization=LOCALIZATION)
        lengths = net.weight.detach().norm(dim=0).tolist()
        rows.append(
            {"step": step, "error": error, "value": found.value, "std_error": found.std_error, "sound": found.sound,
             "features": sum(length > 0.5 for length in lengths)}
        )  # fmt: skip
        print(f"{step:6d}  {error:.4f}  {found.value:5.2f} ± {found.std_error:.2f}  {found.sound}", flush=True)
    return rows


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Error and coefficient over training; hollow where the verdict is not sound."""
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(7, 4.6), layout="constrained")
    steps, values = [r["step"] for r in rows], [r["value"] for r in rows]
    above.plot(steps, [r["error"] for r in rows], "o-", color="#555555")
    above.set(ylabel="squared error")
    below.plot(steps, values, color="#1f6fb4", alpha=0.4)
    for sound, fill in ((True, "#1f6fb4"), (False, "white")):
        chosen = [i for i, r in enumerate(rows) if r["sound"] == sound]
        below.errorbar(
            [steps[i] for i in chosen], [values[i] for i in chosen], [rows[i]["std_error"] for i in chosen], fmt="o",
            color="#1f6fb4", markerfacecolor=fill, label="sound" if sound else "no minimum",
        )  # fmt: skip
    below.set(ylabel="λ̂", xlabel="step of gradient descent")
    below.legend(frameon=False)
    for axis in (above, below):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def main(out: Path = RESULTS / "learning_coefficients") -> None:
    began = time.process_time()
    rows = measured(items())
    seconds = time.process_time() - began
    save(out / "training.json", {**about(), "localization": LOCALIZATION, "core_seconds": seconds, "rows": rows})
    picture(rows, PICTURE)
