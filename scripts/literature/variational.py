"""Bayes by Backprop: a small network by mean-field variational inference, SGHMC and HMC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import bdl
from bdl.models import MLP
from bdl.posterior.diagnostics import ess, rhat
from bdl.seeding import generator
from literature.distances import with_error
from literature.experiment import Context, Result, Table, experiment
from literature.figures import BLUE, GREEN, GREY, ORANGE, RED, canvas, label
from literature.sources import BACKPROP_POST

SOURCE = f"announced in the {BACKPROP_POST}; Blundell et al. 2015"
STD, HIDDEN, CHAINS = 0.15, 50, 8
GAP, ENDS = (-0.9, 0.9), (-1.8, 1.8)  # ranges of x: the gap without data, and all data
PRIOR = bdl.Gaussian([0.25, 0.25, HIDDEN / 4, 1.0])  # N(0, 2²) into the hidden layer, N(0, 2²/50) out of it
GRID = torch.linspace(-2.5, 2.5, 101)[:, None]


@dataclass(frozen=True)
class Data:
    x: Tensor  # (N, 1)
    y: Tensor  # (N, 1)

    @classmethod
    def simulate(cls, seed: int, n: int = 40) -> Data:
        """Two clusters of x with a gap between them."""
        noise = generator("cpu", "bbb-regression data", seed)
        u = torch.rand(n, generator=noise)
        first = torch.arange(n) < n // 2
        x = torch.where(first, ENDS[0] + u * (GAP[0] - ENDS[0]), GAP[1] + u * (ENDS[1] - GAP[1]))[:, None]
        return cls(x, truth(x) + STD * torch.randn(n, 1, generator=noise))


def truth(x: Tensor) -> Tensor:
    return (2.5 * x).sin() + 0.3 * x


@dataclass(frozen=True)
class Method:
    name: str
    dynamics: Any
    lr: float
    burn_in: int  # steps; with `fit` lr falls to 0 during them
    steps: int
    every: int
    settings: str
    fit: bool = False


@dataclass(frozen=True, eq=False)
class Run:
    method: Method
    functions: Tensor  # (n, C, len(GRID)) outputs of the network on GRID
    bound: Tensor | None  # (burn_in / 10, C) evidence lower bound, nats

    def std(self) -> Tensor:
        """(C, len(GRID)) standard deviation of each chain's functions."""
        return self.functions.std(0)


