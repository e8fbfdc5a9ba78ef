"""Liang 2024 in two dimensions: the search for Ackley's global minimum, and visits on a rugged surface."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from torch import Tensor

import bdl
from bdl.seeding import derive_seed, generator
from literature.experiment import Context, Result, Table, experiment
from literature.figures import BLUE, GREEN, ORANGE, RED, canvas, label
from literature.sources import SLIDES
from literature.targets import Ackley, Chains, RuggedSurface, Target

ABOVE, BELOW = "AWSGLD, narrow bins above 14", "AWSGLD, narrow bins below 8"
COLOURS = {"SGLD": BLUE, "AWSGLD": RED, ABOVE: ORANGE, BELOW: GREEN}


def uncertain(values: Tensor, digits: int = 2) -> str:
    """Mean ± standard error over chains."""
    return f"{values.mean():,.{digits}f} ± {values.std() / len(values) ** 0.5:,.{digits}f}"


ACKLEY_LR, RADIUS = 5e-3, 12.0
EDGES = {  # edges of 47 bins: wide ones of 2 nats, narrow ones of 0.2
    ABOVE: [*range(0, 14, 2), *(14 + 0.2 * i for i in range(41))],
    BELOW: [*(0.2 * i for i in range(40)), *range(8, 23, 2)],
}
TEMPERATURES = (0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0)
DRAWN_STEPS = 3_000  # length of the drawn trajectories


@dataclass(frozen=True)
class Search:
    """Chains that look for the global basin |x_i| < 1/2."""

    steps: Tensor  # (temperatures, chains) until the first visit, infinite without one
    late_energy: Tensor  # (temperatures, chains) mean U over the second half of the run
    paths: Tensor  # (drawn steps, temperatures, chains, 2)


@experiment("ackley", f"{SLIDES}, 2D Ackley function", "The way to the global minimum of Ackley's function")
def ackley(context: Context) -> Result:
    count, length = context.choose(40, 8), context.choose(10_000, 1_500)
    rate = bdl.RobbinsMonro(100.0)
    weightings = {"SGLD": bdl.Flat(), "AWSGLD": bdl.AdaptiveWeight(1.0, 0.0, 22.0, 100, rate=rate)}
    weightings |= {name: bdl.AdaptiveWeight(1.0, edges=edges, rate=rate) for name, edges in EDGES.items()}
    searches = {name: search(w, count, length, context, name) for name, w in weightings.items()}
    figure, axes = canvas("AWSGLD reaches the global minimum of Ackley's function sooner, and stays", 1, 3, width=4.2)
    for ax, (name, s) in zip(axes[0, :2], searches.items(), strict=False):  # the third panel shows all of them
        i = int(s.steps.clamp_max(length).mean(1).argmin())
        draw_trajectory(ax, s.paths[:, i], s.steps[i])
        label(ax, f"{name} at its best T = {TEMPERATURES[i]:g}, a median chain", "x1", "x2")
    draw_steps(axes[0, 2], searches, length)
    rows = [ackley_row(name, i, s, length) for name, s in searches.items() for i in range(len(TEMPERATURES))]
    numbers = {name: {"steps": s.steps, "late energy": s.late_energy} for name, s in searches.items()}
    return Result({"ackley": figure}, [ackley_table(rows, count, length)], {"temperatures": TEMPERATURES, **numbers})


def search(weighting: Any, count: int, length: int, context: Context, name: str) -> Search:
    """Run `count` chains at each of TEMPERATURES; every temperature has the same starting points, on a circle."""
    angle = 2 * math.pi * torch.rand(count, generator=generator("cpu", "ackley", context.seed), dtype=torch.float64)
    start = RADIUS * torch.stack([angle.cos(), angle.sin()], 1).repeat(len(TEMPERATURES), 1)
    t = torch.tensor(TEMPERATURES, dtype=torch.float64).repeat_interleave(count)
    seed = derive_seed("ackley", name, context.seed)
    chains = Chains(Ackley(2), bdl.SGLD(), start, lr=ACKLEY_LR, temperature=t, weighting=weighting, seed=seed)
    steps = torch.full((len(start),), math.inf, dtype=torch.float64)
    energy, paths = torch.zeros_like(steps), []
    for k in context.track(range(1, length + 1), f"ackley, {name}"):
        if k <= DRAWN_STEPS:
            paths.append(chains.theta.clone())
        chains.step()
        steps[(chains.theta.abs().amax(1) < 0.5) & steps.isinf()] = k
        if k > length // 2 and chains.sampler.energy is not None:
            energy += chains.sampler.energy / (length - length // 2)
    shape = (len(TEMPERATURES), count)
    return Search(steps.view(shape), energy.view(shape), torch.stack(paths).unflatten(1, shape))


def ackley_row(name: str, i: int, s: Search, length: int) -> list[str]:
    steps = s.steps[i].clamp_max(length)
    mean = ("≥ " if s.steps[i].isinf().any() else "") + uncertain(steps, 0)
    share = s.steps[i].isfinite().double().mean()
    return [f"{name}, T = {TEMPERATURES[i]:g}", "figure only", f"{share:.0%}", mean, uncertain(s.late_energy[i])]


def ackley_table(rows: list[list[str]], count: int, length: int) -> Table:
    return Table(
        "Chains that reach the global basin, |x_i| < 1/2",
        ["method", "published", "share of chains", "steps to it", "mean U in the second half"],
        rows,
        f"The slides give no settings. Here {count} chains start at distance {RADIUS:g} from the minimum and run "
        f"{length:,} steps at lr {ACKLEY_LR:g}; AWSGLD has ζ = 1 and 100 bins from 0 to 22. Edges by hand make "
        f"{len(EDGES[ABOVE]) - 1} bins, .2 nats wide on one side and 2 nats on the other. The rise of log θ is at most "
        "1 a bin, so that narrow bins pull harder: above 14, where the chains start, they speed up the search; below 8 "
        "they hold a chain deeper in the basin. All methods run at the same temperatures, so each shows its best one. "
        "≥ marks a mean that counts a failure as the length of the run.",
    )


def draw_trajectory(ax: Axes, paths: Tensor, steps: Tensor) -> None:
    """The chain (drawn steps, chains, 2) whose number of steps is the median, over the surface."""
    chain = int(steps.argsort()[(len(steps) - 1) // 2])
    side = RADIUS + 3
    draw_surface(ax, Ackley(2), side, "Blues_r")
    draw_path(ax, paths[:, chain], 0.8)
    ax.plot(0, 0, "*", color="gold", ms=13, mec="black", mew=0.6)


def draw_steps(ax: Axes, searches: dict[str, Search], length: int) -> None:
    for name, s in searches.items():
        mean = s.steps.clamp_max(length).mean(1)
        error = s.steps.clamp_max(length).std(1) / s.steps.shape[1] ** 0.5
        ax.errorbar(TEMPERATURES, mean, error, color=COLOURS[name], marker="o", ms=4, lw=1.6, label=name)
    ax.axhline(length, color="black", lw=0.8, ls=":")
    ax.set(xscale="log", ylim=(0, 1.08 * length))
    ax.set_xticks(TEMPERATURES, [f"{t:g}" for t in TEMPERATURES])
    ax.minorticks_off()
    ax.legend()
    label(ax, "steps to the global basin, mean over chains", "temperature T")


def draw_surface(ax: Axes, target: Target, side: float, colours: str) -> None:
    axis = torch.linspace(-side, side, 400, dtype=torch.float64)
    x, y = torch.meshgrid(axis, axis, indexing="xy")
    ax.pcolormesh(axis, axis, target.energy(torch.stack([x, y], -1)), cmap=colours, rasterized=True)
    ax.set(aspect="equal", xlim=(-side, side), ylim=(-side, side))
    ax.grid(False)


def draw_path(ax: Axes, path: Tensor, width: float) -> None:
    """Join points (n, 2) by a line that turns from yellow to red with time."""
    segments = torch.stack([path[:-1], path[1:]], 1).numpy()
    time = LineCollection(list(segments), cmap="autumn_r", linewidths=width, rasterized=True)
    time.set_array(torch.arange(len(segments)).numpy())
    ax.add_collection(time)
    ax.plot(*path[0], "o", color="white", mec="black", ms=6)
    ax.text(0.02, 0.02, "time: yellow to red", fontsize=8, transform=ax.transAxes)


LOW = -4.0  # nats: half the depth of the deepest minima
CELLS = 50  # along each side of the box
EVERY = 5  # steps between kept states
RUGGED = bdl.AdaptiveWeight(1.0, -8.13, 0.0, 20, rate=bdl.RobbinsMonro(100.0))
HAND = [-8.13, -7, -6, -5, -4, -3, -2, -1.5, -1, -0.75, -0.5, -0.25, 0]


@dataclass(frozen=True)
class Visitor:
    weighting: Any
    temperature: float
    lr: float = 1e-5


VISITORS = {
    "SGLD, T = 20": Visitor(bdl.Flat(), 20.0),
    "SGLD, T = 1": Visitor(bdl.Flat(), 1.0),
    "AWSGLD, T = 20": Visitor(RUGGED, 20.0),
    "AWSGLD, T = 20, lr 3e-6": Visitor(RUGGED, 20.0, 3e-6),
    "AWSGLD, T = 20, edges by hand": Visitor(bdl.AdaptiveWeight(1.0, edges=HAND, rate=bdl.RobbinsMonro(100.0)), 20.0),
}


@dataclass(frozen=True)
class Visits:
    """One method's chains on the rugged surface, after burn-in."""

    path: Tensor  # (n, chains, 2)
    energy: Tensor  # (n, chains)
    log_weight: Tensor  # (n, chains)

    def low_cells(self, side: float) -> Tensor:
        """(chains,) number of cells in which the chain had an energy below LOW."""
        cell = ((self.path + side) / (2 * side) * CELLS).long().clamp(0, CELLS - 1)
        index = (cell[..., 0] * CELLS + cell[..., 1]).masked_fill(self.energy >= LOW, -1)
        return torch.tensor([len(set(column.tolist()) - {-1}) for column in index.T], dtype=torch.float64)

    def time_low(self) -> Tensor:
        """(chains,) share of the time below LOW."""
        return (self.energy < LOW).double().mean(0)

    def expect(self, values: Tensor) -> Tensor:
        """(chains,) expectation under exp(-U/T) of values (n, chains), by importance weights."""
        w = (self.log_weight - self.log_weight.amax(0)).exp()
        return (w * values).sum(0) / w.sum(0)


