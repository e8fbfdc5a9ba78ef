"""Welling & Teh 2011, section 5.1: SGLD on a mixture with tied means."""

from __future__ import annotations

import math
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
from literature.distances import total_variation, with_error
from literature.experiment import Context, Result, Table, experiment
from literature.figures import BLUE, GREEN, ORANGE, RED, canvas, label
from literature.sources import BACKPROP_POST
from literature.targets import Chains, Quadrature, WellingTeh, integrate, simulate_welling_teh

SOURCE = f"Welling & Teh 2011, section 5.1; announced in the {BACKPROP_POST}"
FIRST, LAST, GAMMA = 1e-2, 1e-4, 0.55  # the paper's step sizes ε, θ <- θ - ε/2 ∇U + sqrt(ε) z
PASSES = 800  # 10,000 in the paper
DATA = 13  # seed of 100 points whose posterior has two modes, as in the paper's figure; see `choice`
SEEDS, CLEAR = 30, 0.3  # data sets that we looked at; nats between two clear modes
BOX, CELLS = ((-1.5, 2.5), (-3.0, 3.0)), 40  # histograms: sides, cells along each


def step_sizes(steps: int) -> bdl.schedules.Polynomial:
    """ε_t = a (b + t)^-γ, from 1e-2 to 1e-4."""
    b = steps / ((FIRST / LAST) ** (1 / GAMMA) - 1)
    return bdl.schedules.Polynomial(FIRST * b**GAMMA, b, GAMMA)


@dataclass(frozen=True, eq=False)
class Run:
    name: str
    states: Tensor  # (n, C, 2)
    weights: Tensor  # (n,) ε of the step, or 1
    settings: str
    published: str = "–"


@experiment("mixture", SOURCE, "SGLD on a mixture with tied means")
def mixture(context: Context) -> Result:
    law = WellingTeh(simulate_welling_teh(seed=DATA))
    low, high = zip(*BOX, strict=True)
    exact = integrate(law, low, high, CELLS * 10)
    steps = law.num_data * context.choose(PASSES, 20)
    plain = sgld(law, bdl.SGLD(), steps, context)
    runs = variants(plain, sgld(law, bdl.SGLD(grad_var="estimated"), steps, context), hmc(law, context))
    noise, rejection = noise_variances(law, plain, step_sizes(steps)), rejections(law, exact, context)
    measures = {r.name: measure(r, exact) for r in runs}
    figures = {
        "posterior": draw_posterior(exact, runs[0], measures),
        "noise": draw_noise(noise, rejection),
    }
    modes = [Ridge.of(WellingTeh(simulate_welling_teh(seed=seed))) for seed in range(SEEDS)]
    numbers = {"runs": measures, "noise": noise, "rejections": rejection, "mode": float(upper(exact.nodes, exact.mass))}
    numbers["barriers by data seed"] = [m.barrier for m in modes]
    return Result(figures, [tabulate(runs, measures, exact), phases(noise, rejection, law), choice(modes)], numbers)


@dataclass(frozen=True)
class Ridge:
    """The two highest modes of a posterior, and the barrier on the ridge max over θ1 of log p(θ1, θ2)."""

    modes: list[tuple[float, float]]  # (θ1, θ2), the higher one first
    barrier: float  # nats from the lower mode to the pass; 0 if there is only one mode

    @classmethod
    def of(cls, law: WellingTeh) -> Ridge:
        first, second = (torch.linspace(*side, 121, dtype=torch.float64) for side in BOX)
        log_p, at = (-law.energy(torch.stack(torch.meshgrid(first, second, indexing="ij"), -1))).max(0)
        inside = (log_p[1:-1] > log_p[:-2]) & (log_p[1:-1] > log_p[2:])
        peaks = sorted((1 + inside.nonzero()[:, 0]).tolist(), key=lambda j: -float(log_p[j]))[:2]
        modes = [(float(first[at[j]]), float(second[j])) for j in peaks]
        if len(peaks) < 2:
            return cls(modes, 0.0)
        low, high = sorted(peaks)
        return cls(modes, float(log_p[peaks[1]] - log_p[low : high + 1].min()))


def choice(modes: Sequence[Ridge]) -> Table:
    rows = []
    for seed in sorted(range(len(modes)), key=lambda s: -modes[s].barrier):
        ridge = modes[seed]
        if ridge.barrier >= CLEAR or seed == DATA:
            at = ", ".join(f"({a:.2f}, {b:.2f})" for a, b in ridge.modes)
            rows.append([f"{seed}{', chosen' * (seed == DATA)}", f"{ridge.barrier:.2f}", at])
    return Table(
        "How the data were chosen",
        ["data seed", "barrier between the modes, nats", "modes (θ₁, θ₂)"],
        rows,
        f"The paper's 100 points are not published. We drew {len(modes)} data sets at θ = (0, 1) and looked at their "
        f"posteriors. The table has those whose modes are at least {CLEAR:g} nats apart; most of the others have one "
        "mode or a flat ridge, unlike the paper's figure 1. We took a set whose modes lie near (0, 1) and (1, -1), as "
        "there. The choice decides how hard the problem is: with a higher barrier every chain would mix more slowly.",
    )


