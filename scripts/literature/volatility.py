"""A stochastic volatility model: HMC against SGHMC on mini-batches of times."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import bdl
from bdl.posterior.diagnostics import ess, rhat
from bdl.seeding import generator
from literature.experiment import Context, Result, Table, experiment
from literature.figures import BLUE, GREEN, GREY, RED, canvas, label
from literature.sources import BACKPROP_POST
from literature.targets import Chains, StochasticVolatility, simulate_volatility

SOURCE = f"announced in the {BACKPROP_POST}; model of Kim, Shephard & Chib 1998"
TRUTH = {"μ": -1.0, "φ": 0.95, "σ": 0.25}
BATCH, FRICTION, LR = 50, 0.05, 0.1
CHAINS = 8


@dataclass(frozen=True)
class Method:
    name: str
    dynamics: Any
    lr: float
    steps: int
    burn_in: int
    every: int
    settings: str
    batch: int | None = None


@dataclass(frozen=True, eq=False)
class Run:
    method: Method
    draws: Tensor  # (n, C, d)
    parameters: Tensor  # (n, C, 3): mu, phi, sigma
    gradients: int  # evaluations per chain, each on all data or on a batch

    @property
    def paths(self) -> Tensor:
        """(n C, N) log-volatilities."""
        return self.draws[..., 3:].flatten(0, 1)


def methods(law: StochasticVolatility, context: Context) -> list[Method]:
    shrink = context.choose(1, 16)
    n, m = law.num_data, BATCH
    # Variance that a batch of m times gives the gradient of U/N in h_t: E(½(1 - y² exp(-h)))² / (m N) = ½ / (m N)
    known = torch.full((law.dim,), 0.5 / (m * n), dtype=torch.float64)
    known[:3] = 0
    sghmc: dict[str, Any] = {"lr": LR, "steps": 20_000 // shrink, "burn_in": 5_000 // shrink, "every": 20}
    said = f"lr {LR:g}, friction {FRICTION:g}, 25,000 steps"
    return [
        Method("HMC", bdl.HMC(leapfrog=40, adapt_steps=400 // shrink), 0.1, 6_000 // shrink, 400 // shrink, 3,
               "40 leapfrog steps, step size adapted to acceptance 0.8; 400 + 6,000 steps"),
        Method(f"SGHMC, m = {m}", bdl.SGHMC(FRICTION), settings=said, batch=m, **sghmc),
        Method(f"SGHMC, m = {m}, less batch noise", bdl.SGHMC(FRICTION, grad_var=known), batch=m,
               settings=f"{said}, grad_var = ½ / (m N) on h", **sghmc),
        Method("SGHMC, all data", bdl.SGHMC(FRICTION), settings=said, **sghmc),
    ]  # fmt: skip


@experiment("stochastic-volatility", SOURCE, "A stochastic volatility model by HMC and SGHMC")
def stochastic_volatility(context: Context) -> Result:
    y, h = simulate_volatility(200, *TRUTH.values(), seed=context.seed)
    law = StochasticVolatility(y)
    runs = [run(law, m, context) for m in context.track(methods(law, context), "stochastic-volatility")]
    measures = {r.method.name: measure(r, h) for r in runs}
    figures = {"parameters": draw_parameters(runs), "path": draw_path(runs, y, h)}
    return Result(figures, [tabulate(runs, measures)], measures)


def run(law: StochasticVolatility, m: Method, context: Context) -> Run:
    """Chains start dispersed: their parameters cover the prior's range, h is constant at mu."""
    noise = generator("cpu", "volatility start", context.seed)
    z, u = torch.randn(CHAINS, generator=noise), torch.rand(2, CHAINS, generator=noise)
    mu = -1 + 0.5 * z.double()
    start = law.pack(mu, 0.8 + 0.15 * u[0], 0.1 + 0.4 * u[1], mu[:, None].expand(-1, law.num_data))
    chains = Chains(law, m.dynamics, start, lr=m.lr, batch=m.batch, seed=context.seed)
    draws = chains.run(m.steps, every=m.every, burn_in=m.burn_in)
    return Run(m, draws, law.parameters(draws), chains.gradients)


def measure(r: Run, h: Tensor) -> dict[str, Any]:
    draws = r.parameters.transpose(0, 1).numpy()  # (C, n, 3)
    low, high = r.paths.quantile(torch.tensor([0.05, 0.95], dtype=torch.float64), 0)
    every_tenth = r.draws[..., 3::10].transpose(0, 1).numpy()
    return {
        "mean": draws.mean((0, 1)), "std": draws.std((0, 1)), "rhat": rhat(draws), "ess": ess(draws),
        "rhat of h": float(rhat(every_tenth).max()), "gradients": r.gradients,
        "coverage": ((h >= low) & (h <= high)).double().mean(), "width": (high - low).mean(),
        "error of h": (r.paths.mean(0) - h).square().mean().sqrt(),
    }  # fmt: skip


