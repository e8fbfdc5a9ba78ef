"""Draws docs/pictures/band.png, the README's picture of use: one network, a deep ensemble and a posterior on 60 points.

python scripts/tools/band.py [PICTURE.png]
"""

import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn

import bdl
from bdl.data import TensorBatches

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "band.png"
LIMITS = (-3.2, 3.2)
STD = 0.15  # standard deviation of the noise, which the likelihood knows
STEPS = 5000


def main() -> None:
    x, y = points()
    grid = torch.linspace(*LIMITS, 200)[:, None]
    plt.rcParams["font.size"] = 15  # readable where a phone shows the picture 360 pixels wide
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), sharey=True, layout="constrained")
    with tempfile.TemporaryDirectory() as folder:
        common = {"x": x, "y": y, "grid": grid}
        bands = {
            "One network": band(Path(folder, "one"), bdl.SGD(0.9), 0.0, chains=1, **common),
            "Deep ensemble of 8": band(Path(folder, "ensemble"), bdl.SGD(0.9), 0.0, chains=8, **common),
            "Posterior, 8 chains": band(
                Path(folder, "posterior"), bdl.MCLMC(adapt_steps=2000), 1.0, chains=8, **common
            ),
        }
    for axis, (title, (mean, std)) in zip(axes, bands.items(), strict=True):
        axis.fill_between(grid[:, 0], mean - 2 * std, mean + 2 * std, color="#1f6fb4", alpha=0.25, lw=0)
        axis.plot(grid[:, 0], mean, color="#1f6fb4", lw=1.8)
        axis.plot(x[:, 0], y[:, 0], ".", color="#222222", ms=4)
        axis.set(title=title, xlim=LIMITS, ylim=(-2.4, 2.4), xticks=[], yticks=[])
        axis.spines[["top", "right"]].set_visible(False)
        for left, right in ((LIMITS[0], -2), (-1, 0.6), (1.6, LIMITS[1])):
            axis.axvspan(left, right, color="#eeeeee", lw=0, zorder=0)
            if right - left > 1:  # as wide as the words
                axis.annotate("no\ndata", ((left + right) / 2, -2.25), ha="center", color="#555555")
    axes[0].set_ylabel("mean ± 2 sd")
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    figure.savefig(target, dpi=130, metadata={"Software": None})
    print(target)


def points() -> tuple[torch.Tensor, torch.Tensor]:
    """60 points in two groups: between them and beyond them nothing is known."""
    random = torch.Generator().manual_seed(1)
    x = torch.cat([-2 + torch.rand(30, 1, generator=random), 0.6 + torch.rand(30, 1, generator=random)])
    return x, (2.5 * x).sin() + 0.3 * x + STD * torch.randn(60, 1, generator=random)


def band(
    folder: Path,
    dynamics: bdl.Dynamics | bdl.MCLMC,
    temperature: float,
    chains: int,
    x: torch.Tensor,
    y: torch.Tensor,
    grid: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of y over the grid, (200,) each."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1))
    posterior = bdl.sample(
        net,
        bdl.GaussianNLL(STD),
        TensorBatches(x, y, batch_size=60, chains=chains),
        folder,
        steps=STEPS,
        lr=2e-4,
        dynamics=dynamics,
        temperature=temperature,
        prior=bdl.Gaussian("he"),  # functions of the size of the data
        chains=chains,
        keep=bdl.schedules.EveryStep(burn_in=STEPS - 1, every=1) if temperature == 0 else None,
        accelerator="cpu",
    )
    prediction = posterior.predict(grid)
    assert isinstance(prediction, bdl.ValuePrediction)
    return prediction.mean[:, 0], prediction.std[:, 0]


if __name__ == "__main__":
    main()
