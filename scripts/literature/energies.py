"""Liang 2024 in one dimension, where quadrature is possible: weighted landscapes, and AWSGLD's CDF of energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import bdl
from bdl.psi import log_psi_and_slope
from literature.experiment import Context, Result, Table, experiment
from literature.figures import BLUE, ORANGE, RED, canvas, label
from literature.sources import SLIDES
from literature.targets import Chains, GaussianLaw, Mixture, Quadrature, Target, integrate


@dataclass(frozen=True)
class Wells(Target):
    """U(x) = (x/2)² + 1 - cos πx in one dimension: a global minimum at 0, local ones near ±2, ±4, ..."""

    dim: int = 1

    def energy(self, x: Tensor) -> Tensor:
        return ((x / 2).square() + 1 - (torch.pi * x).cos()).sum(-1)


@dataclass(frozen=True)
class Psi:
    """The psi that one run of AWSGLD learned; psi^zeta estimates G."""

    edges: np.ndarray  # (m + 1,) nats
    psi: np.ndarray  # (m,) the recursion's state; psi[i]^zeta estimates G at the upper edge of bin i
    zeta: float
    log_psi: np.ndarray  # (m,) log psi as the sampler uses it, at the bin centres

    @classmethod
    def of(cls, sampler: bdl.Sampler, zeta: float) -> Psi:
        h: Any = sampler.reweighting.histogram
        return cls(h.all_edges()[0].numpy(), h.psi[0].numpy(), zeta, h.log_psi[0].numpy())

    def log_weight_at(self, u: np.ndarray) -> np.ndarray:
        """(n,) zeta log psi at the energies u (n,)."""
        return self.zeta * log_psi_at(u, self.log_psi, self.edges)


def log_psi_at(u: np.ndarray, log_psi: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """(n,) log psi at the energies u (n,) from its values (m,) at the centres of bins with edges (m + 1,)."""
    return log_psi_and_slope(u, log_psi[None], (edges[1:] + edges[:-1])[None] / 2, open_top=True)[0]


def fixed_point(law: Quadrature, edges: np.ndarray, zeta: float) -> np.ndarray:
    """psi (m,), the recursion's fixed point psi_i = Σ_{j<=i} m_j psi_j / Σ_j m_j psi_j, by damped iteration.

    m_j is the mass of bin j under exp(-U/T) / psi_lin(U)^zeta, where log psi_lin is linear between bin centres and its
    rises are bounded as in the sampler; the outer bins extend to infinity. Narrow bins give psi -> G^(1/zeta).
    """
    m, energy, mass = len(edges) - 1, law.energies.numpy(), law.mass.numpy()
    bin_of = np.clip(np.searchsorted(edges, energy, side="right") - 1, 0, m - 1)
    psi, before = np.ones(m), np.zeros(m)
    while np.abs(psi - before).max() > 1e-7:
        weighted = mass * np.exp(-zeta * log_psi_at(energy, bounded_log(psi), edges))
        terms = np.bincount(bin_of, weights=weighted, minlength=m) * psi
        before, psi = psi, np.sqrt(psi * np.cumsum(terms) / terms.sum())
    return psi


def bounded_log(psi: np.ndarray) -> np.ndarray:
    """log psi as the sampler uses it: 0 in the top bin, with rises 1 - θ_(J-1)/θ_J from bin to bin."""
    rises = 1 - psi[:-1] / np.maximum(psi[1:], 1e-300)
    return np.append(-np.cumsum(rises[::-1])[::-1], 0.0)


LANDSCAPES = {1.0: 4e-3, 2.0: 4e-3, 8.0: 2e-3}  # T -> lr
LANDSCAPE_BINS = 60


@experiment("landscapes", f"{SLIDES}, illustrative example 1", "What adaptive weighting does to an energy landscape")
def landscapes(context: Context) -> Result:
    title = "A high temperature T flattens the landscape; adaptive weighting digs a funnel at its lowest energies"
    figure, axes = canvas(title, 2, 3, sharex=True, sharey="col", width=3.9, height=2.5)
    rows, numbers = [], {}
    runs = context.track(LANDSCAPES.items(), "landscapes", total=3)
    for column, (t, lr) in zip(axes.T, runs, strict=True):
        law = integrate(Wells(), -7 * (2 * t) ** 0.5, 7 * (2 * t) ** 0.5, 200_000, t)
        learned = learn_landscape(context, law, t, lr)
        measures = measure_landscape(law, learned)
        draw_landscape(column, law, learned, t)
        numbers[f"T = {t:g}"] = measures
        rows.append([f"{t:g}", "curves only", *(f"{value:.3f}" for value in measures.values()), f"lr {lr:g}"])
    axes[0, 0].set_ylabel("original: U / T (nats)")
    axes[1, 0].set_ylabel("weighted: U / T + ζ log θ(U)")
    axes[1, 0].legend(loc="lower left", fontsize=8)
    return Result({"landscapes": figure}, [_landscape_table(rows, context)], numbers)


def _landscape_table(rows: list[list[str]], context: Context) -> Table:
    header = ["T", "published", "exp(-U/T)", "weighted by G", f"the same, {LANDSCAPE_BINS} bins, exact",
              "weighted by the θ of one run", "largest error of its θ", "settings"]  # fmt: skip
    return Table(
        "Probability of the global well, |x| < 1",
        header,
        rows,
        "The slides do not say which U their curves show; here U = (x/2)² + 1 - cos πx. 64 chains share one θ of "
        f"{LANDSCAPE_BINS} bins; ζ = 1, {landscape_steps(context):,} steps. The limit θ_*^ζ is G, the CDF of energy, "
        "for any ζ. log G falls without bound at the lowest energy, but a sampler's lowest bin is a floor: with bins "
        "the funnel is less deep.",
    )


def landscape_steps(context: Context) -> int:
    return context.choose(40_000, 1_000)


def learn_landscape(context: Context, law: Quadrature, temperature: float, lr: float) -> Psi:
    ordered, order = law.energies.sort()
    high = ordered[law.mass[order].cumsum(0) < 0.98][-1].item()
    weighting = bdl.AdaptiveWeight(1.0, 0.0, high, LANDSCAPE_BINS, rate=averaging, shared=True)
    start = torch.linspace(-4, 4, 64, dtype=torch.float64)[:, None] * temperature**0.5
    chains = Chains(Wells(), bdl.SGLD(), start, lr=lr, temperature=temperature, weighting=weighting, seed=context.seed)
    chains.run(landscape_steps(context), every=1_000)
    return Psi.of(chains.sampler, 1.0)


def averaging(k: int) -> float:
    """Step of the recursion; at the end it averages over about the last third of the run."""
    return min(0.1, 4 / (k + 40))


def measure_landscape(law: Quadrature, learned: Psi) -> dict[str, float]:
    energy, well = law.energies.numpy(), law.nodes[:, 0].abs().numpy() < 1
    exact = fixed_point(law, learned.edges, learned.zeta)

    def probability(weight: np.ndarray | float) -> float:
        mass = law.mass.numpy() / weight
        return float(mass[well].sum() / mass.sum())

    return {
        "plain": probability(1.0),
        "weighted": probability(np.maximum(law.energy_cdf(energy).numpy(), 1e-300)),
        "binned": probability(np.exp(log_psi_at(energy, bounded_log(exact), learned.edges))),
        "learned": probability(np.exp(learned.log_weight_at(energy))),
        "error": float(np.abs(learned.psi - exact).max()),
    }


def draw_landscape(axes: np.ndarray, law: Quadrature, learned: Psi, t: float) -> None:
    shown = law.nodes[:, 0].abs() < 6
    x, energy = law.nodes[shown, 0][::20].numpy(), law.energies[shown][::20].contiguous().numpy()
    weighted = energy / t + np.log(np.maximum(law.energy_cdf(energy).numpy(), 1e-300))
    axes[0].plot(x, energy / t, color=BLUE, lw=1.8)
    axes[1].plot(x, weighted, color=RED, lw=1.8, label="exact: θ^ζ = G(U)")
    axes[1].plot(
        x, energy / t + learned.log_weight_at(energy), color="black", lw=1.2, ls="--", label="learned in one run"
    )
    axes[1].set_ylim(bottom=weighted.min() / 2)  # the exact curve falls without bound
    label(axes[0], f"T = {t:g}")
    label(axes[1], "", "x")


@dataclass(frozen=True)
class Panel:
    title: str
    target: Target
    zeta: float
    span: tuple[float, float]  # range of x
    edges: tuple[float, ...]  # edges of the bins, nats
    lr: float = 0.02


BIN_COUNT = 50


def alike(low: float, high: float) -> tuple[float, ...]:
    """Edges of bins of one width."""
    return tuple(np.linspace(low, high, BIN_COUNT + 1).tolist())


def narrow_below(low: float, high: float) -> tuple[float, ...]:
    """Edges of bins whose width grows with their distance from the lowest energy, where G grows fastest."""
    return tuple((low + (high - low) * np.linspace(0, 1, BIN_COUNT + 1) ** GROWTH).tolist())


GROWTH = 1.5
NORMAL = GaussianLaw([0.0], [[1.0]])
MIXTURE = Mixture([0.4, 0.6], [[-2.0], [1.0]], [[1.0]])
BY_HAND = ", edges by hand"
PANELS = tuple(
    Panel(f"{title}{text}", law, zeta, span, edges(low, low + 5))
    for edges, text in ((alike, ""), (narrow_below, BY_HAND))
    for title, law, zeta, span, low in (
        ("N(0, 1), ζ = 1", NORMAL, 1.0, (-9, 9), 0.0),
        ("N(0, 1), ζ = 2", NORMAL, 2.0, (-9, 9), 0.0),
        ("⅖ N(-2, 1) + ⅗ N(1, 1), ζ = 2", MIXTURE, 2.0, (-11, 10), 1.4),
    )
)


@experiment("energy-cdf", f"{SLIDES}, estimation of the CDF of energy", "The energy CDF that AWSGLD learns")
def energy_cdf(context: Context) -> Result:
    rows, numbers, drawn = [], {}, []
    for panel in context.track(PANELS, "energy-cdf"):
        law, learned, curves = curves_of(panel, context)
        truth = law.energy_cdf(learned.edges[1:]).numpy()
        distances = {name: float(np.abs(curve - truth)[:-1].max()) for name, curve in curves.items()}
        distances["learned to fixed point"] = float(np.abs(curves["learned"] - curves["fixed point"])[:-1].max())
        numbers[panel.title] = distances
        rows.append([panel.title, "red on black, by eye", *(f"{value:.3f}" for value in distances.values())])
        drawn.append((law, learned.edges, curves))
    return Result({"energy-cdf": draw_cdf(*drawn[:2])}, [_cdf_table(rows, context)], numbers)


def curves_of(panel: Panel, context: Context) -> tuple[Quadrature, Psi, dict[str, np.ndarray]]:
    law = integrate(panel.target, *panel.span, 200_000)
    learned, aw, sgld = sample_energies(panel, context)
    return law, learned, cdf_curves(law, learned, aw, sgld)


def cdf_curves(law: Quadrature, learned: Psi, aw: np.ndarray, sgld: np.ndarray) -> dict[str, np.ndarray]:
    """Estimates (m,) of G at the upper bin edges, from psi and from the energies of samples of AWSGLD and SGLD."""
    edges, log_w = learned.edges, learned.log_weight_at(aw)
    return {
        "fixed point": fixed_point(law, edges, learned.zeta) ** learned.zeta,
        "learned": learned.psi**learned.zeta,
        "reweighted": empirical(aw, edges[1:], np.exp(log_w - log_w.max())),
        "weighted": empirical(aw, edges[1:]),
        "sgld": empirical(sgld, edges[1:]),
    }


def _cdf_table(rows: list[list[str]], context: Context) -> Table:
    header = ["law", "published θ^ζ", "exact fixed point of the recursion", "θ^ζ as learned",
              "AWSGLD samples, reweighted", "AWSGLD samples", "SGLD samples", "θ^ζ to its fixed point"]  # fmt: skip
    return Table(
        "Largest distance to the true G(u), over the bin edges",
        header,
        rows,
        f"64 chains share one θ of {BIN_COUNT} bins; lr {PANELS[0].lr:g}, {steps(context):,} steps a chain, half of "
        "them burn-in. The CDF of AWSGLD's samples lies above G by design: they favour low energies. At ζ = 2 bins of "
        "one width .1 cannot give the published agreement: a step function of energy has the fixed point θ_i ∝ "
        "Σ_{j<=i} g_j θ_j^(1-ζ), which is G at ζ = 1 for any bins, but G^(1/ζ) at ζ = 2 only for narrow ones. Here log "
        "θ is linear between centres and its rises are 1 - θ_(J-1)/θ_J, which costs another .02. The slides "
        f"do not say which edges they use. By hand they are u_i = low + 5 (i / {BIN_COUNT})^{GROWTH}: as many bins, "
        "narrower where G grows fastest, and the fixed point comes closer to G. The price is a steeper log θ there, "
        "for which lr is a coarse step. Weights belong to the θ in force, whatever its distance from G.",
    )


def steps(context: Context) -> int:
    return context.choose(20_000, 1_500)


def sample_energies(panel: Panel, context: Context) -> tuple[Psi, np.ndarray, np.ndarray]:
    """The psi that AWSGLD learned, the energies (n,) of its samples, and those of SGLD's samples."""
    start = torch.linspace(-2, 2, 64, dtype=torch.float64)[:, None]
    weighting = bdl.AdaptiveWeight(panel.zeta, edges=panel.edges, rate=averaging, shared=True)
    half = steps(context) // 2
    samplers, energies = [], []
    for w in (weighting, bdl.Flat()):
        chains = Chains(panel.target, bdl.SGLD(), start, lr=panel.lr, weighting=w, seed=context.seed)
        kept = chains.run(half, every=10, burn_in=half)
        samplers.append(chains.sampler)
        energies.append(panel.target.energy(kept).flatten().numpy())
    return Psi.of(samplers[0], panel.zeta), energies[0], energies[1]