def tabulate(runs: Sequence[Run], measures: dict[str, dict[str, Any]]) -> Table:
    header = ["method", "published", *(f"{name}, true {value:g}" for name, value in TRUTH.items()),
              "R-hat of μ, φ, σ", "largest R-hat of h", "ESS of σ", "h in its 90 % band", "width of the band",
              "gradients a chain", "settings"]  # fmt: skip
    rows = []
    for r in runs:
        f = measures[r.method.name]
        rows.append([r.method.name, "announced only", *(f"{a:.2f} ± {b:.2f}" for a, b in zip(f["mean"], f["std"]))])  # noqa: B905
        rows[-1] += [", ".join(f"{v:.2f}" for v in f["rhat"]), f"{f['rhat of h']:.2f}", f"{f['ess'][2]:.0f}"]
        rows[-1] += [f"{f['coverage']:.1%}", f"{f['width']:.2f}", f"{f['gradients']:,}", r.method.settings]
    return Table(
        f"200 returns, {CHAINS} chains from dispersed starts: posterior means and standard deviations",
        header,
        rows,
        "The batch noise of 50 times is 1 % of SGHMC's injected noise, so T_eff is 1.01; yet σ is a fifth too large. "
        "The 200 increments of h grow along with σ, and the data say too little about σ to hold it back. Subtracting "
        "the known variance of the batches from the injected noise repairs this, as does using all the data. Do not "
        'use `grad_var="estimated"` here: the gradient in log σ changes more with the motion of the chain than with '
        "the batch, and the estimate would leave no injected noise.",
    )


def draw_parameters(runs: Sequence[Run]) -> Figure:
    title = "SGHMC agrees with HMC once the batches' noise is taken off; left on, it inflates σ"
    figure, axes = canvas(title, 1, 3, width=3.8, height=2.9)
    styles = ((GREY, True, "-"), (RED, False, "-"), (BLUE, False, "-"), (GREEN, False, "--"))
    for j, (ax, (name, truth)) in enumerate(zip(axes[0], TRUTH.items(), strict=True)):
        pooled = runs[0].parameters[..., j]
        low, high = pooled.quantile(0.001), min(float(pooled.quantile(0.999)) * (1.3 if name == "σ" else 1), 1e9)
        edges = np.linspace(float(low), high, 51)
        for r, (colour, fill, dash) in zip(runs, styles, strict=True):
            counts = np.histogram(r.parameters[..., j].flatten(), edges, density=True)[0]
            ax.stairs(counts, edges, fill=fill, color=colour, alpha=0.45 if fill else 1, lw=1.4, ls=dash,
                      label=r.method.name)  # fmt: skip
        ax.axvline(truth, color="black", lw=1.2, ls=":", label="true")
        ax.set_yticks([])
        label(ax, "", name, "density" if j == 0 else "")
    axes[0, 1].legend(loc="upper left", fontsize=8)
    return figure


def draw_path(runs: Sequence[Run], y: Tensor, h: Tensor) -> Figure:
    title = "The hidden log-volatility: 90 % bands of HMC and SGHMC hold the truth"
    figure, axes = canvas(title, 1, 1, width=10.5, height=3.6)
    ax, t = axes[0, 0], np.arange(1, len(h) + 1)
    levels = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    low, middle, high = runs[0].paths.quantile(levels, 0)
    ax.fill_between(t, low, high, color=GREY, alpha=0.3, lw=0, label="HMC, 90 %")
    ax.plot(t, middle, color=GREY, lw=1.2, label="HMC, median")
    low, middle, high = runs[2].paths.quantile(levels, 0)
    ax.plot(t, low, color=BLUE, lw=0.9, ls="--", label=f"{runs[2].method.name}: 90 % and median")
    ax.plot(t, high, color=BLUE, lw=0.9, ls="--")
    ax.plot(t, middle, color=BLUE, lw=1.2)
    ax.plot(t, h, color="black", lw=1.3, label="true")
    ax.plot(t, y.square().log().clamp_min(-6), ".", color=RED, ms=3, alpha=0.5, label="log y² (below -6: at -6)")
    ax.legend(loc="upper left", ncols=5, fontsize=8)
    ax.set(xlim=(0, len(h) + 1), ylim=(-6.2, 3.2))
    label(ax, "", "time", "h")
    return figure
