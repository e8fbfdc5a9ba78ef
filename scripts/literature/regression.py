"""Karagiannis 2023: SGD and SGLD on a linear regression whose tempered posteriors are known."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import bdl
from literature.distances import with_error
from literature.experiment import Context, Result, Table, experiment
from literature.figures import BLUE, GREY, RED, canvas, label
from literature.sources import HANDOUT
from literature.targets import Chains, LinearRegression, simulate_linear

# START, ETA, STEPS, batches and temperatures are those of the handout's code
START = (1.1, -2.0, 0.0)  # b0, b1, log s²
NAMES = ("β₀", "β₁", "log σ²")
ETA, STEPS = 1e-5, 1_000  # the handout keeps the second half of the steps


@dataclass(frozen=True)
class Setting:
    batch: int | None  # items; None: all data
    eta: float = ETA  # step size on U
    temperature: float = 1.0
    steps: int = STEPS
    published: str = "–"

    @property
    def data(self) -> str:
        return "all data" if self.batch is None else f"m = {self.batch:,}"


@dataclass(frozen=True, eq=False)
class Run:
    setting: Setting
    states: Tensor  # (steps, C, 3): b0, b1, log s²
    t_eff: float  # the sampler's estimate, mean over coordinates

    @property
    def kept(self) -> Tensor:
        return self.states[len(self.states) // 2 :]


GROUPS = {
    "sgd": [Setting(m, temperature=0.0) for m in (10, 100, 1_000)],
    "batches": [
        Setting(10, published="furthest from the posterior"),
        Setting(100, published="between"),
        Setting(1_000, published="closest"),
        Setting(None),
        *(Setting(m, 1e-6, steps=6_000) for m in (100, 1_000, None)),
    ],
    "hot": [Setting(100, temperature=t, published="τ “may” widen it") for t in (0.01, 0.1, 1.0, 2.0, 10.0)],
    "tempered": [Setting(None, 1e-6, t, 6_000) for t in (0.01, 0.1, 1.0, 2.0, 10.0)],
    "half": [Setting(None, 1e-6, 0.5, 6_000)],  # noise sqrt(η) z instead of sqrt(2 η) z samples T = 1/2
}


@experiment("linear-regression", f"{HANDOUT}, figures 4.1 to 4.3", "SGD and SGLD on a linear regression")
def linear_regression(context: Context) -> Result:
    law = LinearRegression(*simulate_linear(seed=context.seed))
    runs: dict[str, list[Run]] = {}
    for name, group in context.track(GROUPS.items(), "linear-regression"):
        chains = 1 if name == "sgd" else context.choose(32, 8)
        shorter = [replace(s, steps=s.steps // context.choose(1, 4)) for s in group]
        runs[name] = [run(law, s, chains, context.seed) for s in shorter]
    figures = {
        "sgd": draw_sgd(law, runs["sgd"]),
        "batches": draw_batches(law, runs["batches"][:4]),
        "temperatures": draw_temperatures(law, runs["hot"], runs["tempered"]),
        "noise": draw_noise(law, runs["tempered"][2], runs["half"][0]),
    }
    tables = [batch_table(law, runs["batches"]), temperature_table(law, runs), noise_table(law, runs)]
    return Result(figures, tables, {name: [measure(law, r) for r in runs[name]] for name in GROUPS if name != "sgd"})


def run(law: LinearRegression, s: Setting, chains: int, seed: int) -> Run:
    """Two halves: the first forgets the start, the second has a fresh estimate of the batch noise."""
    dynamics = bdl.SGLD() if s.temperature else bdl.SGD(momentum=0)
    x = torch.tensor(START, dtype=torch.float64).repeat(chains, 1)
    numbers: dict[str, Any] = {"lr": s.eta * law.num_data, "temperature": s.temperature, "batch": s.batch}
    first = Chains(law, dynamics, x, seed=seed, **numbers).run(s.steps // 2)
    second = Chains(law, dynamics, first[-1], seed=seed + 1, **numbers)
    states = torch.cat([first, second.run(s.steps // 2)])
    exact = s.batch is None or not s.temperature
    return Run(s, states, s.temperature if exact else float(second.sampler.t_eff.mean()))


def spread(law: LinearRegression, r: Run, temperature: float | None = None) -> Tensor:
    """(C, 3) mean square of b0, b1, log s² about the exact mean, divided by the exact variance at T."""
    t = r.setting.temperature if temperature is None else temperature
    return (r.kept - law.mean(t)).square().mean(0) / law.covariance(t).diagonal()


def heated(law: LinearRegression, s: Setting) -> Tensor:
    """(3,) T_eff / T = 1 + η N / (2 m T v), with v the exact variance; the items' gradients have variance 1/(N v)."""
    v = law.covariance().diagonal()
    return 1 + (0 * v if s.batch is None else s.eta * law.num_data / (2 * s.batch * s.temperature * v))