@experiment("rugged", f"{SLIDES}, multimodal sampling", "A rugged surface at T = 20")
def rugged(context: Context) -> Result:
    surface = RuggedSurface()
    visits = {name: visit(surface, who, context, name) for name, who in VISITORS.items()}
    title = "At T = 20 AWSGLD goes from well to well; SGLD wanders past them, and at T = 1 hardly moves"
    figure, axes = canvas(title, 1, 3, width=4.0)
    for ax, (name, v) in zip(axes[0], visits.items(), strict=False):
        draw_surface(ax, surface, surface.half_width, "Blues_r")
        draw_path(ax, v.path[:, 0], 0.4)
        label(ax, f"{name}\n{v.time_low().mean():.0%} of the time at U < {LOW:g}", "x1", "x2")
    law = surface.quadrature(surface.temperature)
    exact = [law.expect(law.energies).item(), law.covariance()[0, 0].item()]
    numbers = {name: measure(v, surface.half_width) for name, v in visits.items()}
    return Result({"rugged": figure}, [rugged_table(numbers, exact, context)], {"exact": exact, **numbers})


def rugged_size(context: Context) -> tuple[int, float]:
    """The number of chains, and lr times the number of steps; the same for every method."""
    return context.choose((40, 0.4), (10, 0.01))