def empirical(energies: np.ndarray, u: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Weighted share of the energies at or below each u."""
    order = np.argsort(energies)
    w = np.ones_like(energies) if weights is None else weights[order]
    total = np.concatenate([[0.0], np.cumsum(w)])
    return total[np.searchsorted(energies[order], u, side="right")] / total[-1]


Drawn = tuple[Quadrature, np.ndarray, dict[str, np.ndarray]]  # a law, edges of bins, and estimates at the upper edges


def draw_cdf(one: Drawn, two: Drawn) -> Figure:
    """What AWSGLD learns of a normal law at ζ = 1 and 2, with bins of one width, beside the truth."""
    title = "At ζ = 1 AWSGLD learns the CDF of energy; at ζ = 2 it stays below, but its weights lead back"
    figure, axes = canvas(title, width=5.2, height=3.4)
    ax, (law, edges, curves) = axes[0, 0], two
    u = np.linspace(edges[0], edges[-1], 500)
    ax.plot(u, law.energy_cdf(u), color="black", lw=2.4, label="true G(u)")
    ax.plot(one[1][1:], one[2]["learned"], color=BLUE, ls="--", lw=1.8, label="learned, ζ = 1")
    ax.plot(edges[1:], curves["learned"], color=RED, lw=1.8, label="learned, ζ = 2")
    ax.plot(edges[1:], curves["reweighted"], color=ORANGE, ls=":", lw=2.4, label="samples of ζ = 2, weighted back")
    ax.set_xlim(edges[0], edges[0] + 4)
    ax.legend(loc="lower right")
    label(ax, "", "energy u of a draw of N(0, 1) (nats)", "probability of a lower energy")
    return figure