def expected(law: LinearRegression, s: Setting) -> Tensor:
    """(3,) expected variance over exact: T_eff / T times Euler's factor 1 / (1 - η / (2 v)) at curvature 1 / v."""
    return heated(law, s) / (1 - s.eta / (2 * law.covariance().diagonal()))


def measure(law: LinearRegression, r: Run) -> dict[str, Any]:
    s = r.setting
    return {
        "batch": s.batch, "eta": s.eta, "temperature": s.temperature, "steps": s.steps, "t_eff": r.t_eff,
        "variance over exact": spread(law, r).mean(0), "expected": expected(law, s),
        "mean": r.kept.mean((0, 1)), "exact mean": law.mean(s.temperature),
        "exact std": law.covariance(s.temperature).diagonal().sqrt(),
    }  # fmt: skip


def batch_table(law: LinearRegression, runs: Sequence[Run]) -> Table:
    header = ["data", "η", "published histogram", *(f"variance of {n} / exact" for n in NAMES), "expected for β₁",
              "T_eff expected, reported", "settings"]  # fmt: skip
    rows = []
    for r in runs:
        s, ratios = r.setting, spread(law, r)
        rows.append(
            [s.data, f"{s.eta:g}", s.published, *(with_error(ratios[:, j], 2) for j in range(3)),
             f"{expected(law, s)[1]:.2f}", f"{heated(law, s).mean():.2f}, {r.t_eff:.2f}",
             f"{s.steps:,} steps, second half, {len(ratios)} chains"]
        )  # fmt: skip
    return Table(
        "Figure 4.2: batch size m at T = 1",
        header,
        rows,
        "The handout shows that larger batches come closer to the posterior; none of its settings comes close. At its "
        "η = 1e-5 the batch noise of 100 items has 26 times the variance of the injected noise, and even with all the "
        "data Euler's step adds a third. Variances are mean squares about the exact mean, so they include bias. The "
        "reported T_eff is bdl's estimate along the chain, averaged over the three coordinates, without Euler's share. "
        "At η = 1e-5 it is too high by a factor (1 + (1 + η / v)²) / 2 = 1.7, because the gradient changes within the "
        "step whose ends it compares. Batches are drawn with replacement here, without replacement in the handout.",
    )


def temperature_table(law: LinearRegression, runs: dict[str, list[Run]]) -> Table:
    header = ["T", "published", "variance of β₁ / exact at T, m = 100, η = 1e-5", "expected",
              "all data, η = 1e-6", "expected", "of log σ²"]  # fmt: skip
    rows = []
    for hot, cold in zip(runs["hot"], runs["tempered"], strict=True):
        ratios = spread(law, cold)
        rows.append(
            [f"{hot.setting.temperature:g}", hot.setting.published, with_error(spread(law, hot)[:, 1], 2),
             f"{expected(law, hot.setting)[1]:.2f}", with_error(ratios[:, 1]),
             f"{expected(law, cold.setting)[1]:.3f}", with_error(ratios[:, 2])]
        )  # fmt: skip
    return Table(
        "Figure 4.3: temperature",
        header,
        rows,
        "With batches of 100 the temperature hardly matters below 10: nearly all the variance is batch noise. With all "
        "the data and a smaller step the chains sample the tempered posterior, again normal-inverse-gamma, at every T, "
        "with 3 % added by Euler's step. "
        f"{runs['hot'][0].setting.steps:,} and {runs['tempered'][0].setting.steps:,} steps, second half.",
    )


def noise_table(law: LinearRegression, runs: dict[str, list[Run]]) -> Table:
    right, half = spread(law, runs["tempered"][2]), spread(law, runs["half"][0], 1.0)
    rows = [
        ["sqrt(2 η T) z", "–", *(with_error(right[:, j]) for j in range(3))],
        ["sqrt(η T) z, wrong", "eq. 3.2", *(with_error(half[:, j]) for j in range(3))],
    ]
    return Table(
        "Injected noise of a step, all data, η = 1e-6, T = 1",
        ["injected noise", "published", *(f"variance of {n} / exact" for n in NAMES)],
        rows,
        "Eq. 3.2 of the handout injects half the variance that its own SDE, eq. 3.5, requires, and so samples T/2.",
    )


