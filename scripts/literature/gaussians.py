"""Ji 2023: HMC, SGLD, SGRLD and SGHMC on mixtures of one to four Gaussians, from distant starting points."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import bdl
from bdl.posterior.diagnostics import ess
from bdl.seeding import generator
from literature.distances import Slices, total_variation, with_error
from literature.experiment import Context, Result, Table, experiment
from literature.figures import BLUE, RED, canvas, label
from literature.sources import NOTES
from literature.targets import STARTS, Chains, Mixture

LR = 0.1  # the lr of Ji's listings
EXCHANGE, EXACT = "MALA, replica exchange", "independent draws, as many as SGLD keeps"
DRAWS = 900  # kept per chain


def information(law: Mixture) -> Callable[[Tensor], Tensor]:
    """The metric G(x) = Σ_k r_k(x) S_k⁻¹, with r_k(x) the probability that x came from mode k.

    Within a mode this is the Fisher information about its mean; between modes it varies with x.
    """
    precisions = torch.linalg.inv(law.covariances)

    def metric(x: Tensor) -> Tensor:
        return torch.tensordot(law.responsibilities(x), precisions, 1)

    return metric


@dataclass(frozen=True)
class Method:
    name: str
    dynamics: Any
    steps: int
    settings: str = ""
    ladder: tuple[float, ...] = ()  # temperatures of replica exchange


@dataclass(frozen=True, eq=False)
class Run:
    method: Method
    path: Tensor  # (steps, d) every state of one chain
    kept: Tensor  # (C, n, d) states after the first tenth
    gradients: float  # per chain

    def effective(self) -> float:
        """Effective draws of the worst coordinate per 1,000 gradients."""
        return 1000 * float(ess(self.kept.numpy()).min()) / (len(self.kept) * self.gradients)


def methods(law: Mixture) -> list[Method]:
    return [
        Method("HMC", bdl.HMC(leapfrog=10), 1_000, ", 10 leapfrog steps each"),
        Method("SGLD", bdl.SGLD(), 10_000),
        Method("SGRLD", bdl.SGRLD(information(law)), 2_500, ", G(θ) = Σ r_k(θ) S_k⁻¹, Γ by autograd"),
        Method("SGHMC", bdl.SGHMC(0.01), 10_000, ", friction .01"),
        Method(EXCHANGE, bdl.MALA(), 2_500, ", T = 1, 2.5, 6.3, 16", (1.0, 2.5, 6.3, 16.0)),
    ]


def sample(law: Any, method: Method, starts: Sequence[Sequence[float]], context: Context) -> list[Run]:
    """Run the chains of all starts in one array; one Run per start."""
    rungs, chains = max(1, len(method.ladder)), chains_of(context)
    x = torch.tensor(starts, dtype=torch.float64).repeat_interleave(chains * rungs, 0)
    exchange = bdl.Exchange(method.ladder, every=10, energy_var=0.0) if method.ladder else None
    run = Chains(law, method.dynamics, x, lr=LR, seed=context.seed, exchange=exchange)
    paths = run.run(context.choose(method.steps, method.steps // 20))[:, run.sampler.target_chains]
    burn = len(paths) // 10
    every, gradients = max(1, (len(paths) - burn) // DRAWS), run.gradients * rungs
    return [Run(method, p[:, 0], p[burn::every].transpose(0, 1), gradients) for p in paths.split(chains, 1)]


@dataclass(frozen=True)
class Case:
    modes: int
    title: str
    published: dict[str, str]  # method -> what Ji says about its picture
    note: str


def study(case: Case, context: Context) -> Result:
    """The case from its first starting point: a picture of four methods and a table of all methods."""
    law, start = Mixture.case(case.modes), STARTS[case.modes][0]
    runs = [sample(law, m, [start], context)[0] for m in context.track(methods(law), f"gaussians-{case.modes}")]
    measures = measure(law, runs, context)
    figure = picture(case.title, law, runs, start, measures)
    table = tabulate(f"Distance to the law, started at {start}", runs, measures, case.published)
    table.note = f"{explanation(context)} {case.note}"
    return Result({f"gaussians-{case.modes}": figure}, [table], measures)


def measure(law: Mixture, runs: Sequence[Run], context: Context) -> dict[str, dict[str, Any]]:
    noise = generator("cpu", "gaussians", context.seed)
    slices = Slices.of(law.sample(100_000, noise))

    def distances(kept: Tensor) -> dict[str, Any]:
        each = law.mode_weights(kept.transpose(0, 1))  # (C, K)
        return {
            "one chain": slices.distance(kept),
            "all chains": slices.distance(kept.flatten(0, 1)),
            "mode weights": total_variation(each, law.weights),
            "weights found": each.mean(0),
            "in one mode": (each.max(-1).values > 0.99).double().mean(),
        }

    measures = {}
    for run in runs:
        cost = {"effective draws per 1,000 gradients": run.effective(), "gradients": run.gradients}
        measures[run.method.name] = {**distances(run.kept), **cost}
    chains, n = runs[1].kept.shape[:2]
    measures[EXACT] = distances(law.sample(chains * n, noise).reshape(chains, n, 2))
    return measures


def tabulate(title: str, runs: Sequence[Run], measures: dict[str, dict[str, Any]], published: dict[str, str]) -> Table:
    header = ["method", "published", "distance of one chain", "of all chains together", "mode weights of one chain",
              "chains in one mode", "effective draws per 1,000 gradients", "gradients a chain", "settings"]  # fmt: skip
    settings = {run.method.name: f"lr {LR:g}, {len(run.path):,} steps{run.method.settings}" for run in runs}
    rows = []
    for name, f in measures.items():
        rows.append([name, published.get(name, "–"), with_error(f["one chain"]), f"{f['all chains']:.3f}"])
        several = len(f["weights found"]) > 1
        rows[-1] += [with_error(f["mode weights"]), f"{f['in one mode']:.0%}"] if several else ["–", "–"]
        rows[-1] += [effective(f), f"{f['gradients']:,}" if "gradients" in f else "–", settings.get(name, "–")]
    return Table(title, header, rows)


def effective(measures: dict[str, Any]) -> str:
    if "gradients" not in measures:
        return "–"
    missed = int((measures["weights found"] < 0.01).sum())
    return f"{missed} modes missed" if missed else f"{measures['effective draws per 1,000 gradients']:.1f}"


def explanation(context: Context) -> str:
    return (
        f"Distances are sliced Wasserstein-1 distances over 16 directions, for {chains_of(context)} chains a method "
        "without the first tenth of each; ± is the standard error over chains. The distance of mode weights is the "
        "total variation. Compare chains of different length by their effective draws per gradient, which count the "
        "leapfrog steps of HMC and all four temperatures of replica exchange. Ji shows pictures of one chain each. His "
        "SGRLD preconditions only the injected noise, which samples another law; here the drift and Γ use G as well."
    )


def chains_of(context: Context) -> int:
    return context.choose(64, 16)


def picture(
    title: str, law: Mixture, runs: Sequence[Run], start: Sequence[float], measures: dict[str, dict[str, Any]]
) -> Figure:
    """One panel for each of the first four methods."""
    figure, axes = canvas(title, 2, 2, width=4.3, height=3.4, sharex=True, sharey=True)
    for ax, run in zip(axes.flat, runs, strict=False):
        draw(ax, law, run, start, measures[run.method.name])
        ax.locator_params(nbins=6)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def draw(ax: Axes, law: Mixture, run: Run, start: Sequence[float], measures: dict[str, Any]) -> None:
    """One chain, its first gradients in red, over the regions that hold 50, 90 and 99 % of the law."""
    path = run.path.numpy()
    contours(ax, law)
    size = 1.8 if len(path) > 3_000 else 3.0
    ax.plot(*path[len(path) // 10 :].T, ".", color=BLUE, ms=size, alpha=0.5, mew=0, rasterized=True)
    first = 50 if run.method.name != "HMC" else 5
    ax.plot(*np.vstack([start, path[:first]]).T, "-", color=RED, lw=1.1, label="first 50 gradients")
    ax.plot(*start, "*", color=RED, ms=11, mec="white", mew=0.6, label=f"start ({start[0]:g}, {start[1]:g})")
    label(ax, f"{run.method.name}, {len(path):,} steps: distance {measures['one chain'].mean():.2f}")


def contours(ax: Axes, law: Mixture) -> None:
    exact = law.sample(20_000, generator("cpu", "contours"))
    low, high = exact.min(0).values, exact.max(0).values
    x, y = (torch.linspace(float(a), float(b), 160, dtype=torch.float64) for a, b in zip(low, high, strict=True))
    density = law.log_prob(torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)).exp()
    inside = law.log_prob(exact).exp().quantile(torch.tensor([0.01, 0.1, 0.5], dtype=torch.float64))
    ax.contour(x, y, density, levels=inside, colors="black", linewidths=0.9, zorder=3)
    ax.plot([], [], color="black", lw=0.9, label="50, 90, 99 % of the law")


@experiment("gaussians-1", f"{NOTES}, figure 1", "One Gaussian from a distant start")
def one(context: Context) -> Result:
    slow = "explores all, several steps to get there"
    published = {"HMC": "in the right region after one step", "SGLD": slow, "SGRLD": slow}
    note = (
        "The printed covariance, (1, .8; -.8, 10), is not symmetric; here both off-diagonal entries are .8. The "
        "printed energy lacks a ½, so Ji's chains sample half the covariance of the draws to which he compares them. G "
        "is constant here: SGRLD is SGLD preconditioned by the covariance, and its step is the same in all directions."
    )
    title = "All four find the Gaussian; SGHMC with friction .01 swings longest before it settles"
    return study(Case(1, title, {**published, "SGHMC": "worst way there; explores all"}, note), context)


@experiment("gaussians-3", f"{NOTES}, figure 3", "Three connected Gaussians")
def three(context: Context) -> Result:
    note = (
        "The narrow directions have variance .1, which SGLD at lr .1 doubles: 1 / (1 - lr / (2 · .1)) = 2. The "
        "distance of all its chains together shows this bias. HMC has no such bias, and SGRLD's step fits the mode."
    )
    said = "explores the triangle well"
    title = "SGLD at lr .1 smears the narrow modes, the other three hardly do"
    return study(Case(3, title, dict.fromkeys(["SGLD", "SGRLD", "SGHMC"], said), note), context)


@experiment("gaussians-4", f"{NOTES}, figure 4", "Four Gaussians, near and far apart")
def four(context: Context) -> Result:
    figures, tables, numbers = {}, [], {}
    for distance, cases in FOUR.items():
        law, starts = apart(distance), [case[0] for case in cases.values()]
        wanted = [m for m in methods(law) if any(m.name in case[1] for case in cases.values())]
        runs = [sample(law, m, starts, context) for m in context.track(wanted, f"gaussians-4, {distance:g} apart")]
        for i, (name, (start, chosen, title, published)) in enumerate(cases.items()):
            shown = [run[i] for run in runs if run[i].method.name in chosen]
            numbers[name] = measure(law, shown, context)
            figures[name] = picture(title, law, shown, start, numbers[name])
            tables.append(tabulate(f"{title}; started at {start}", shown, numbers[name], published))
    tables[-1].note = (
        f"{explanation(context)} Ji says that (5, 5) has zero density and that every chain is trapped. The point is a "
        "mode, and the modes are 5 standard deviations apart with a barrier of 2.4 nats: a chain of 10,000 steps "
        "crosses it many times, so the law of the listing cannot give his figure. With modes twice as far apart (11.8 "
        "nats) every method but replica exchange is trapped as he says. G = 1 for these covariances, so SGRLD is SGLD."
    )
    return Result(figures, tables, numbers)


def apart(distance: float) -> Mixture:
    """Four standard normals on the corners of a square."""
    return Mixture([1.0] * 4, [[0, 0], [distance, 0], [distance, distance], [0, distance]], torch.eye(2))


ALL = ["HMC", "SGLD", "SGRLD", "SGHMC"]
REST = ["HMC", "SGLD", "SGHMC", EXCHANGE]
TRAPPED = dict.fromkeys(ALL[1:], "trapped in one mode")
FOUR = {  # distance -> figure -> start, methods, title, published
    5.0: {
        "gaussians-4": (STARTS[4][0], [*ALL, EXCHANGE], "Modes 5 apart: no chain is trapped", TRAPPED),
        "gaussians-4-outside": (STARTS[4][1], REST, "Modes 5 apart, from a start far outside", TRAPPED),
    },
    10.0: {"gaussians-4-isolated": ((10.0, 10.0), REST, "Modes 10 apart: only replica exchange finds all four", {})},
}