def methods(context: Context) -> list[Method]:
    shrink = context.choose(1, 20)
    return [
        Method("HMC", bdl.HMC(leapfrog=30, adapt_steps=200 // shrink), 5e-4, 300 // shrink, 4_000 // shrink, 5,
               "30 leapfrog steps, step size adapted; 300 + 4,000 steps"),
        Method("SGHMC", bdl.SGHMC(0.02), 4e-4, 3_000 // shrink, 15_000 // shrink, 30,
               "lr 4e-4, friction .02; 3,000 + 15,000 steps"),
        Method("Bayes by Backprop", bdl.MeanField(init_std=0.05), 0.01, 16_000 // shrink, 500, 1,
               "Adam, .01 falling to 0 over 16,000 steps; 500 draws", fit=True),
    ]  # fmt: skip


@experiment("bbb-regression", SOURCE, "Bayes by Backprop beside SGHMC and HMC")
def bbb_regression(context: Context) -> Result:
    data = Data.simulate(context.seed)
    runs = [run(data, m, context) for m in context.track(methods(context), "bbb-regression")]
    measures = {r.method.name: measure(r) for r in runs}
    figures = {"bands": draw_bands(runs, data), "elbo": draw_bound(runs[2])}
    return Result(figures, [tabulate(runs, measures)], measures)


def run(data: Data, m: Method, context: Context) -> Run:
    stack = bdl.ChainStack(MLP((1, HIDDEN, 1)), CHAINS, seed=context.seed)
    sampler = bdl.Sampler(stack.named_parameters(), m.dynamics, num_data=len(data.x), lr=m.lr, prior=PRIOR,
                          chains=CHAINS, seed=context.seed)  # fmt: skip
    closure = closure_of(sampler, stack, data)
    cosine, bound, functions = bdl.schedules.Cosine(m.lr, m.burn_in), [], []
    for k in range(m.burn_in + m.steps):
        if m.fit:
            sampler.param_groups[0]["lr"] = cosine(k)
        sampler.step(closure)
        if m.fit and k < m.burn_in and k % 10 == 0:
            bound.append(sampler.elbo)
        if k >= m.burn_in and k % m.every == 0:
            with torch.no_grad():
                functions.append(stack.broadcast(GRID).squeeze(-1))
    return Run(m, torch.stack(functions), torch.stack(bound) if bound else None)


def closure_of(sampler: bdl.Sampler, stack: bdl.ChainStack, data: Data) -> Callable[[], Tensor]:
    """() -> (C,) mean losses on all the data, after their gradients have been computed."""
    loss = bdl.GaussianNLL(STD)

    def closure() -> Tensor:
        sampler.zero_grad()
        losses = loss(stack.broadcast(data.x), data.y.expand(CHAINS, len(data.x), 1)).mean(-1)
        losses.sum().backward()
        return losses

    return closure


def regions() -> dict[str, Tensor]:
    """Masks (len(GRID),) of the parts of the grid."""
    x = GRID[:, 0]
    gap, seen = (x > GAP[0]) & (x < GAP[1]), (x > ENDS[0]) & (x < ENDS[1])
    return {"at the data": seen & ~gap, "in the gap": gap, "outside": ~seen}


def measure(r: Run) -> dict[str, Any]:
    draws = r.functions.transpose(0, 1).double().numpy()  # (C, n, G)
    measures: dict[str, Any] = {name: r.std()[:, at].mean(1) for name, at in regions().items()}
    f = truth(GRID)[:, 0]
    outcome = f + STD * torch.randn(len(f), generator=generator("cpu", "bbb-regression test"))
    for name, at in regions().items():
        z = (outcome[None, None, at] - r.functions[..., at]) / STD
        log_p = (-0.5 * z.square() - np.log(STD) - 0.5 * np.log(2 * np.pi)).flatten(0, 1).logsumexp(0)
        measures[f"log p {name}"] = (log_p - np.log(r.functions.shape[0] * CHAINS)).mean()
    measures["rhat"] = float(np.nanmax(rhat(draws[..., ::5])))
    measures["ess"] = float(np.nanmin(ess(draws[..., ::5])))
    return measures if r.bound is None else {**measures, "elbo": r.bound[-50:].mean(0)}


def tabulate(runs: Sequence[Run], measures: dict[str, dict[str, Any]]) -> Table:
    header = ["method", "published", *(f"std of f {name}" for name in regions()),
              *(f"log p of a new point {name}" for name in regions()), "R-hat of f", "ELBO", "settings"]  # fmt: skip
    rows = []
    for r in runs:
        f = measures[r.method.name]
        rows.append([r.method.name, "announced only", *(with_error(f[name]) for name in regions())])
        rows[-1] += [f"{f[f'log p {name}']:.2f}" for name in regions()]
        rows[-1] += [f"{f['rhat']:.2f}", f"{f['elbo'].mean():.1f}" if "elbo" in f else "–", r.method.settings]
    exact, field = (measures[runs[i].method.name] for i in (0, 2))
    gap, seen = (float(field[name].mean() / exact[name].mean()) for name in ("in the gap", "at the data"))
    return Table(
        f"A network 1-{HIDDEN}-1 on 40 points with a gap, observation noise of standard deviation {STD:g}",
        header,
        rows,
        f"{CHAINS} chains; for Bayes by Backprop {CHAINS} fits from different starts. Every batch holds all 40 points. "
        "The mean field is too sure where there are no data: in the gap its standard deviation is "
        f"{gap:.2f} of HMC's. At the data it is {seen:.1f} times too wide. Independent weights cannot let functions "
        "spread in one place and hold them together in another.",
    )


def draw_bands(runs: Sequence[Run], data: Data) -> Figure:
    title = "Bayes by Backprop is too sure in the gap and too vague at the data; SGHMC agrees with HMC"
    figure, axes = canvas(title, 1, 3, width=4.0, height=3.4, sharex=True, sharey=True)
    for ax, r, colour in zip(axes[0], runs, (BLUE, GREEN, ORANGE), strict=True):
        draw_band(ax, r, colour)
        ax.axvspan(*GAP, color=GREY, alpha=0.12, lw=0, label="gap")
        ax.plot(GRID, truth(GRID), color=RED, lw=1.2, ls="--", label="true function")
        ax.plot(data.x, data.y, ".", color="black", ms=4, label="data")
        gap, seen = (r.std()[:, regions()[name]].mean() for name in ("in the gap", "at the data"))
        label(ax, f"{r.method.name}: std {gap:.2f} in gap, {seen:.2f} at data", "x")
    axes[0, 0].set(ylim=(-2.4, 3), xlim=(-2.5, 2.5))
    axes[0, 0].legend(loc="upper left", fontsize=7.5, ncols=2)
    return figure


def draw_band(ax: Axes, r: Run, colour: str) -> None:
    """Functions of one chain: 90 % band, median and a few of them."""
    f = r.functions[:, 0]
    low, middle, high = f.quantile(torch.tensor([0.05, 0.5, 0.95]), 0)
    ax.fill_between(GRID[:, 0], low, high, color=colour, alpha=0.35, lw=0, label="90 % of functions")
    ax.plot(GRID, f[:: max(1, len(f) // 6)].T, color=colour, lw=0.5, alpha=0.8)
    ax.plot(GRID, middle, color=colour, lw=1.8, label="median")


def draw_bound(r: Run) -> Figure:
    assert r.bound is not None
    figure, axes = canvas("Bayes by Backprop: the evidence lower bound of eight fits", 1, 1, width=6.0, height=3.0)
    steps = 10 * np.arange(len(r.bound))
    width = max(1, len(r.bound) // 100)
    for c in range(r.bound.shape[1]):
        smooth = np.convolve(r.bound[:, c], np.ones(width) / width, mode="valid")
        axes[0, 0].plot(steps[width - 1 :], smooth, lw=1.0, alpha=0.8)
    final = float(r.bound[-50:].mean())
    axes[0, 0].set(ylim=(final - 300, final + 60))
    label(axes[0, 0], f"mean of {10 * width} steps, ends at {final:.0f} nats", "step", "ELBO (nats)")
    return figure