def sgld(law: WellingTeh, dynamics: bdl.SGLD, steps: int, context: Context) -> Tensor:
    """(steps / 10, C, 2) states under the decreasing steps."""
    chains, sizes = context.choose(64, 16), step_sizes(steps)
    start = torch.randn(chains, 2, generator=generator("cpu", "mixture start", context.seed)).double()
    run = Chains(law, dynamics, start, lr=1.0, batch=1, seed=context.seed)
    kept = torch.empty(steps // 10, chains, 2, dtype=torch.float64)
    group = run.sampler.param_groups[0]
    for i in context.track(range(steps // 10), f"mixture: {dynamics}"):
        for k in range(10 * i, 10 * i + 10):
            group["lr"] = sizes(k) / 2 * law.num_data
            run.step()
        kept[i] = run.theta
    return kept


def hmc(law: WellingTeh, context: Context) -> Tensor:
    chains, steps = context.choose(64, 16), context.choose(2_000, 200)
    start = torch.randn(chains, 2, generator=generator("cpu", "mixture start", context.seed)).double()
    run = Chains(law, bdl.HMC(leapfrog=10, adapt_steps=200), start, lr=1.0, seed=context.seed)
    return run.run(steps, burn_in=200)


def variants(plain: Tensor, less: Tensor, hmc: Tensor) -> list[Run]:
    n = len(plain)
    sizes = torch.tensor([step_sizes(10 * n)(10 * k + 9) for k in range(n)], dtype=torch.float64)
    ones, half = torch.ones(n, dtype=torch.float64), (torch.arange(n) >= n // 2).double()
    steps = f"{10 * n:,} steps, batches of 1"
    return [
        Run("SGLD, all states alike", plain, ones, steps, "histogram like the posterior"),
        Run("SGLD, weighted by ε", plain, sizes, steps),
        Run("SGLD, second half", plain, half, steps),
        Run("SGLD less batch noise, second half", less, half, f"{steps}, grad_var estimated"),
        Run("HMC", hmc, torch.ones(len(hmc)).double(), f"{len(hmc):,} × 10 leapfrog steps, all data"),
    ]


def histogram(states: Tensor, weights: Tensor) -> Tensor:
    """(CELLS, CELLS) weighted shares of the states (n, 2); states outside the box count nowhere."""
    edges = [np.linspace(*side, CELLS + 1) for side in BOX]
    counts = np.histogram2d(*states.T.numpy(), bins=edges, weights=weights.numpy())[0]
    return torch.from_numpy(counts) / weights.sum()


def masses(exact: Quadrature) -> Tensor:
    """(CELLS, CELLS) exact probabilities of the histogram's cells."""
    return exact.mass.reshape(CELLS, 10, CELLS, 10).sum((1, 3))


def upper(states: Tensor, weights: Tensor) -> Tensor:
    """P(θ2 > 0), the mode near (0, 1): states (n, ..., 2), weights (n,)."""
    return torch.einsum("n,n...->...", weights, (states[..., 1] > 0).double()) / weights.sum()


def measure(r: Run, exact: Quadrature) -> dict[str, Any]:
    truth, c = masses(exact).flatten(), r.states.shape[1]
    each = torch.stack([histogram(r.states[:, i], r.weights).flatten() for i in range(c)])
    share = upper(r.states, r.weights)
    return {
        "one chain": total_variation(each, truth),
        "all chains": total_variation(each.mean(0), truth),
        "mode": share,
        "mode error": (share - upper(exact.nodes, exact.mass)).abs(),
    }


def noise_variances(law: WellingTeh, states: Tensor, sizes: bdl.schedules.Polynomial) -> dict[str, list]:
    """Variance of one step from injected noise and from batches of one item, at steps t spaced evenly in log t."""
    columns: dict[str, list] = {"passes": [], "injected": [], "θ₁": [], "θ₂": []}
    rows = np.unique(np.geomspace(1, len(states), 40).astype(int)) - 1
    items = torch.arange(law.num_data)[:, None].expand(-1, states.shape[1]).T[..., None]  # (C, N, 1)
    for row in rows.tolist():
        eps = sizes(10 * row + 9)
        gradients = law.loss_and_grad(states[row].unsqueeze(1).expand(-1, law.num_data, -1), items)[1]
        v = (eps / 2 * law.num_data) ** 2 * gradients.var(1, correction=0).mean(0)
        values = ((10 * row + 10) / law.num_data, eps, v[0].item(), v[1].item())
        for name, value in zip(columns, values, strict=True):
            columns[name].append(value)
    return columns


def rejections(law: WellingTeh, exact: Quadrature, context: Context) -> dict[str, list[float]]:
    """Share of Langevin steps on all the data that a Metropolis test would reject."""
    eps = np.geomspace(LAST, 10 * FIRST, 8).tolist()
    start = exact.sample(256, generator("cpu", "mixture rejections", context.seed))
    refused = []
    for e in eps:
        run = Chains(law, bdl.MALA(), start, lr=e / 2 * law.num_data, seed=context.seed)
        run.run(context.choose(200, 20), every=10)
        assert run.sampler.acceptance is not None
        refused.append(1 - run.sampler.acceptance.mean().item())
    return {"ε": eps, "refused": refused}


def tabulate(runs: Sequence[Run], measures: dict[str, dict[str, Any]], exact: Quadrature) -> Table:
    truth = float(upper(exact.nodes, exact.mass))
    header = ["samples", "published", "distance of one chain", "of all chains together",
              f"P(θ₂ > 0), exact {truth:.3f}", "its error in one chain", "settings"]  # fmt: skip
    rows = []
    for r in runs:
        f = measures[r.name]
        rows.append([r.name, r.published, with_error(f["one chain"]), f"{f['all chains']:.3f}"])
        rows[-1] += [with_error(f["mode"]), with_error(f["mode error"]), r.settings]
    return Table(
        "Distance from the true posterior",
        header,
        rows,
        f"Distance: total variation between a histogram of {CELLS} × {CELLS} cells and the posterior by quadrature, "
        f"{runs[0].states.shape[1]} chains. The paper shows pictures of one chain of 10,000 passes; here its steps, "
        f"1e-2 to 1e-4 with γ = .55, take {PASSES} passes. The early, large steps are hot: the batch noise exceeds the "
        "injected noise. The weights ε of the theory (post on Bayes by Backprop, eq. 25) favour these steps. They make "
        "the law of all chains together worse, but help a single chain, which moves faster early on.",
    )


def phases(noise: dict[str, list], rejection: dict[str, list[float]], law: WellingTeh) -> Table:
    rows = []
    for name in ("θ₁", "θ₂"):
        below = [i for i, v in enumerate(noise[name]) if v < noise["injected"][i]]
        first = f"{noise['passes'][below[0]]:.1f} passes, ε = {noise['injected'][below[0]]:.1e}" if below else "never"
        rows.append([f"batch noise falls below the injected noise, {name}", "“two phases”", first])
    at = {e: r for e, r in zip(*rejection.values(), strict=True)}
    ends = (min(at, key=lambda e: abs(math.log(e / LAST))), min(at, key=lambda e: abs(math.log(e / FIRST))))
    for e in ends:
        rows.append([f"steps that a Metropolis test rejects, ε = {e:.1e}", "falls with ε", f"{at[e]:.2%}"])
    return Table("Two phases", ["quantity", "published", "ours"], rows)


def draw_posterior(exact: Quadrature, plain: Run, measures: dict[str, dict[str, Any]]) -> Figure:
    figure, axes = canvas("SGLD finds both modes of the posterior, a little too wide", 1, 3, sharex=True, sharey=True,
                          height=3.4)  # fmt: skip
    pooled = plain.states.flatten(0, 1)
    panels = (
        ("true posterior", masses(exact)),
        ("SGLD, one chain", histogram(plain.states[:, 0], plain.weights)),
        (f"SGLD, {plain.states.shape[1]} chains: distance {measures[plain.name]['all chains']:.2f}",
         histogram(pooled, plain.weights.repeat_interleave(plain.states.shape[1]))),
    )  # fmt: skip
    for ax, (title, mass) in zip(axes[0], panels, strict=True):
        ax.imshow(
            mass.T, origin="lower", extent=(*BOX[0], *BOX[1]), aspect="auto", vmin=0, vmax=float(panels[0][1].max())
        )
        ax.grid(False)
        label(ax, title, "θ₁", "θ₂" if ax is axes[0, 0] else "")
    return figure


def draw_noise(noise: dict[str, list], rejection: dict[str, list[float]]) -> Figure:
    title = "First the batches' noise rules, then the injected; a Metropolis test refuses little"
    figure, axes = canvas(title, 1, 2, width=4.6, height=3.0)
    ax: Axes = axes[0, 0]
    ax.loglog(noise["passes"], noise["injected"], color="black", lw=1.8, label="injected: ε")
    for name, colour in (("θ₁", BLUE), ("θ₂", ORANGE)):
        ax.loglog(noise["passes"], noise[name], color=colour, lw=1.5, label=f"batches of 1: {name}")
    ax.legend(loc="lower left")
    label(ax, "variance of a step", "passes through the data")
    axes[0, 1].loglog(rejection["ε"], rejection["refused"], "o-", color=GREEN)
    axes[0, 1].axvspan(LAST, FIRST, color=RED, alpha=0.1, lw=0, label="step sizes of SGLD")
    axes[0, 1].legend(loc="upper left")
    label(axes[0, 1], "share of steps refused, all data", "ε")
    return figure