def draw_sgd(law: LinearRegression, runs: Sequence[Run]) -> Figure:
    title = "SGD ends at the maximum, and rattles less with larger batches"
    figure, axes = canvas(title, 2, 3, sharey="row", sharex=True, height=2.1)
    best = law.fit[1], law.rss / law.num_data
    for ax, r in zip(axes.T, runs, strict=True):
        ax[0].plot(r.states[:, 0, 1], color=BLUE, lw=0.9, label="SGD")
        ax[1].plot(r.states[:, 0, 2].exp(), color=BLUE, lw=0.9)
        for row, value in zip(ax, best, strict=True):
            row.axhline(float(value), color=RED, lw=1.0, ls="--", label="least squares")
        label(ax[0], r.setting.data)
        ax[1].set(xlabel="step", xlim=(0, 300))
    axes[0, 0].set(ylabel=NAMES[1], ylim=(0.4, 1.2))
    axes[1, 0].set(ylabel="σ²", ylim=(0.1, 0.4))
    axes[0, 2].legend(loc="lower right")
    return figure


def draw_batches(law: LinearRegression, runs: Sequence[Run]) -> Figure:
    figure, axes = canvas("Mini-batches widen the posterior; at η = 1e-5 even all the data do",
                          3, 4, width=2.9, height=1.9, sharex="row", sharey="row")  # fmt: skip
    for column, r in zip(axes.T, runs, strict=True):
        for j, ax in enumerate(column):
            histogram(ax, law, r, j, reach=9)
        label(column[0], f"{r.setting.data}: variance × {spread(law, r)[:, 1].mean():.3g}")
    for j, name in enumerate(NAMES):
        axes[j, 0].set(ylabel=f"density of {name}", yticks=[])
    axes[0, 3].legend(loc="upper right", fontsize=8)
    return figure


def draw_temperatures(law: LinearRegression, hot: Sequence[Run], cold: Sequence[Run]) -> Figure:
    title = "Temperature: drowned by batches of 100 (above), exact with all the data and a small step (below)"
    figure, axes = canvas(title, 2, 4, width=2.9, height=2.2, sharex=True, sharey="col")
    for row, runs in zip(axes, (hot[1:], cold[1:]), strict=True):
        for ax, r in zip(row, runs, strict=True):
            histogram(ax, law, r, 1, reach=12 / r.setting.temperature**0.5)
            label(ax, f"T = {r.setting.temperature:g}, {r.setting.data}")
            ax.set_yticks([])
    for ax in axes[1]:
        ax.set_xlabel(NAMES[1])
    axes[0, 0].legend(loc="upper right", fontsize=8)
    return figure


def draw_noise(law: LinearRegression, right: Run, half: Run) -> Figure:
    title = "A factor of 2: all data, η = 1e-6, T = 1"
    figure, axes = canvas(title, 1, 2, width=4.2, height=2.8, sharex=True, sharey=True)
    names = ("sqrt(2 η T): right", "sqrt(η T), handout (3.2): half the variance")
    for ax, r, name in zip(axes[0], (right, half), names, strict=True):
        histogram(ax, law, r, 1, 5, temperature=1.0)
        label(ax, f"noise {name}", NAMES[1])
    axes[0, 0].set(ylabel="density", yticks=[])
    axes[0, 0].legend(loc="upper right", fontsize=8)
    return figure


def histogram(ax: Axes, law: LinearRegression, r: Run, j: int, reach: float, temperature: float | None = None) -> None:
    """Coordinate j of all chains and its exact density at T, up to `reach` standard deviations from the mean."""
    posterior = law.posterior(r.setting.temperature if temperature is None else temperature)
    centre, unit = posterior.mean()[j], posterior.covariance()[j, j].sqrt()
    edges = torch.linspace(float(centre - reach * unit), float(centre + reach * unit), 121, dtype=torch.float64)
    values = r.kept[..., j].flatten()
    # Divided by the number of all values, so values beyond the edges lower the histogram
    counts = np.histogram(values, edges)[0] / (len(values) * float(edges[1] - edges[0]))
    ax.stairs(counts, edges, fill=True, color=BLUE, alpha=0.55, label="SGLD")
    x = torch.linspace(float(edges[0]), float(edges[-1]), 400, dtype=torch.float64)
    grid = posterior.mean().repeat(400, 1)
    grid[:, j] = x
    ax.plot(x, posterior.marginal_log_prob(grid)[:, j].exp(), color="black", lw=1.3, label="exact")
    ax.axvline(float(centre), color=GREY, lw=0.6, zorder=0)
