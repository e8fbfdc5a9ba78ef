"""Ji 2023, two overlapping Gaussians: our symmetric law, and the law of the listing with its matrices as printed."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import bdl
from bdl.seeding import generator
from literature.distances import Slices, with_error
from literature.experiment import Context, Result, Table, experiment
from literature.figures import BLUE, RED, canvas, label
from literature.gaussians import LR, Case, Method, Run, chains_of, sample, study
from literature.sources import NOTES
from literature.targets import STARTS, Mixture, Quadrature, Target, integrate

MEANS = torch.tensor([[0.0, 0.0], [5.0, 5.0]], dtype=torch.float64)
PRINTED = torch.tensor([[[1, 0.9], [-0.9, 10]], [[10, -0.9], [0.9, 10]]], dtype=torch.float64)  # not symmetric
BOX = ((-12.0, -18.0), (24.0, 24.0))  # low, high corner; holds all but 1e-6 of the law
SAID = "explores well, but too little near (0, 0)"


@dataclass(frozen=True, eq=False)
class Listing(Target):
    """U(x) = -log Σ_k exp(-(x - m_k)' S_k⁻¹ (x - m_k) / 2) with the printed S_k, and no factor |S_k|^-½.

    It has no gradient of its own, so that autograd takes it, as in the listing. A quadratic form does not see the
    skew part of S_k⁻¹; neither does its gradient.
    """

    dim: int = 2

    def energy(self, x: Tensor) -> Tensor:
        r = x[..., None, :] - MEANS.to(x)  # (..., K, 2)
        forms = torch.einsum("...ki,kij,...kj->...k", r, torch.linalg.inv(PRINTED).to(x), r)
        return -torch.logsumexp(-forms / 2, -1)


def listing_draws(n: int, noise: torch.Generator) -> Tensor:
    """(n, 2) what the listing calls true samples: half from each mode, by a Cholesky factor of the printed S_k.

    The factor reads the lower triangle alone, and so takes S_k for symmetric.
    """
    roots = torch.linalg.cholesky(PRINTED)
    z = torch.randn(2, n // 2, 2, generator=noise, dtype=torch.float64)
    return (z @ roots.mT + MEANS[:, None]).flatten(0, 1)


@experiment("gaussians-2", f"{NOTES}, figure 2", "Two overlapping Gaussians")
def two(context: Context) -> Result:
    note = (
        "The printed covariances are not symmetric; here we take their upper triangles, and modes of equal weight. The "
        "next table has the law of the listing."
    )
    title = "Two modes that touch: with normalised weights every method fills both"
    ours = study(Case(2, title, dict.fromkeys(["SGLD", "SGRLD", "SGHMC"], SAID), note), context)
    exact = integrate(Listing(), *BOX, context.choose(600, 200))
    methods = [Method("SGLD", bdl.SGLD(), 10_000), Method("SGHMC", bdl.SGHMC(0.01), 10_000, ", friction .01")]
    runs = [sample(Listing(), m, [STARTS[2][0]], context)[0] for m in context.track(methods, "gaussians-2, listing")]
    noise = generator("cpu", "gaussians-2, listing", context.seed)
    draws = {"law": exact.sample(100_000, noise), "listing": listing_draws(100_000, noise)}
    measures = measure(runs, draws, noise)
    figures = {**ours.figures, "gaussians-2-listing": picture(exact, runs, draws["listing"], measures)}
    numbers = {**ours.numbers, "listing": measures}
    return Result(figures, [*ours.tables, tabulate(runs, measures, context)], numbers)


def near_origin(x: Tensor) -> Tensor:
    """(...) share of the samples (..., n, 2) that are nearer to (0, 0) than to (5, 5)."""
    return (x.sum(-1) < 5).double().mean(-1)


def measure(runs: list[Run], draws: dict[str, Tensor], noise: torch.Generator) -> dict[str, dict[str, Tensor]]:
    """Name -> values of one chain each, (C,) or (1,)."""
    to_law, to_draws = Slices.of(draws["law"]), Slices.of(draws["listing"])
    ours = Mixture.case(2).sample(100_000, noise)
    sets = {run.method.name: run.kept for run in runs}
    sets |= {LAW: draws["law"][None], DRAWS: draws["listing"][None], OURS: ours[None]}
    return {
        name: {"near": near_origin(x), "to law": to_law.distance(x), "to draws": to_draws.distance(x)}
        for name, x in sets.items()
    }


LAW = "exp(-U), the listing's loss, by quadrature"
DRAWS = "the listing's “true samples”"
OURS = "our law: symmetric, equal weights"


def tabulate(runs: list[Run], measures: dict[str, Any], context: Context) -> Table:
    settings = {run.method.name: f"lr {LR:g}, {len(run.path):,} steps{run.method.settings}" for run in runs}
    rows = [
        [name, SAID if name in settings else "–", with_error(m["near"]), with_error(m["to law"]),
         with_error(m["to draws"]), settings.get(name, "–")]
        for name, m in measures.items()
    ]  # fmt: skip
    near = {name: float(m["near"].mean()) for name, m in measures.items()}
    return Table(
        "The listing as it is: printed matrices, its loss, its draws",
        ["samples", "published", "nearer to (0, 0) than to (5, 5)", "distance to exp(-U)",
         "distance to the listing's draws", "settings"],
        rows,
        f"{chains_of(context)} chains a method, as above. The drift is autograd's gradient of the listing's loss, the "
        "noise has variance 2 lr (SGLD) or 2 · .01 lr (SGHMC), as in its samplers. The chains and the draws of the "
        "listing belong to different laws. The loss contains x'S⁻¹x, which sees only the symmetric part of S⁻¹: the "
        "modes have covariances diag(1.08, 10.81) and diag(10.08, 10.08), without correlation, and unequal weights, "
        "because |S|^-½ is missing. The draws come from a Cholesky factor, which reads the lower triangle: "
        "-.9 and .9 off the diagonal, and equal weights. This is why Ji's chains are too rarely near (0, 0): "
        f"{near[LAW]:.0%} of their law is nearer to it, and {near[DRAWS]:.0%} of his draws are. The chains sample "
        "their own law.",
    )  # fmt: skip


def picture(exact: Quadrature, runs: list[Run], draws: Tensor, measures: dict[str, Any]) -> Figure:
    """The listing's draws and one chain of each method, over the law that the chains sample."""
    title = "The listing's chains sample the law of its loss; its “true samples” come from another law"
    figure, axes = canvas(title, 1, 3, width=3.9, height=3.6, sharex=True, sharey=True)
    panels = [(DRAWS, draws[:: len(draws) // 9_000])] + [(r.method.name, r.path[len(r.path) // 10 :]) for r in runs]
    for ax, (name, x) in zip(axes[0], panels, strict=True):
        ax.plot(*x.T.numpy(), ".", color=RED if name == DRAWS else BLUE, ms=1.8, alpha=0.5, mew=0, rasterized=True)
        contours(ax, exact)
        label(ax, f"{name}\n{float(measures[name]['near'].mean()):.0%} nearer to (0, 0)")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center")
    return figure


def contours(ax: Axes, exact: Quadrature) -> None:
    """The regions of highest density that hold 50, 90 and 99 % of the law."""
    density = exact.density().numpy()
    ordered = np.sort(density, axis=None)[::-1]
    held = np.cumsum(ordered) / ordered.sum()
    levels = sorted(ordered[np.searchsorted(held, share)] for share in (0.5, 0.9, 0.99))
    x, y = (exact.nodes[:, i].reshape(exact.shape).numpy() for i in (0, 1))
    ax.contour(x, y, density, levels=levels, colors="black", linewidths=0.9, zorder=3)
    ax.plot([], [], color="black", lw=0.9, label="50, 90, 99 % of exp(-U)")
