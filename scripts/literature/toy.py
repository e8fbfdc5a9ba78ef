"""The Lightning post: Metropolis and SGLD on a line through thirty points, with the post's noise and the right one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import bdl
from bdl.seeding import generator
from literature.distances import with_error
from literature.experiment import Context, Result, Table, experiment
from literature.figures import BLUE, ORANGE, canvas, label
from literature.sources import LIGHTNING_POST
from literature.targets import Chains, ToyRegression

NAMES = ("β₀", "β", "σ")
POINTS, TRUTH = 30, (-1.0, 2.0, 0.5)  # from the post's listing; its text has σ = .1
STEPS = 5_000


@dataclass(frozen=True)
class Setting:
    """alpha: the drift is α/2 ∇U, the injected noise has variance α T. The post's standard deviation α means T = α."""

    name: str
    dynamics: Any
    alpha: float
    temperature: float = 1.0
    steps: int = STEPS
    published: str = "–"


SETTINGS = (
    Setting("Metropolis, proposal α = .02", bdl.Metropolis(), 0.02**2, published="slow start, right in the end"),
    Setting("SGLD α = .04, noise α", bdl.SGLD(), 0.04, 0.04, published="β quick, σ varies too much"),
    Setting("SGLD α = .04, noise √α", bdl.SGLD(), 0.04),
    Setting("SGLD α = .005, noise α", bdl.SGLD(), 0.005, 0.005, published="“a better approximation”"),
    Setting("SGLD α = .005, noise √α", bdl.SGLD(), 0.005),
    Setting("SGLD α = .0005, noise √α", bdl.SGLD(), 0.0005, steps=20_000),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Run:
    setting: Setting
    states: Tensor  # (steps, C, 3): β0, β, σ > 0

    @property
    def kept(self) -> Tensor:
        return self.states[len(self.states) // 2 :]


@experiment("toy-regression", LIGHTNING_POST, "Metropolis and SGLD on thirty points")
def toy_regression(context: Context) -> Result:
    law = ToyRegression(*simulate(context.seed))
    runs = [run(law, s, context) for s in context.track(SETTINGS, "toy-regression")]
    exact = law.sample(100_000, generator("cpu", "toy-regression", context.seed))
    exact[:, 2] = exact[:, 2].abs()
    figures = {"traces": draw_traces(runs[:5], exact), "marginals": draw_marginals([runs[0], *runs[3:]], exact)}
    return Result(figures, [tabulate(runs, exact, context)], numbers(runs, exact))


def draw_data(seed: int) -> tuple[Tensor, Tensor]:
    """x uniform in (-1, 1) and standard normal z, both (POINTS,)."""
    noise = generator("cpu", "toy-regression data", seed)
    x = 2 * torch.rand(POINTS, generator=noise, dtype=torch.float64) - 1
    return x, torch.randn(POINTS, generator=noise, dtype=torch.float64)


def simulate(seed: int) -> tuple[Tensor, Tensor]:
    """x uniform in (-1, 1), y = -1 + 2 x + noise, rescaled to a root mean square of .5 in this sample."""
    x, z = draw_data(seed)
    return x, TRUTH[0] + TRUTH[1] * x + TRUTH[2] * z / root_mean_square(z)


def root_mean_square(z: Tensor) -> float:
    return z.square().mean().sqrt().item()


def run(law: ToyRegression, s: Setting, context: Context) -> Run:
    chains = context.choose(64, 16)
    start = torch.randn(chains, 3, generator=generator("cpu", "toy-regression start", context.seed)).double()
    start[:, 2] = 1.0
    lr = s.alpha / 2 * law.num_data
    states = Chains(law, s.dynamics, start, lr=lr, temperature=s.temperature, seed=context.seed).run(
        s.steps // context.choose(1, 4)
    )
    return Run(s, torch.cat([states[..., :2], states[..., 2:].abs()], -1))


def variance(r: Run, exact: Tensor) -> Tensor:
    """(C, 3) mean square about the exact mean, divided by the exact variance."""
    return (r.kept - exact.mean(0)).square().mean(0) / exact.var(0)


def numbers(runs: Sequence[Run], exact: Tensor) -> dict[str, Any]:
    summary: dict[str, Any] = {
        r.setting.name: {
            "median": r.kept.flatten(0, 1).median(0).values,
            "variance over exact": variance(r, exact).mean(0),
        }
        for r in runs
    }
    summary["exact"] = {"median": exact.median(0).values, "std": exact.std(0)}
    return summary


def tabulate(runs: Sequence[Run], exact: Tensor, context: Context) -> Table:
    header = ["method", "published", "sampled T", *(f"median of {n}" for n in NAMES),
              *(f"variance of {n} / exact" for n in NAMES), "steps"]  # fmt: skip
    rows = []
    for r in runs:
        s, ratios = r.setting, variance(r, exact)
        medians = [f"{v:.3f}" for v in r.kept.flatten(0, 1).median(0).values]
        rows.append([s.name, s.published, f"{s.temperature:g}", *medians])
        rows[-1] += [*(said(ratios[:, j]) for j in range(3)), f"{len(r.states):,}"]
    rows.append(["exact", "–", "1", *(f"{v:.3f}" for v in exact.median(0).values), *["1"] * 3, "–"])
    drawn = TRUTH[2] * root_mean_square(draw_data(context.seed)[1])
    return Table(
        "Thirty points, three parameters",
        header,
        rows,
        f"{context.choose(64, 16)} chains each, without their first halves; σ = |r|, as in the post. The post injects "
        "noise of standard deviation α where √α is right, and so samples at T = α: its “better approximation” at α = "
        ".005 is a nearly frozen chain around the maximum. At α = .04 Euler's step is unstable where σ < √(α n / 4) = "
        ".55, which is most of the posterior: no noise repairs this, and σ is thrown out again and again. With √α the "
        "chains approach the law as α falls. x is uniform and σ = .5 as in the post's listing. The noise in the data "
        "is rescaled, which the post does not do: its thirty values have a root mean square of exactly .5. As drawn, "
        f"those of this seed have {drawn:.2f}.",
    )


def said(ratios: Tensor) -> str:
    return (
        with_error(ratios, 3 if ratios.mean() < 0.1 else 2)
        if ratios.mean() < 100
        else f"{ratios.median():.1e} (median)"
    )


def draw_traces(runs: Sequence[Run], exact: Tensor) -> Figure:
    title = "Noise α freezes the chain, √α samples the posterior; at α = .04 neither is stable"
    figure, axes = canvas(title, 3, len(runs), width=2.7, height=1.7, sharex=True, sharey="row")
    band = exact.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), 0)
    for column, r in zip(axes.T, runs, strict=True):
        for j, ax in enumerate(column):
            ax.axhspan(float(band[0, j]), float(band[1, j]), color=ORANGE, alpha=0.35, lw=0, label="exact 95 %")
            ax.plot(r.states[:STEPS, 0, j], color=BLUE, lw=0.7, label="one chain")
        label(column[0], r.setting.name)
        column[-1].set(xlabel="step", xlim=(0, STEPS))
    for ax, name, centre in zip(axes[:, 0], NAMES, exact.mean(0), strict=True):
        ax.set(ylabel=name, ylim=(float(centre) - 1.2, float(centre) + 1.2))
    axes[2, 0].set_ylim(0, 1.6)
    axes[0, 0].legend(loc="upper right", fontsize=7.5)
    return figure