def visit(surface: RuggedSurface, who: Visitor, context: Context, name: str) -> Visits:
    count, time = rugged_size(context)
    u = torch.rand(count, 2, generator=generator("cpu", "rugged", context.seed), dtype=torch.float64)
    chains = Chains(
        surface, bdl.SGLD(), surface.half_width * (2 * u - 1), lr=who.lr, temperature=who.temperature,
        weighting=who.weighting, box=surface.box, seed=derive_seed("rugged", name, context.seed),
    )  # fmt: skip
    rounds = round(time / who.lr) // EVERY
    kept = [chains.run(EVERY, EVERY) for _ in context.track(range(rounds), f"rugged, {name}")]
    path = torch.cat(kept[rounds // 4 :])
    energy = surface.energy(path)
    log_weight = torch.zeros_like(energy)
    if who.weighting.needs_energy:
        log_weight = torch.stack([chains.sampler.log_weight_at(u) for u in energy])
    return Visits(path, energy, log_weight)


def measure(v: Visits, side: float) -> dict[str, Tensor]:
    """Name -> (chains,) values."""
    return {
        "low cells": v.low_cells(side),
        "time low": v.time_low(),
        "E U": v.expect(v.energy),
        "E x1^2": v.expect(v.path[..., 0].square()),
    }


def rugged_table(numbers: dict[str, dict[str, Tensor]], exact: list[float], context: Context) -> Table:
    count, time = rugged_size(context)
    digits = {"low cells": 1, "time low": 3, "E U": 2, "E x1^2": 2}
    rows = [[name, "figure only", *(uncertain(m[k], d) for k, d in digits.items())] for name, m in numbers.items()]
    rows.append(["exact, T = 20, by quadrature", "", "", "", *(f"{value:.2f}" for value in exact)])
    header = ["method", "published", f"cells with U < {LOW:g} visited", f"time at U < {LOW:g}", "E U", "E x1²"]
    return Table(
        "Visits of low energies, per chain, and expectations under exp(-U/20)",
        header,
        rows,
        f"{count} chains, lr 1e-5 and {time / 1e-5:,.0f} steps unless said otherwise. AWSGLD has ζ = 1 and 20 bins "
        "from -8.13 to 0; its expectations are reweighted by θ^ζ. The expectations of SGLD at T = 1 belong to another "
        "law. The slides name neither a box nor lr. U is unbounded below, so the chains stay in the usual box "
        f"|x_i| <= 1.1, cut into {CELLS} × {CELLS} cells. At T = 20 exp(-U/T) is almost uniform there: in the long run "
        "SGLD passes through more low cells than AWSGLD, but does not stay in them. With equal bins AWSGLD's "
        "multiplier reaches 1 + 20/.41 = 50, which makes lr 1e-5 a coarse step. Edges by hand at "
        f"{', '.join(f'{e:g}' for e in HAND)} make the lowest bins 1 nat wide, where it is at most 21, and keep narrow "
        "ones near 0, where most of the surface lies.",
    )