def draw_marginals(runs: Sequence[Run], exact: Tensor) -> Figure:
    title = "After burn-in: Metropolis is right, noise α is far too narrow, noise √α right as α falls"
    figure, axes = canvas(title, 2, len(runs), width=2.9, height=2.0, sharex="row", sharey="row")
    for column, r in zip(axes.T, runs, strict=True):
        for ax, j in zip(column, (1, 2), strict=True):
            overlay(ax, r.kept[..., j].flatten().numpy(), exact[:, j].numpy())
            ax.set(xlabel=NAMES[j], yticks=[])
        label(column[0], r.setting.name, NAMES[1])
    axes[0, 0].legend(loc="upper right", fontsize=8)
    return figure


def overlay(ax: Axes, values: np.ndarray, exact: np.ndarray) -> None:
    edges = np.linspace(exact.mean() - 5 * exact.std(), exact.mean() + 5 * exact.std(), 61)
    width = edges[1] - edges[0]
    truth = np.histogram(exact, edges)[0] / (len(exact) * width)
    ax.stairs(np.histogram(values, edges)[0] / (len(values) * width), edges, fill=True, color=BLUE, alpha=0.55,
              label="chains")  # fmt: skip
    ax.stairs(truth, edges, color="black", lw=1.3, label="exact")
    ax.set_ylim(0, 2.2 * truth.max())
